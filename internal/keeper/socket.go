package keeper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
)

// network is SOCK_SEQPACKET: packets keep their bounds, and descriptors their packet.
const network = "unixpacket"

// Listen makes the keeper's socket. Its folder is made where it is missing, and
// closed to all but root; a socket that an earlier instance left is replaced.
func Listen(path string) (*net.UnixListener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, err
	}
	address := &net.UnixAddr{Name: path, Net: network}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s is there and no socket: remove it", path)
	default:
		if c, err := net.DialUnix(network, nil, address); err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("another keeper listens at %s", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.ListenUnix(network, address)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// DialSocket connects to the keeper's socket at path, which is absolute. Nothing on
// the way may be a symbolic link, and socket and folder must be root's alone: the path
// may lead through folders that others can make.
func DialSocket(path string) func(ctx context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		dir, name := filepath.Split(filepath.Clean(path))
		root, err := beneath.OpenRoot("/")
		if err != nil {
			return nil, err
		}
		defer root.Close()
		folder, err := root.Open(strings.Trim(dir, "/"))
		if err != nil {
			return nil, err
		}
		defer folder.Close()
		if err := rootsAlone(folder, name); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		// By descriptor: a path of kubelet's is longer than the 108 bytes of an address.
		c, err := new(net.Dialer).DialContext(ctx, network, fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), name))
		if err != nil {
			return nil, err
		}
		u, ok := c.(*net.UnixConn)
		if !ok {
			_ = c.Close()
			return nil, fmt.Errorf("a connection of type %T", c)
		}
		if uid, err := peer(u); err != nil || uid != 0 {
			_ = c.Close()
			return nil, errors.Join(fmt.Errorf("%s: user %d listens, not root", path, uid), err)
		}
		return c, nil
	}
}

// rootsAlone refuses a folder that another user can change, and a socket of another
// user. After it, nobody but root can put another socket there.
func rootsAlone(folder *beneath.Dir, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(folder.Fd(), "", &st, unix.AT_EMPTY_PATH); err != nil {
		return os.NewSyscallError("stat the folder", err)
	}
	if st.Uid != 0 || st.Mode&0o022 != 0 {
		return fmt.Errorf("its folder belongs to user %d and has mode %#o: only root may write there", st.Uid, st.Mode&0o7777)
	}
	if err := unix.Fstatat(folder.Fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return os.NewSyscallError("stat", err)
	}
	if st.Uid != 0 || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return fmt.Errorf("it is no socket of root's (user %d, mode %#o)", st.Uid, st.Mode)
	}
	return nil
}
