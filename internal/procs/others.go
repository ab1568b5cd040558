package procs

import (
	"context"
	"fmt"
	"os"
)

// Others are the processes of the node, whosever they are, that have something open
// on one of the mounts or stand in it: ids are mountinfo ids as for Holding, and the
// same is found. It looks into every process there is, some 0.1 ms each: not for
// what is asked often.
//
// Errors: ErrCannotTell beside those found.
func (f *Finder) Others(ctx context.Context, ids map[int]bool) ([]Process, error) {
	root, err := os.Open(f.dir)
	if err != nil {
		return nil, fmt.Errorf("scanning processes: %w", err)
	}
	var found []Process
	var unread doubt
	err = eachNumber(root, func(pid int) bool {
		start, err := f.Started(pid)
		var holding []Holding
		if err == nil {
			holding, err = f.Holding(ctx, []Process{{PID: pid, Start: start}}, ids)
		}
		unread.note(pid, err)
		if len(holding) > 0 {
			found = append(found, Process{PID: pid, Start: start})
		}
		return ctx.Err() == nil
	})
	unread.note(0, err)
	return found, unread.err("holders of a mount on the node")
}
