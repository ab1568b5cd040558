package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/aws/smithy-go"
	"github.com/rclone/rclone/fs"
	"github.com/rclone/rclone/vfs"
)

// A reporter turns errors into what a system call returns, and says on stderr what the
// call cannot: at most one line in reportEvery, whatever a tenant does.
type reporter struct {
	mu     sync.Mutex
	last   time.Time
	unsaid int
}

const reportEvery = 10 * time.Second

// errno is the number of an error of an operation.
func (r *reporter) errno(operation string, err error) syscall.Errno {
	var api smithy.APIError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, os.ErrNotExist), errors.Is(err, fs.ErrorObjectNotFound), errors.Is(err, fs.ErrorDirNotFound):
		return syscall.ENOENT
	case errors.Is(err, os.ErrExist), errors.Is(err, fs.ErrorDirExists):
		return syscall.EEXIST
	case errors.Is(err, vfs.ENOTEMPTY), errors.Is(err, fs.ErrorDirectoryNotEmpty):
		return syscall.ENOTEMPTY
	case errors.Is(err, vfs.EROFS):
		return syscall.EROFS
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		r.say(operation, errors.New("the cache directory is full"))
		return syscall.ENOSPC
	case errors.Is(err, os.ErrInvalid):
		return syscall.EINVAL
	case errors.Is(err, vfs.EBADF), errors.Is(err, os.ErrClosed):
		return syscall.EBADF
	case errors.Is(err, os.ErrPermission):
		return syscall.EPERM
	case errors.Is(err, context.Canceled):
		return syscall.EINTR
	case errors.As(err, &api) && api.ErrorCode() == "AccessDenied":
		r.say(operation, err)
		return syscall.EACCES
	}
	r.say(operation, err)
	return syscall.EIO
}

// say writes no name of a file: they are the tenant's.
func (r *reporter) say(operation string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.last) < reportEvery {
		r.unsaid++
		return
	}
	more := ""
	if r.unsaid > 0 {
		more = fmt.Sprintf(" (and %d more since the last line)", r.unsaid)
	}
	r.last, r.unsaid = time.Now(), 0
	fmt.Fprintf(os.Stderr, "%s failed: %v%s\n", operation, innermost(err), more)
}
