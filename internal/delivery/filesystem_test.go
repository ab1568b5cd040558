package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/mnt/mnttest"
	"github.com/datalayer/node-mounts/internal/netaddr/netaddrtest"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/secret"
)

// network is a network namespace with a loopback interface of its own. proc is
// where a thread in it shows its namespaces; in runs f on that thread.
func network(t *testing.T) (proc string, in func(f func() error)) {
	t.Helper()
	calls, results := make(chan func() error), make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		for f := range calls {
			results <- f()
		}
	}()
	t.Cleanup(func() { close(calls) })
	in = func(f func() error) {
		t.Helper()
		calls <- f
		must(t, <-results)
	}
	in(func() error {
		proc = fmt.Sprintf("/proc/self/task/%d", unix.Gettid())
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return netaddrtest.Loopback(true)
	})
	return proc, in
}

// Ports of the servers.
const nfs, portmapper = 2049, 111

// listen opens a port in the namespace. Nobody ever accepts: with a backlog that is
// full, connections hang.
func listen(t *testing.T, in func(func() error), port, backlog int) {
	t.Helper()
	s := -1
	in(func() (err error) {
		if s, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(unix.Bind(s, &unix.SockaddrInet4{Port: port}), unix.Listen(s, backlog))
	})
	t.Cleanup(func() { unix.Close(s) })
}

// filesystem is a delivery whose servers are in a network of their own.
func filesystem(t *testing.T, b *bench, table mnt.Table, proc string, servers ...string) *delivery.Filesystem {
	t.Helper()
	allowed, err := delivery.ParseServers(servers)
	must(t, err)
	return &delivery.Filesystem{
		Table: table, Bound: 2 * time.Second, Budget: b.bind.Budget,
		NFS: delivery.NFS{Servers: allowed, SoftTimeout: 6 * time.Second, HostProc: proc, Resolve: names{
			"here": {"127.0.0.1"}, "outside": {"203.0.113.7"}, "both": {"::ffff:127.0.0.1", "203.0.113.7"}, "mapped": {"::ffff:169.254.169.254"},
		}.resolve},
	}
}

type names map[string][]string

func (n names) resolve(_ context.Context, host string) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, a := range n[host] {
		out = append(out, netip.MustParseAddr(a))
	}
	if len(out) == 0 {
		return nil, &net.DNSError{Name: host, Err: "no such host", IsNotFound: true}
	}
	return out, nil
}

// exported is a grant of an export at "target".
func exported(t *testing.T, source string, mode grant.Mode) plan.Mount {
	t.Helper()
	set := grant.Set{Mounts: []grant.Mount{{Kind: grant.KindNFS, Source: source, Target: "target", Mode: mode}}}
	p := plan.Build(set, plan.Policy{Serves: map[grant.Kind]bool{grant.KindNFS: true}})
	if len(p.Mounts) != 1 {
		t.Fatalf("no plan: %+v", p)
	}
	return p.Mounts[0]
}

// failsWith delivers and wants a code and words in the answer, and nothing left.
func failsWith(t *testing.T, b *bench, f *delivery.Filesystem, source string, code grant.Code, says string) {
	t.Helper()
	modeFailsWith(t, b, f, source, grant.ReadWrite, code, says)
}

func modeFailsWith(t *testing.T, b *bench, f *delivery.Filesystem, source string, mode grant.Mode, code grant.Code, says string) {
	t.Helper()
	_, err := f.Deliver(t.Context(), b.tree, exported(t, source, mode), delivery.Credential{})
	if err == nil {
		t.Fatalf("%s was mounted", source)
	}
	got, text := delivery.Explain(err)
	if got != code || !strings.Contains(text, says) || strings.Contains(text, "/proc/") {
		t.Errorf("%s is explained as %s: %q, want %s with %q (%v)", source, got, text, code, says, err)
	}
	if left := b.inTree(t); len(left) != 0 {
		t.Errorf("%s leaves %v in the tree", source, left)
	}
}

func TestAServerIsMountedFromOnlyWhereItMayBe(t *testing.T) {
	b := newBench(t)
	proc, _ := network(t)
	const refused, tried = grant.CodeInvalidSource, grant.CodeMountFailed
	for _, c := range []struct {
		servers []string
		source  string
		code    grant.Code
		says    string
	}{
		{nil, "127.0.0.1:/x", refused, "is the node itself"},
		{nil, "127.9.9.9:/x", refused, "is the node itself"},
		{nil, "[::1]:/x", refused, "is the node itself"},
		{nil, "[::ffff:127.0.0.1]:/x", refused, "is the node itself"},
		{nil, "0.0.0.0:/x", refused, "that is none"},
		{nil, "0.1.2.3:/x", refused, "that is none"},
		{nil, "169.254.169.254:/x", refused, "metadata"},
		{nil, "[fe80::1]:/x", refused, "node's own link"},
		{nil, "[fd00:ec2::254]:/x", refused, "metadata"},
		{nil, "100.100.100.200:/x", refused, "metadata"},
		{nil, "[fd20:ce::254]:/x", refused, "metadata"},
		{nil, "[64:ff9b::7f00:1]:/x", refused, "is the node itself"},
		{nil, "[64:ff9b:1::a9fe:a9fe]:/x", refused, "node's own link"},
		{nil, "[::ffff:0:7f00:1]:/x", refused, "is the node itself"},
		{nil, "[fec0::1]:/x", refused, "node's own link"},
		{nil, "240.0.0.1:/x", refused, "that is none"},
		{nil, "224.0.0.1:/x", refused, "of many"},
		{nil, "here:/x", refused, "is the node itself"},
		{nil, "mapped:/x", refused, "metadata"},
		{nil, "nowhere:/x", tried, "the name does not exist"},
		{nil, "outside:/x", tried, "cannot be reached at 203.0.113.7"},
		{nil, "both:/x", tried, "cannot be reached at 203.0.113.7"},
		{[]string{"127.0.0.0/8"}, "here:/x", tried, "cannot be reached at 127.0.0.1"},
		{[]string{"127.0.0.0/8"}, "outside:/x", refused, "not among those"},
		{[]string{"here"}, "here:/x", refused, "is the node itself"},
		{[]string{"OUTSIDE."}, "outside:/x", tried, "cannot be reached"},
		{[]string{"outside"}, "203.0.113.7:/x", refused, "not among those"},
		{[]string{"outside"}, "nowhere:/x", refused, "not among those"},
		{[]string{"203.0.113.7"}, "203.0.113.7:/x", tried, "cannot be reached"},
		{[]string{"203.0.113.7"}, "203.0.113.8:/x", refused, "not among those"},
	} {
		f := filesystem(t, b, b.table, proc, c.servers...)
		failsWith(t, b, f, c.source, c.code, c.says)
	}
}

func TestTheNodeIsNotMountedFromByAnotherAddressOfItsOwnEither(t *testing.T) {
	b := newBench(t)
	proc, in := network(t)
	listen(t, in, nfs, 8)
	in(func() error {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		lo, err := unix.NewIfreq("lo:1")
		if err != nil {
			return err
		}
		return errors.Join(lo.SetInet4Addr([]byte{10, 9, 9, 9}), unix.IoctlIfreq(s, unix.SIOCSIFADDR, lo))
	})
	failsWith(t, b, filesystem(t, b, mnttest.New(), proc), "10.9.9.9:/x", grant.CodeInvalidSource, "is the node itself")
	_, err := filesystem(t, b, mnttest.New(), proc, "10.0.0.0/8").Deliver(t.Context(), b.tree, exported(t, "10.9.9.9:/x", grant.ReadWrite), delivery.Credential{})
	must(t, err)
}

func TestAServerThatIsNotThereCostsTheBoundAndNoThread(t *testing.T) {
	b := newBench(t)
	proc, in := network(t)
	f := filesystem(t, b, b.table, proc, "127.0.0.1")
	failsWith(t, b, f, "127.0.0.1:/x", grant.CodeMountFailed, "ECONNREFUSED")
	listen(t, in, nfs, 0)
	in(func() error { // fill the backlog
		for range 2 {
			s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				return err
			}
			t.Cleanup(func() { unix.Close(s) })
			err = unix.Connect(s, &unix.SockaddrInet4{Port: 2049, Addr: [4]byte{127, 0, 0, 1}})
			if err != nil && !errors.Is(err, unix.EINPROGRESS) {
				return err
			}
		}
		return nil
	})
	began := time.Now()
	failsWith(t, b, f, "127.0.0.1:/x", grant.CodeMountFailed, "ETIMEDOUT")
	if took := time.Since(began); took < f.Bound || took > 10*f.Bound {
		t.Errorf("it took %s", took)
	}
	if lost := b.bind.Budget.Lost(); lost != 0 {
		t.Errorf("%d threads are lost", lost)
	}
}

// A kernel without an NFS client, as many have that are not for servers. Where this
// machine's has one, it is the server that does not answer.
func TestAKernelWithoutAnNFSClientIsTheAnswer(t *testing.T) {
	b := newBench(t)
	proc, in := network(t)
	listen(t, in, nfs, 8)
	f := filesystem(t, b, withoutNFS{b.table}, proc, "127.0.0.1")
	failsWith(t, b, f, "127.0.0.1:/x", grant.CodeMountFailed, "no NFS client: load its modules")
	must(t, f.Usable(t.Context())) // the node serves everything else
}

// withoutNFS is the kernel's table, asked for a filesystem that no kernel has.
type withoutNFS struct{ mnt.Table }

func (w withoutNFS) Mount(fs mnt.Filesystem, flags mnt.Flags) (mnt.Detached, error) {
	fs.Type = "none-" + fs.Type
	return w.Table.Mount(fs, flags)
}

// hanging is a table whose mounts wait for a server until it is let go.
type hanging struct {
	mnt.Table
	let chan struct{}
}

func (h hanging) Mount(fs mnt.Filesystem, flags mnt.Flags) (mnt.Detached, error) {
	<-h.let
	return h.Table.Mount(mnt.Filesystem{Type: "tmpfs", Source: fs.Source}, flags)
}

func TestAServerThatAcceptsAndNeverAnswersCostsOneThreadAnExportAndAFewInAll(t *testing.T) {
	b := newBench(t)
	proc, in := network(t)
	listen(t, in, nfs, 100)
	table := hanging{b.table, make(chan struct{})}
	f := filesystem(t, b, table, proc, "127.0.0.1")
	f.Bound = time.Second
	var wg sync.WaitGroup
	for range 2 {
		for _, export := range strings.Fields("a b c d e f") {
			m := exported(t, "127.0.0.1:/"+export, grant.ReadWrite)
			wg.Go(func() {
				_, err := f.Deliver(t.Context(), b.tree, m, delivery.Credential{})
				if code, why := delivery.Explain(err); code != grant.CodeMountFailed || !strings.Contains(why, "does not answer") {
					t.Errorf("%s: %s %q", m.Source(), code, why)
				}
			})
		}
	}
	wg.Wait()
	if lost := b.bind.Budget.Lost(); lost != 4 {
		t.Errorf("%d threads are lost", lost)
	}
	for _, export := range strings.Fields("a b c d e f g h") {
		failsWith(t, b, f, "127.0.0.1:/"+export, grant.CodeMountFailed, "does not answer")
	}
	if lost := b.bind.Budget.Lost(); lost < 4 || lost > 6 { // one more now and then
		t.Errorf("%d threads are lost", lost)
	}
	close(table.let)
	f.Bound = 30 * time.Second
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for late := time.After(time.Minute); b.bind.Budget.Lost() > 0; {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("the threads do not come back")
		}
	}
	_, err := f.Deliver(t.Context(), b.tree, exported(t, "127.0.0.1:/a", grant.ReadWrite), delivery.Credential{})
	must(t, err)
	must(t, f.Undo(t.Context(), b.tree, "target", false))
}

// asked keeps what the kernel was asked to mount, and mounts a tmpfs instead.
type asked struct {
	mnt.Table
	refuse map[string]error // by version
	fs     []mnt.Filesystem
}

func (a *asked) Mount(fs mnt.Filesystem, flags mnt.Flags) (mnt.Detached, error) {
	a.fs = append(a.fs, fs)
	if err := a.refuse[value(fs, "vers")]; err != nil {
		return nil, err
	}
	return a.Table.Mount(mnt.Filesystem{Type: "tmpfs", Source: fs.Source, ReadOnly: fs.ReadOnly}, flags)
}

func value(fs mnt.Filesystem, key string) string {
	for _, s := range fs.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return "none"
}

func TestAnExportIsMountedAtTheAddressThatWasCheckedWithItsFlagsAndTheNewestVersion(t *testing.T) {
	b := newBench(t)
	proc, in := network(t)
	listen(t, in, nfs, 100)
	a := &asked{Table: b.table, refuse: map[string]error{
		"4.2": &mnt.KernelError{Step: "create", Err: unix.EPROTONOSUPPORT}, "4.1": &mnt.KernelError{Step: "vers", Err: unix.EINVAL},
	}}
	f := filesystem(t, b, a, proc, "127.0.0.1")
	rec, err := f.Deliver(t.Context(), b.tree, exported(t, "here:/srv/data", grant.ReadOnly), delivery.Credential{})
	must(t, err)
	if want := mnt.NoSUID | mnt.NoDev | mnt.ReadOnly | mnt.NoExec; rec.Flags != want || !rec.SameAs(b.place(t)) {
		t.Errorf("recorded %+v", rec)
	}
	if len(a.fs) != 3 || value(a.fs[0], "vers") != "4.2" || value(a.fs[1], "vers") != "4.1" || value(a.fs[2], "vers") != "4.0" {
		t.Fatalf("asked for %+v", a.fs)
	}
	for key, want := range map[string]string{
		"addr": "127.0.0.1", "clientaddr": "127.0.0.1", "proto": "tcp", "soft": "", "timeo": "20", "retrans": "2", "nosharecache": "",
	} {
		if got := value(a.fs[2], key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if fs := a.fs[2]; fs.Type != "nfs4" || fs.Source != "here:/srv/data" || !fs.ReadOnly {
		t.Errorf("asked for %+v", fs)
	}
	must(t, f.Alive(t.Context(), b.tree, "target"))
	must(t, f.Undo(t.Context(), b.tree, "target", false))
	must(t, f.Undo(t.Context(), b.tree, "target", false))
	if left := b.inTree(t); len(left) != 0 {
		t.Errorf("left %v", left)
	}
	wants(t, "a mount that was undone", f.Alive(t.Context(), b.tree, "target"), unix.ENOENT)
	a.refuse["4.0"] = &mnt.KernelError{Step: "create", Err: unix.EPROTONOSUPPORT}
	failsWith(t, b, f, "here:/srv", grant.CodeMountFailed, "none of NFS 4.2, 4.1, 4.0 in common")
	a.refuse["4.2"] = &mnt.KernelError{Step: "create", Words: "NFS4: Couldn't follow remote path", Err: unix.ENOENT}
	failsWith(t, b, f, "here:/srv", grant.CodeMountFailed, "has no export /srv for this node (NFS4: Couldn't follow remote path)")
}

// Refusals as the kernel says them: a server that has not the version, and a kernel
// that has not its module.
var (
	notThere = &mnt.KernelError{Step: "create", Err: unix.EPROTONOSUPPORT}
	noModule = &mnt.KernelError{Step: "create", Words: "NFS: Version unavailable", Err: unix.EPROTONOSUPPORT}
)

// asksFor wants the versions that the kernel was asked for since the last look.
func (a *asked) asksFor(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for _, fs := range a.fs {
		got = append(got, value(fs, "vers"))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the kernel was asked for %v, want %v", got, want)
	}
	a.fs = nil
}

func TestAServerThatHasNFS3AloneIsMountedReadOnlyWithoutLocks(t *testing.T) {
	b := newBench(t)
	proc, in := network(t)
	listen(t, in, nfs, 100)
	listen(t, in, portmapper, 100)
	a := &asked{Table: b.table, refuse: map[string]error{"4.2": notThere, "4.1": notThere, "4.0": notThere}}
	f := filesystem(t, b, a, proc, "127.0.0.2") // the node has another address on the connection
	rec, err := f.Deliver(t.Context(), b.tree, exported(t, "127.0.0.2:/srv/data", grant.ReadOnly), delivery.Credential{})
	must(t, err)
	if want := mnt.NoSUID | mnt.NoDev | mnt.ReadOnly | mnt.NoExec; rec.Flags != want || !rec.SameAs(b.place(t)) {
		t.Errorf("recorded %+v", rec)
	}
	three := a.fs[len(a.fs)-1]
	a.asksFor(t, "4.2", "4.1", "4.0", "3")
	if three.Type != "nfs" || three.Source != "127.0.0.2:/srv/data" || !three.ReadOnly {
		t.Errorf("asked for %+v", three)
	}
	for key, want := range map[string]string{
		"addr": "127.0.0.2", "proto": "tcp", "port": "2049", "mountaddr": "127.0.0.2", "mountproto": "tcp", "nolock": "",
		"soft": "", "timeo": "20", "retrans": "2", "nosharecache": "", "clientaddr": "none",
	} {
		if got := value(three, key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	must(t, f.Alive(t.Context(), b.tree, "target"))
	must(t, f.Undo(t.Context(), b.tree, "target", false))
}

func TestNFS3IsAskedForLastAndForNobodyWhoWrites(t *testing.T) {
	without4 := map[string]error{"4.2": notThere, "4.1": notThere, "4.0": notThere}
	with := func(vers string, err error) map[string]error {
		refuse := maps.Clone(without4)
		refuse[vers] = err
		return refuse
	}
	four, all := []string{"4.2", "4.1", "4.0"}, []string{"4.2", "4.1", "4.0", "3"}
	for _, c := range []struct {
		name   string
		mode   grant.Mode
		refuse map[string]error
		says   string
		asks   []string
	}{
		{"a writer", grant.ReadWrite, without4, "none of NFS 4.2, 4.1, 4.0 in common, and NFS 3 is for read-only grants alone, because its locks do not hold between sandboxes: grant it read-only, or turn NFS 4 on at the server", four},
		{"a writer, and no module for 4", grant.ReadWrite, map[string]error{"4.2": noModule, "4.1": noModule, "4.0": noModule}, "none of NFS 4.2, 4.1, 4.0 in common: load the module of this node's kernel (modprobe nfsv4) (NFS: Version unavailable)", four},
		{"neither", grant.ReadOnly, with("3", notThere), "none of NFS 4.2, 4.1, 4.0, 3 in common: turn NFS 4 on at the server", all},
		{"no module for 3", grant.ReadOnly, with("3", noModule), "none of NFS 4.2, 4.1, 4.0 in common, and this node's kernel has no NFS 3: load its module (modprobe nfsv3), or turn NFS 4 on at the server", all},
		{"4 is there and the export is not", grant.ReadOnly, map[string]error{"4.2": &mnt.KernelError{Step: "create", Err: unix.ENOENT}}, "has no export /srv", four[:1]},
		{"4.1 is there and the node is not let in", grant.ReadOnly, map[string]error{"4.2": notThere, "4.1": &mnt.KernelError{Step: "create", Err: unix.EACCES}}, "does not let this node mount /srv", four[:2]},
		{"3 has no mountd", grant.ReadOnly, with("3", &mnt.KernelError{Step: "create", Err: unix.EOPNOTSUPP}), "has only NFS 3 for this node, and no mountd that its portmapper knows: start it with version 3, or turn NFS 4 on at the server", all},
		{"3 is there and the export is not", grant.ReadOnly, with("3", &mnt.KernelError{Step: "create", Err: unix.ENOENT}), "has no export /srv", all},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			proc, in := network(t)
			listen(t, in, nfs, 100)
			listen(t, in, portmapper, 100)
			a := &asked{Table: b.table, refuse: c.refuse}
			modeFailsWith(t, b, filesystem(t, b, a, proc, "127.0.0.1"), "here:/srv", c.mode, grant.CodeMountFailed, c.says)
			a.asksFor(t, c.asks...)
		})
	}
}

// The kernel's own question would wait for as long as a firewall is silent.
func TestAServerWithoutAPortmapperIsNotAskedForNFS3(t *testing.T) {
	b := newBench(t)
	proc, in := network(t)
	listen(t, in, nfs, 100)
	a := &asked{Table: b.table, refuse: map[string]error{"4.2": notThere, "4.1": notThere, "4.0": notThere}}
	modeFailsWith(t, b, filesystem(t, b, a, proc, "127.0.0.1"), "here:/srv", grant.ReadOnly, grant.CodeMountFailed,
		"none of NFS 4.2, 4.1, 4.0 in common, and its portmapper, which NFS 3 needs, cannot be reached at 127.0.0.1, port 111: ECONNREFUSED")
	a.asksFor(t, "4.2", "4.1", "4.0")
}

func TestWhatSecretsAreRefusedByIsTheirCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		code grant.Code
		says string
	}{
		{&secret.RefusedError{Reason: "the Secret is somebody else's"}, grant.CodeSecretRefused, "somebody else's"},
		{fmt.Errorf("%w: https://10.0.0.1:443 refused", secret.ErrUnavailable), grant.CodeMountFailed, "the API server does not answer"},
	} {
		if code, text := delivery.Explain(c.err); code != c.code || !strings.Contains(text, c.says) || strings.Contains(text, "10.0.0.1") {
			t.Errorf("%v is explained as %s: %s", c.err, code, text)
		}
	}
}

func TestATableInMemoryDeliversExportsAsWell(t *testing.T) {
	b := newBench(t)
	proc, in := network(t)
	listen(t, in, nfs, 8)
	table := mnttest.New()
	f := filesystem(t, b, table, proc, "127.0.0.1")
	rec, err := f.Deliver(t.Context(), b.tree, exported(t, "here:/srv", grant.ReadWrite), delivery.Credential{})
	must(t, err)
	if rec.Flags != mnt.NoSUID|mnt.NoDev|mnt.NoExec {
		t.Errorf("recorded %+v", rec)
	}
	must(t, f.Undo(t.Context(), b.tree, "target", false))
	if left := len(table.Mounts()); left != 1 {
		t.Errorf("%d mounts are left", left)
	}
}
