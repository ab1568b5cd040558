package main

import (
	"fmt"
	"sync"
)

// faults are what goes wrong until it is ended, one at a time.
type faults struct {
	front *front

	mu        sync.Mutex
	kind      string
	operation string
	left      int           // how many more requests meet it; negative: all
	over      chan struct{} // closed when the fault ends
}

func newFaults(front *front) *faults { return &faults{front: front} }

// begin replaces the fault that there is. kind is
//
//	hang         requests are not answered until the fault ends
//	stall        the same, and answers under way stop
//	unavailable  status 503, SlowDown
//	refuse       the port is closed and every connection is cut
//
// operation, where it is not empty, is the only one that hangs or is unavailable;
// times, where it is not 0, is how many requests do.
func (f *faults) begin(kind, operation string, times int) error {
	switch kind {
	case "hang", "unavailable":
	case "stall", "refuse":
		if operation != "" || times != 0 {
			return fmt.Errorf("%s is for the whole server: leave out operation and times", kind)
		}
	default:
		return fmt.Errorf("%q is no fault: hang, stall, unavailable and refuse are", kind)
	}
	if err := f.end(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kind, f.operation, f.left, f.over = kind, operation, times, make(chan struct{})
	if times == 0 {
		f.left = -1
	}
	switch kind {
	case "stall":
		f.front.stall(f.over)
	case "refuse":
		f.front.refuse()
	}
	return nil
}

// end returns when the server is whole again.
func (f *faults) end() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.kind == "" {
		return nil
	}
	close(f.over)
	kind := f.kind
	f.kind = ""
	if kind == "refuse" {
		return f.front.listen()
	}
	return nil
}

// meet waits as long as requests of the operation hang; it says whether the answer
// is to be 503.
func (f *faults) meet(operation string) bool {
	f.mu.Lock()
	kind, over := f.kind, f.over
	if kind == "" || f.operation != "" && f.operation != operation || f.left == 0 {
		f.mu.Unlock()
		return false
	}
	if f.left > 0 {
		f.left--
	}
	f.mu.Unlock()
	switch kind {
	case "hang", "stall":
		<-over
	case "unavailable":
		return true
	}
	return false
}
