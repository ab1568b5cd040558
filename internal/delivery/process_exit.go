package delivery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/keeper"
)

// exitOf asks the keeper how a process ended: nil where the keeper has ended too, or does
// not answer.
func (d *Process) exitOf(id string) *keeper.Exit {
	ctx, cancel := context.WithTimeout(d.Life, endPatience)
	defer cancel()
	child, err := d.Keeper.Child(ctx, id)
	if err != nil || child.Ended == nil {
		return nil
	}
	if err := d.Keeper.Forget(ctx, id); err != nil {
		d.Log.Warn("forgetting a process that has ended", "child", id, "error", err)
	}
	return child.Ended
}

// Exit statuses of the programs that are run, beside 0 and 1.
const (
	exitSource     = 3 // what is mounted is wrong
	exitCredential = 4 // the credential was refused
	exitNotStored  = 5 // it was told to end, and could not store what was written
)

// lossOf says why what was written to a filesystem may not be stored, "" where it is.
func lossOf(e *keeper.Exit) string {
	switch {
	case e == nil:
		return "how its process ended is not known, because the keeper that ran it has ended too or does not answer: what it had not stored is lost"
	case e.Code == 0 && e.Signal == 0:
		return ""
	case e.Code == exitNotStored:
		return lastLine(e.Words)
	case e.Signal == syscall.SIGKILL && !e.Memory:
		return "its process was killed before it ended by itself: what it had not stored by then is lost"
	}
	return exitError(e).Reason + ": what it had not stored by then is lost"
}

// exitError says how a process ended; see exitOf.
func exitError(e *keeper.Exit) *ProcessError {
	if e == nil {
		return &ProcessError{grant.CodeMountDead, "the filesystem's process has ended, with the keeper that ran it: another one is started"}
	}
	words := lastLine(e.Words)
	switch {
	case e.Memory:
		return &ProcessError{grant.CodeMountDead, "the filesystem's process took more memory than it may have, and was ended"}
	case e.Signal != 0:
		return &ProcessError{grant.CodeMountDead, fmt.Sprintf("the filesystem's process was ended by signal %d (%s)", int(e.Signal), e.Signal)}
	case e.Code == exitSource && words != "":
		return &ProcessError{grant.CodeInvalidSource, words}
	case e.Code == exitCredential && words != "":
		return &ProcessError{grant.CodeSecretRefused, words}
	case words != "":
		return &ProcessError{grant.CodeMountFailed, words}
	}
	return &ProcessError{grant.CodeMountFailed, fmt.Sprintf("the filesystem's process ended with status %d", e.Code)}
}

// lastLine is the sentence that a program ended with: "error: SENTENCE".
func lastLine(words string) string {
	lines := strings.Split(strings.TrimSpace(words), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if text, ok := strings.CutPrefix(lines[i], "error: "); ok {
			return text
		}
	}
	return strings.TrimSpace(lines[len(lines)-1])
}

// explainEnd says why a filesystem gave no first answer: by its process, where that
// has ended.
func (d *Process) explainEnd(ctx context.Context, p *process, err error) error {
	timer := time.NewTimer(endPatience)
	defer timer.Stop()
	if why := (*ProcessError)(nil); errors.As(err, &why) {
		return err // it hangs
	}
	select {
	case <-p.ended:
	case <-timer.C:
		return err
	case <-ctx.Done():
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if why := (*ProcessError)(nil); errors.As(p.exit, &why) && why.Code == grant.CodeMountDead {
		return &ProcessError{grant.CodeMountFailed, why.Reason}
	}
	return p.exit
}

// OnLoss has tell called, with why, where the process of a mount that is about to be
// taken away, or was, ends without having stored what was written. Of a process that is not
// taken over yet nothing is heard.
func (d *Process) OnLoss(uid, target string, tell func(why string)) {
	d.mu.Lock()
	p := d.running[useOf(uid, target)]
	if p == nil {
		d.mu.Unlock()
		return
	}
	why := ""
	if !p.hasEnded() {
		p.loss = tell
	} else {
		why, p.unstored = p.unstored, "" // its mount had gone
	}
	d.mu.Unlock()
	if why != "" {
		tell(why)
	}
}
