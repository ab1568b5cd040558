// Package netaddrtest has networks of their own for tests.
package netaddrtest

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Network makes a network namespace, until the test ends, in which one interface has a
// name and an IPv4 address. It returns the folder in /proc of somebody in it. It needs
// root.
func Network(t testing.TB, name string, address netip.Addr) (proc string) {
	t.Helper()
	made, end := make(chan error), make(chan struct{})
	var start func()
	start = func() {
		// The thread ends with this goroutine, and the namespace with it. The first one
		// does not end.
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			go start()
			<-end
			return
		}
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- fmt.Errorf("make a network: %w", err)
			return
		}
		proc = fmt.Sprintf("/proc/self/task/%d", unix.Gettid())
		made <- setUp(name, address)
		<-end
	}
	go start()
	t.Cleanup(func() { close(end) })
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	return proc
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
