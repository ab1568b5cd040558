package nfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
)

// onlyVersion3 is the last chapter: the server is another one from here on. Its
// exports have their own paths, without a root above them.
func onlyVersion3(t *testing.T) {
	n := node(t)
	must(t, stopServer())
	portmapper, err := startPortmapper()
	must(t, err)
	eventually(t, "the portmapper listens", func() bool { return isOpen(portmapperPort) })
	must(t, onNode(func() error { return command("rpc.mountd", "-N", "2") }))
	must(t, resumeServer(version3()...))

	refuses(t, n, "writer", address, grant.ReadWrite, "none of NFS 4.2, 4.1, 4.0 in common, and NFS 3 is for read-only grants alone", "grant it read-only, or turn NFS 4 on")
	refuses(t, n, "module", address, grant.ReadOnly, "this node's kernel has no NFS 3: load its module (modprobe nfsv3)")
	must(t, loadClient3())
	refuses(t, n, "writer-still", address, grant.ReadWrite, "NFS 3 is for read-only grants alone")

	p := withExport(t, n, "three", "/srv", grant.ReadOnly)
	isVersion3(t, n, p)
	overIPv6Too(t, n)
	must(t, stopServer())
	outage(t, n, p, "new5")
	must(t, resumeServer(version3()...))
	answers(t, p, grant.StateReady)
	eventually(t, "the sandbox reads on", func() bool {
		got, err := p.Ctr.ReadFile(in + "data/deep/new6")
		return err == nil && string(got) == "new\n"
	})

	must(t, portmapper.Process.Kill())
	_ = portmapper.Wait() // it says that it was killed
	withoutPortmapper(t, n)
	staysAtTheAddress(t, n)
	reads(t, p.Ctr, "data/deep/new7", "new\n") // what is mounted asks no portmapper
	p.Grant()
	p.MustAnswer(grant.StateReady, []string{}, map[string]grant.Code{})
}

// refuses grants the server's export to a Pod, and wants these words in the answer.
func refuses(t *testing.T, n *agenttest.Node, name, server string, mode grant.Mode, says ...string) {
	t.Helper()
	p := n.RunningPod(name)
	p.Grant(export(server, "/srv", "data", mode))
	p.Pass()
	st := p.Status()
	t.Logf("%s: %v", name, st.Messages)
	for _, words := range says {
		if st.Failed["data"] != grant.CodeMountFailed || !strings.Contains(st.Messages["data"], words) {
			t.Errorf("%s is answered %+v, want %q", name, st, words)
		}
	}
	if names, err := p.Ctr.ReadDir(in); len(names) != 0 || err != nil {
		t.Errorf("%s has %v, %v", name, names, err)
	}
}

func isVersion3(t *testing.T, n *agenttest.Node, p *agenttest.Pod) {
	t.Helper()
	reads(t, p.Ctr, "data/hello", "hello over nfs\n")
	reads(t, p.Ctr, "data/deep/file", "deep\n")
	if err := p.Ctr.AsUser(1000, 100).WriteFile(in+"data/x", nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing: %v", err)
	}
	notThroughAnother(t, n, p)
	if err := p.Ctr.OpenDevice(in + "data/null"); !errors.Is(err, unix.EACCES) {
		t.Errorf("opening a device: %v", err)
	}
	line := mountLine(t, p.Ctr)
	t.Log(line)
	for _, want := range []string{
		" ro,nosuid,nodev", " nfs 127.0.0.1:/srv ro,", "vers=3", "nolock", "soft", "proto=tcp", "timeo=20", "retrans=2",
		",addr=127.0.0.1", "mountaddr=127.0.0.1", "mountproto=tcp",
	} {
		if !strings.Contains(line, want) {
			t.Errorf("the mount has no %q: %s", want, line)
		}
	}
	// A lock is not waited for: no statd of the node has a part in it.
	f, err := os.Open(filepath.Join(n.Root, "pods", p.UID, "data/hello"))
	must(t, err)
	must(t, within(t, "a lock", 10*time.Second, func() error { return unix.Flock(int(f.Fd()), unix.LOCK_SH) }))
	must(t, f.Close())
}

func overIPv6Too(t *testing.T, n *agenttest.Node) {
	t.Helper()
	p := n.RunningPod("three-six")
	p.Grant(export("["+address6+"]", "/srv", "data", grant.ReadOnly))
	p.MustAnswer(grant.StateReady, []string{"data"}, map[string]grant.Code{})
	reads(t, p.Ctr, "data/hello", "hello over nfs\n")
	line := mountLine(t, p.Ctr)
	for _, want := range []string{" nfs [::1]:/srv ro,", "proto=tcp6", ",addr=::1", "mountaddr=::1", "mountproto=tcp6"} {
		if !strings.Contains(line, want) {
			t.Errorf("the mount has no %q: %s", want, line)
		}
	}
	p.Grant()
	p.MustAnswer(grant.StateReady, []string{}, map[string]grant.Code{})
}

// withoutPortmapper begins where none listens.
func withoutPortmapper(t *testing.T, n *agenttest.Node) {
	t.Helper()
	refuses(t, n, "no-portmapper", address, grant.ReadOnly, "its portmapper, which NFS 3 needs, cannot be reached at 127.0.0.1, port 111: ECONNREFUSED")
	fd, err := listenSilently(address, portmapperPort)
	must(t, err)
	began := time.Now()
	refuses(t, n, "silent-portmapper", address, grant.ReadOnly, "does not answer")
	eventually(t, "the lost thread is back", func() bool { return n.Budget.Lost() == 0 })
	t.Logf("the thread was back after %s", time.Since(began).Round(time.Second))
	unix.Close(fd)
	another, err := startPortmapper() // which knows no service
	must(t, err)
	eventually(t, "another portmapper listens", func() bool { return isOpen(portmapperPort) })
	refuses(t, n, "no-mountd", address, grant.ReadOnly, "no mountd that its portmapper knows")
	must(t, another.Process.Kill())
	_ = another.Wait()
}

// staysAtTheAddress has a portmapper send the node to another host. The address was
// checked, so only the port may be taken from the answer. Over IPv4 the kernel asks
// for no more than that; over IPv6 an answer is a whole address.
func staysAtTheAddress(t *testing.T, n *agenttest.Node) {
	t.Helper()
	const port = 2050
	ours, err := listenSilently(address6, port)
	must(t, err)
	defer unix.Close(ours)
	elsewhere, err := listenSilently(silent, port)
	must(t, err)
	defer unix.Close(elsewhere)
	l, err := lyingPortmapper(fmt.Sprintf("%s.%d.%d", silent, port>>8, port&0xff))
	must(t, err)
	defer func() { _ = l.Close() }()
	refuses(t, n, "sent-away", "["+address6+"]", grant.ReadOnly, "does not answer")
	eventually(t, "the lost thread is back", func() bool { return n.Budget.Lost() == 0 })
	if !wasCalled(ours) {
		t.Error("nobody has connected to the port that the portmapper named")
	}
	if wasCalled(elsewhere) {
		t.Error("the node was sent to another address")
	}
}

// wasCalled tells whether a connection waits at the listener.
func wasCalled(fd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n == 1
}

// lyingPortmapper answers every call with one universal address (RFC 5665), until it
// is closed.
func lyingPortmapper(universal string) (l net.Listener, err error) {
	err = onNode(func() error {
		l, err = net.Listen("tcp6", fmt.Sprintf("[%s]:%d", address6, portmapperPort))
		return err
	})
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				for answerWith(c, universal) == nil {
				}
				_ = c.Close()
			}()
		}
	}()
	return l, nil
}

// answerWith reads one call of RPC (RFC 5531, each after its length) and answers that
// it was accepted, with a string for a result.
func answerWith(c net.Conn, text string) error {
	mark := make([]byte, 4)
	if _, err := io.ReadFull(c, mark); err != nil {
		return err
	}
	call := make([]byte, binary.BigEndian.Uint32(mark)&^last)
	if _, err := io.ReadFull(c, call); err != nil {
		return err
	}
	if len(call) < 4 {
		return io.ErrUnexpectedEOF
	}
	const reply = 1 // and zeros: accepted, no verifier, success
	answer := append(slices.Clone(call[:4]), 0, 0, 0, reply)
	answer = append(answer, make([]byte, 16)...)
	answer = binary.BigEndian.AppendUint32(answer, uint32(len(text)))
	answer = append(answer, text...)
	answer = append(answer, make([]byte, -len(text)&3)...)
	_, err := c.Write(append(binary.BigEndian.AppendUint32(nil, last|uint32(len(answer))), answer...))
	return err
}

// last marks the last fragment of a record.
const last = uint32(1) << 31
