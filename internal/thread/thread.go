// Package thread makes calls that change the thread which makes them: the namespaces it
// is in, or the user it is to the kernel.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/bug"
)

// Own makes call on a thread that ends with it, so that nothing else ever runs on what
// call has made of the thread. It returns when call does. A panic in call is its error.
//
// The process's first thread is not taken: it does not end before the process, and is
// what others see of the process in /proc.
func Own(call func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the runtime ends a thread with its locked goroutine.
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// Held here until another thread has made the call.
			defer runtime.UnlockOSThread()
			done <- Own(call)
			return
		}
		done <- bug.Catch(call)
	}()
	return <-done
}
