// Package netaddrtest has networks of their own for tests.
package netaddrtest

import (
	"fmt"
	"net/netip"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/thread"
)

// Network makes a network namespace, until the test ends, in which one interface has a
// name and an IPv4 address. It returns the folder in /proc of somebody in it. It needs
// root.
func Network(t testing.TB, name string, address netip.Addr) (proc string) {
	t.Helper()
	made, end := make(chan error, 1), make(chan struct{})
	go func() {
		made <- thread.Own(func() error { // the namespace ends with the thread
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("make a network: %w", err)
			}
			proc = fmt.Sprintf("/proc/self/task/%d", unix.Gettid())
			if err := setUp(name, address); err != nil {
				return err
			}
			made <- nil
			<-end
			return nil
		})
	}()
	t.Cleanup(func() { close(end) })
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	return proc
}

// Loopback takes the loopback interface of the thread's network up, or down: what is sent
// then gets no answer.
func Loopback(up bool) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_RUNNING)
	if up {
		lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	}
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
}

// setUp names the loopback interface and gives it the address: kernels have no other
// kind of interface for certain.
func setUp(name string, address netip.Addr) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	var rename struct{ is, becomes, rest [unix.IFNAMSIZ]byte }
	copy(rename.is[:], "lo")
	copy(rename.becomes[:], name)
	if name != "lo" {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCSIFNAME, uintptr(unsafe.Pointer(&rename))); errno != 0 {
			return fmt.Errorf("rename the interface: %w", errno)
		}
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	four := address.As4()
	if err := request.SetInet4Addr(four[:]); err != nil {
		return err
	}
	return unix.IoctlIfreq(s, unix.SIOCSIFADDR, request)
}
