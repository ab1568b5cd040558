package agent

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
)

// save writes the Pod's record before something is made: what is not in it must not
// come to be, or an agent that is killed leaves what nobody knows. The error is an
// *unwritableError, and is the node's fault until a sweep finds it gone.
func (a *Agent) save(s *podState) error {
	s.j.BootID = a.BootID
	err := a.store.Save(&s.j)
	s.unsaved = err != nil
	return a.unwritable(err)
}

// note writes the Pod's record after something was made or taken away. It has
// happened, so that a disk that takes no record ends nothing: the record is behind
// then, and each pass begins with writing it. What an agent that is killed before
// leaves is in a record that names more than stands, or does not say how far it came.
//   - A mount that was taken away is in it still. The next agent finds that it does not
//     stand, removes its folder, and looks again for who has it.
//   - A mount that was made is in it as one that was to be made: the next agent takes
//     it away and makes it anew, once it can.
//   - The ids by which an open file of a mount is recognised after it has gone may not
//     be in it. That a process still has such a file is then not seen by the next agent;
//     the mount is out of everybody's sight all the same, and the Pod is released.
func (a *Agent) note(s *podState) { _ = a.save(s) }

// unwritableError says that nothing can be recorded, and so nothing made.
type unwritableError struct {
	dir   string
	cause error
}

// Error has no part that differs between Pods: it is an answer to all of them.
func (e *unwritableError) Error() string {
	why, remedy := e.cause, "look after the node's disk: the agent goes on by itself once it can write there"
	if errno, ok := errors.AsType[syscall.Errno](e.cause); ok {
		why = errno
	}
	if errors.Is(e.cause, unix.ENOSPC) || errors.Is(e.cause, unix.EDQUOT) {
		remedy = "free space on the node: the agent goes on by itself"
	}
	return fmt.Sprintf("the agent cannot write its journal in %s, so it mounts nothing new: %v: %s", e.dir, why, remedy)
}

func (e *unwritableError) Unwrap() error { return e.cause }

// unwritable makes what the journal failed with the node's fault; nil stays nil.
func (a *Agent) unwritable(err error) error {
	if err == nil {
		return nil
	}
	e := &unwritableError{dir: filepath.Join(a.Root, "journal"), cause: err}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fault == "" {
		a.setFault(&a.fault, e.Error())
	}
	return e
}

func isUnwritable(err error) bool {
	_, ok := errors.AsType[*unwritableError](err)
	return ok
}

// tryJournal finds out whether the journal takes a record, before a Pod needs one. It
// leaves the agent's signature with it, which a disk that was full may have refused.
func (a *Agent) tryJournal() error {
	if err := a.sign(); err != nil {
		return err
	}
	return a.unwritable(a.store.Try())
}

// setFault notes what keeps this node from mounting in one of the agent's two fields for
// that, and says it in the log once. a.mu is held.
func (a *Agent) setFault(of *string, fault string) {
	if fault != *of {
		a.Log.Warn("the node's ability to mount has changed", "fault", fault)
	}
	*of = fault
}

// unwritten is the refusal of what could not be recorded. It tells whether err was that.
func (o outcome) unwritten(err error) bool {
	e, ok := errors.AsType[*unwritableError](err)
	if ok {
		o.add(grant.WholeSet, grant.CodeMountFailed, e.Error())
	}
	return ok
}

// removeFolder removes the folder that the Pod's tree stood on. One that the disk does
// not let go of is in nobody's way: it is empty, and the next agent finds it.
func (a *Agent) removeFolder(s *podState) error {
	err := a.pods.Rmdir(s.j.UID)
	for _, disk := range []error{unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.EROFS} {
		if errors.Is(err, disk) {
			_ = a.unwritable(err)
			return nil
		}
	}
	return err
}
