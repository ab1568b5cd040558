package delivery

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// enterHost puts the calling thread into the network and UTS namespaces of the process
// at proc.
//
// A superblock keeps the network namespace of the thread that made it. Through the
// agent's own, every NFS mount of the node would go silent when the agent's Pod is
// replaced. The host's name is what the client tells the server to be known by.
func enterHost(proc string) error {
	if proc == "" {
		return nil
	}
	if os.Getpid() == 1 {
		return errors.New("the agent does not see the node's processes (hostPID)")
	}
	for name, kind := range map[string]int{"net": unix.CLONE_NEWNET, "uts": unix.CLONE_NEWUTS} {
		path := filepath.Join(proc, "ns", name)
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
		err = unix.Setns(fd, kind)
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("setns %s: %w", path, err)
		}
	}
	return nil
}

// reach connects to a port of an address and hangs up: a server that is not
// there is found out within bound, where the kernel's client would take minutes and
// a thread. It returns the address that the node has on that connection. The calls
// are made by hand because they have to be made on this thread.
func reach(server netip.Addr, port int, bound time.Duration) (netip.Addr, error) {
	family, to := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: port, Addr: inet4(server)})
	if server.Is6() {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Port: port, Addr: server.As16()}
	}
	s, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if err != nil {
		return netip.Addr{}, err
	}
	defer unix.Close(s)
	if err := unix.Connect(s, to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return netip.Addr{}, err
	}
	if err := connected(s, bound); err != nil {
		return netip.Addr{}, err
	}
	name, err := unix.Getsockname(s)
	if err != nil {
		return netip.Addr{}, err
	}
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr), nil
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(a.Addr), nil
	}
	return netip.Addr{}, fmt.Errorf("an address of the kind %T", name)
}

// connected waits until the connection stands or has failed.
func connected(s int, bound time.Duration) error {
	for end := time.Now().Add(bound); ; {
		left := time.Until(end)
		if left <= 0 {
			return unix.ETIMEDOUT
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(s), Events: unix.POLLOUT}}, int(left.Milliseconds())+1)
		if errors.Is(err, unix.EINTR) || err == nil && n == 0 {
			continue
		}
		if err != nil {
			return err
		}
		failed, err := unix.GetsockoptInt(s, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && failed != 0 {
			err = unix.Errno(failed)
		}
		return err
	}
}

// inet4 is the address as IPv4, zeros where it is none.
func inet4(a netip.Addr) [4]byte {
	if a.Is4() {
		return a.As4()
	}
	return [4]byte{}
}
