package nfs

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/netaddr/netaddrtest"
	"github.com/datalayer/node-mounts/internal/thread"
)

const (
	nfsdDir  = "/proc/fs/nfsd"
	address  = "127.0.0.1"
	address6 = "::1"
	// silent is an address where connections are accepted and never answered.
	silent = "127.0.0.2"
	// exporter is the program that reads /etc/exports.
	exporter = "exportfs" //nolint:misspell // its name
	// client3 is the module of the client's version 3, which is loaded in the middle of
	// the story.
	client3 = "/nfsv3.ko"

	nfsPort, portmapperPort = 2049, 111
)

// startServer exports /srv, and /srv/squash where root is nobody. It is version 4
// alone: 3 needs a portmapper, which only the last chapter starts.
func startServer() error {
	if err := errors.Join(exports(), unix.Mount("nfsd", nfsdDir, "nfsd", 0, "")); err != nil {
		return err
	}
	for _, dir := range []string{"/var/lib/nfs/v4recovery", "/run/rpc_pipefs"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	err := errors.Join(
		os.WriteFile("/var/lib/nfs/etab", nil, 0o644), os.WriteFile("/var/lib/nfs/rmtab", nil, 0o644),
		control("nfsv4gracetime", "10"), control("nfsv4leasetime", "10"),
		command("rpc.nfsd", nfsd()...),
		command(exporter, "-r"), command("rpc.mountd", "-N", "2", "-N", "3"),
		control("v4_end_grace", "Y"), // or the first open waits
	)
	return err
}

// exports makes the folders that are exported.
func exports() error {
	var errs []error
	mount := func(dir string) {
		errs = append(errs, os.MkdirAll(dir, 0o755), unix.Mount("export", dir, "tmpfs", 0, "mode=0755"))
	}
	file := func(path, text string, mode os.FileMode, uid int) {
		errs = append(errs, os.WriteFile(path, []byte(text), 0o600), os.Chown(path, uid, 100), os.Chmod(path, mode))
	}
	mount("/srv")
	mount("/srv/squash")
	for _, dir := range []string{"/srv/deep", "/srv/other", "/srv/squash/private"} {
		errs = append(errs, os.MkdirAll(dir, 0o755))
	}
	file("/srv/hello", "hello over nfs\n", 0o644, 0)
	file("/srv/deep/file", "deep\n", 0o644, 0)
	for i := range 8 { // each is read once, by somebody who has never seen it
		file(fmt.Sprintf("/srv/deep/new%d", i), "new\n", 0o644, 0)
	}
	file("/srv/squash/private/note", "of ada\n", 0o600, 1000)
	errs = append(errs, unix.Mknod("/srv/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
		os.Chown("/srv/squash/private", 1000, 100), os.Chmod("/srv/squash/private", 0o700))
	return errors.Join(errs...)
}

func control(file, value string) error {
	return os.WriteFile(filepath.Join(nfsdDir, file), []byte(value), 0)
}

func command(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// onNode runs f in the node's network.
func onNode(f func() error) error {
	return thread.Own(func() error {
		fd, err := unix.Open("/proc/1/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		err = unix.Setns(fd, unix.CLONE_NEWNET)
		unix.Close(fd)
		if err != nil {
			return err
		}
		return f()
	})
}

// stopServer ends the service as `systemctl stop` does: its sockets are closed.
func stopServer() error { return control("threads", "0") }

func nfsd(versions ...string) []string {
	return append(append([]string{"-H", address, "-H", address6, "-N", "3", "-U"}, versions...), "4")
}

// version3 are the settings of a server that has no other.
func version3() []string { return []string{"-V", "3", "-N", "4"} }

// startPortmapper runs rpcbind, where version 3 looks for the ports of its services.
func startPortmapper() (*exec.Cmd, error) {
	cmd := exec.Command("rpcbind", "-f")
	err := onNode(cmd.Start)
	return cmd, err
}

// isOpen tells whether something listens at the server's address.
func isOpen(port int) bool {
	return onNode(func() error {
		s, at, err := socket(address, port)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		return unix.Connect(s, at)
	}) == nil
}

// socket makes one for the address.
func socket(host string, port int) (fd int, at unix.Sockaddr, err error) {
	a, family := netip.MustParseAddr(host), unix.AF_INET6
	if a.Is4() {
		family, at = unix.AF_INET, &unix.SockaddrInet4{Port: port, Addr: a.As4()}
	} else {
		at = &unix.SockaddrInet6{Port: port, Addr: a.As16()}
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	return fd, at, err
}

// loadClient3 does what modprobe does on a node.
func loadClient3() error {
	f, err := os.Open(client3)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

func resumeServer(versions ...string) error {
	return errors.Join(
		onNode(func() error { return command("rpc.nfsd", nfsd(versions...)...) }),
		control("v4_end_grace", "Y"),
	)
}

// link takes the way to the server away, or gives it back. What is sent meanwhile
// gets no answer.
func link(up bool) error {
	return onNode(func() error { return netaddrtest.Loopback(up) })
}

// listenSilently accepts connections in the kernel, and nobody reads them. The
// descriptor ends it.
func listenSilently(host string, port int) (fd int, err error) {
	err = onNode(func() error {
		var at unix.Sockaddr
		if fd, at, err = socket(host, port); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), // whoever was here before has just gone
			unix.Bind(fd, at), unix.Listen(fd, 100))
	})
	return fd, err
}
