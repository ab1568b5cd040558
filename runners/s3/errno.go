package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"sync"
	"syscall"
	"time"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
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
		r.say(operation, err)
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
	fmt.Fprintf(os.Stderr, "%s failed: %s%s\n", operation, nameless(err), more)
}

var isCode = regexp.MustCompile(`^[A-Za-z0-9.]{1,64}$`)

// nameless says an error in words of the kinds that are known here. All other text,
// of libraries and of servers, may have a key in it.
func nameless(err error) string {
	var (
		api      smithy.APIError
		response *smithyhttp.ResponseError
		refused  *refusedError
		full     fullError
		number   syscall.Errno
		proxy    proxyError
		network  net.Error
		lookup   *net.DNSError
	)
	server := "the server"
	if isProxy(err) {
		server = "the proxy"
	}
	switch {
	case errors.As(err, &api) && isCode.MatchString(api.ErrorCode()):
		return "the server answered " + api.ErrorCode()
	case errors.As(err, &response) && response.HTTPStatusCode() != 0:
		return fmt.Sprintf("the server answered with status %d", response.HTTPStatusCode())
	case errors.As(err, &refused):
		return refused.Error()
	case errors.As(err, &full):
		return full.Error()
	case errors.Is(err, errRemoved):
		return errRemoved.Error()
	case errors.As(err, &proxy):
		return proxy.Error()
	case isCertificate(err):
		return server + "'s certificate is not trusted"
	case errors.As(err, &lookup):
		return server + "'s name cannot be looked up"
	case errors.As(err, &number):
		return number.Error()
	case errors.Is(err, errLate), errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return errLate.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the server ended the connection"
	}
	return "an error of another kind"
}

// isProxy says whether it is the proxy that could not be reached.
func isProxy(err error) bool {
	var network *net.OpError
	return errors.As(err, &network) && network.Op == "proxyconnect"
}
