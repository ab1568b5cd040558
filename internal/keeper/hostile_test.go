package keeper_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/keeper"
)

func (w *world) dial() *net.UnixConn {
	w.t.Helper()
	c, err := keeper.DialSocket(w.socket)(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		w.t.Fatal(err)
	}
	return c.(*net.UnixConn)
}

// say sends a packet as it is, and returns the answer; "" where the keeper hangs up.
func (w *world) say(text string, descriptors ...int) string {
	w.t.Helper()
	c := w.dial()
	defer func() { _ = c.Close() }()
	var rights []byte
	if len(descriptors) > 0 {
		rights = unix.UnixRights(descriptors...)
	}
	if text == "" {
		w.sayNothing(c, rights)
	} else if _, _, err := c.WriteMsgUnix([]byte(text), rights, nil); err != nil {
		w.t.Fatal(err)
	}
	b := make([]byte, 1<<20)
	n, err := c.Read(b)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		w.t.Fatal(err)
	}
	return string(b[:n])
}

// sayNothing sends descriptors with an empty packet, to which Go would add a byte.
func (w *world) sayNothing(c *net.UnixConn, rights []byte) {
	w.t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		w.t.Fatal(err)
	}
	header := unix.Msghdr{Control: &rights[0], Controllen: uint64(len(rights))}
	var errno unix.Errno
	if err := raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&header)), 0)
	}); err != nil || errno != 0 {
		w.t.Fatal(err, errno)
	}
}

func TestNonsenseIsRefusedAndItsDescriptorsAreClosed(t *testing.T) {
	w := newWorld(t)
	pipe := func() (read, write *os.File) {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { read.Close(); write.Close() })
		return read, write
	}
	const start = `{"protocol":1,"op":"start","start":{"use":"u","args":["Y2hpbGQ="],"uid":1,"gid":1,"files":1}}`
	for name, c := range map[string]struct {
		text        string
		descriptors int
		want        string // in the answer
	}{
		"garbage":              {"\x00\xff\x17 garbage", 1, "not the JSON"},
		"half a message":       {start[:40], 2, "not the JSON"},
		"another type":         {`{"protocol":1,"op":["start"]}`, 1, "not the JSON"},
		"deep":                 {strings.Repeat(`{"a":`, 20000), 1, "not the JSON"},
		"null":                 {`null`, 1, "no protocol"},
		"nothing":              {"", 7, ""},
		"hardly anything":      {" ", 7, "not the JSON"},
		"no protocol":          {`{"op":"list"}`, 1, "no protocol"},
		"an unknown operation": {`{"protocol":9,"op":"dance"}`, 1, "protocol 1"},
		"no start":             {`{"protocol":1,"op":"start"}`, 1, "nothing to start"},
		"no descriptor":        {start, 0, "0 descriptors came, 2 are wanted"},
		"too few descriptors":  {start, 1, "1 descriptors came, 2 are wanted"},
		"too many descriptors": {start, 3, "3 descriptors came, 2 are wanted"},
		"a hundred":            {start, 100, "100 descriptors came"},
		"all the kernel takes": {start, 253, "253 descriptors came"},
		"two with a list":      {`{"protocol":1,"op":"list"}`, 2, "2 descriptors came, 0 are wanted"},
		"negative files":       {strings.Replace(start, `"files":1`, `"files":-1`, 1), 1, "files"},
		"too long":             {strings.Repeat(" ", 140<<10), 5, "cut"},
		"no child":             {`{"protocol":1,"op":"stop"}`, 1, "no child is named"},
	} {
		t.Run(name, func(t *testing.T) {
			w := *w
			w.t = t
			read, write := pipe()
			raw, err := write.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			var got string
			if err := raw.Control(func(fd uintptr) { got = w.say(c.text, slices.Repeat([]int{int(fd)}, c.descriptors)...) }); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
				t.Errorf("the answer is %q, want %q", got, c.want)
			}
			if got != "" && !strings.Contains(got, `"instance"`) {
				t.Errorf("the answer does not begin with who the keeper is: %q", got)
			}
			// The pipe ends when the last copy of its end is closed.
			write.Close()
			if err := read.SetReadDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			if _, err := read.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("a descriptor is still open: %v", err)
			}
		})
	}
	if _, err := w.Info(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestThoseWhoSayNothingStopNobody(t *testing.T) {
	w := newWorld(t)
	for range 100 {
		w.dial()
	}
	began := time.Now()
	if _, err := w.Info(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("answered in %v", time.Since(began))
	// The keeper hangs up on one who says nothing.
	c := w.dial()
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("%d, %v", n, err)
	}
}

func TestClientsThatVanishLeaveNothing(t *testing.T) {
	w := newWorld(t)
	if _, err := w.Info(t.Context()); err != nil { // it has opened what it needs
		t.Fatal(err)
	}
	before := len(names(t, "/proc/self/fd"))
	ask, err := json.Marshal(map[string]any{"protocol": 1, "op": "start", "start": map[string]any{
		"use": "vanished", "args": [][]byte{[]byte(roleChild), []byte("stubborn")}, "uid": ada, "gid": users, "files": 1,
	}})
	if err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	exe := program(t)
	for range 20 {
		c := w.dial()
		if _, _, err := c.WriteMsgUnix(ask, unix.UnixRights(int(exe.Fd()), int(write.Fd())), nil); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		_ = w.dial().Close()
	}
	write.Close()
	exe.Close()
	eventually(t, "the children are ended", func() bool {
		_, all, err := w.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			if c.Ended == nil {
				return false
			}
		}
		return len(all) == 20 && len(processesOf(ada)) == 0
	})
	read.Close()
	eventually(t, "nothing is open", func() bool { return len(names(t, "/proc/self/fd")) <= before })
}

func TestAClientThatTakesNoAnswerIsLeft(t *testing.T) {
	w := newWorld(t)
	note := make([]byte, keeper.MaxNote)
	for range 30 { // more than the socket's buffer
		k := w.start(func(s *keeper.Start) { s.Note = note }, "exit", "0", "")
		w.waitFor(k)
	}
	c := w.dial()
	if _, err := c.Write([]byte(`{"protocol":1,"op":"list"}`)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the keeper gives up", func() bool { return strings.Contains(w.log.String(), "an answer was not taken") })
	if _, all, err := w.List(t.Context()); err != nil || len(all) != 30 {
		t.Errorf("%d, %v", len(all), err)
	}
}

func TestAMessageOfTomorrowIsUnderstood(t *testing.T) {
	w := newWorld(t)
	got := w.say(`{"protocol":7,"op":"list","colour":"red","start":{"future":[1]},"id":"none"}`)
	var a struct {
		Protocol int
		Instance string
		Failure  any
	}
	if err := json.Unmarshal([]byte(got), &a); err != nil || a.Protocol != keeper.Protocol || a.Instance == "" || a.Failure != nil {
		t.Errorf("%s, %v", got, err)
	}
}

func TestAnAnswerOfTomorrowIsUnderstood(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want error
	}{
		"more fields":     {`{"protocol":9,"instance":"i","x":{},"children":[{"id":"a","y":1,"ended":{"code":4,"z":[]}}]}`, nil},
		"unknown failure": {`{"protocol":9,"instance":"i","failure":{"code":"new","message":"m"}}`, &keeper.RemoteError{}},
		"known failure":   {`{"protocol":9,"instance":"i","failure":{"code":"unknown-child","message":"m"}}`, keeper.ErrUnknownChild},
		"nonsense":        {`{"protocol":`, keeper.ErrUnavailable},
		"no child":        {`{"protocol":1,"instance":"i"}`, &keeper.RemoteError{}},
	} {
		t.Run(name, func(t *testing.T) {
			path := shortDir(t) + "/keeper.sock"
			l, err := keeper.Listen(path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			go func() {
				conn, err := l.AcceptUnix()
				if err != nil {
					return
				}
				defer func() { _ = conn.Close() }()
				_, _ = conn.Read(make([]byte, 1000))
				_, _ = conn.Write([]byte(c.text))
			}()
			client := &keeper.Client{Dial: keeper.DialSocket(path), Timeout: patience}
			got, err := client.Child(t.Context(), "a")
			var remote *keeper.RemoteError
			switch {
			case c.want == nil && (err != nil || got.ID != "a" || got.Ended == nil || got.Ended.Code != 4):
				t.Errorf("%v, %v", got, err)
			case c.want == nil:
			case errors.As(c.want, &remote) && errors.As(err, &remote):
			case !errors.Is(err, c.want):
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

const strangerVariable = "KEEPER_TEST_STRANGER"

// stranger is another user who has found a way to the socket. It exits with 0 if it is
// told nothing.
func stranger(path string) int {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		fmt.Println(err)
		return 3
	}
	_, _ = c.Write([]byte(`{"protocol":1,"op":"info"}`))
	b, err := io.ReadAll(c)
	if len(b) != 0 {
		fmt.Printf("%s\n", b)
		return 4
	}
	if err != nil && !errors.Is(err, unix.ECONNRESET) {
		fmt.Println(err)
		return 5
	}
	return 0
}

func TestOnlyRootIsAnswered(t *testing.T) {
	w := newWorld(t)
	ask := func() (int, string) {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{strangerVariable + "=" + w.socket}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ada, Gid: users}}
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	if code, out := ask(); code != 3 || !strings.Contains(out, "permission denied") {
		t.Errorf("the folder lets a stranger in: %d %s", code, out)
	}
	if err := errors.Join(os.Chmod(w.dir+"/s", 0o755), os.Chmod(w.socket, 0o777)); err != nil {
		t.Fatal(err)
	}
	if code, out := ask(); code != 0 {
		t.Errorf("a stranger is answered: %d %s", code, out)
	}
	eventually(t, "the refusal is in the log", func() bool { return strings.Contains(w.log.String(), `"uid":12345,"error":null`) })
}

func TestTheSocketMustBeRoots(t *testing.T) {
	w := newWorld(t)
	info := func() error {
		_, err := w.Info(t.Context())
		return err
	}
	if err := info(); err != nil {
		t.Fatal(err)
	}
	folder := w.dir + "/s"
	for name, c := range map[string]struct {
		do, undo func() error
		words    string
	}{
		"another's folder":      {func() error { return os.Chown(folder, ada, 0) }, func() error { return os.Chown(folder, 0, 0) }, "user 12345"},
		"an open folder":        {func() error { return os.Chmod(folder, 0o770) }, func() error { return os.Chmod(folder, 0o700) }, "mode 0770"},
		"another's socket":      {func() error { return os.Chown(w.socket, ada, 0) }, func() error { return os.Chown(w.socket, 0, 0) }, "no socket of root's"},
		"a link for the folder": {func() error { return link(folder) }, func() error { return unlink(folder) }, "symbolic link"},
		"a link for the socket": {func() error { return link(w.socket) }, func() error { return unlink(w.socket) }, "no socket of root's"},
		"a link on the way":     {func() error { return link(w.dir) }, func() error { return unlink(w.dir) }, "symbolic link"},
	} {
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		if err := info(); !errors.Is(err, keeper.ErrUnavailable) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v", name, err)
		}
		if err := c.undo(); err != nil {
			t.Fatal(err)
		}
	}
	if err := info(); err != nil {
		t.Errorf("%v", err)
	}
}

// link puts a symbolic link where path was, that leads there.
func link(path string) error {
	return errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path))
}

func unlink(path string) error { return errors.Join(os.Remove(path), os.Rename(path+".real", path)) }

func TestALongPathIsNoHindrance(t *testing.T) {
	w := newWorld(t)
	long := shortDir(t) + "/" + strings.Repeat("x", 100)
	if err := errors.Join(os.Mkdir(long, 0o755), os.Rename(w.dir+"/s", long+"/s")); err != nil {
		t.Fatal(err)
	}
	client := &keeper.Client{Dial: keeper.DialSocket(long + "/s/keeper.sock")}
	if _, err := client.Info(context.Background()); err != nil {
		t.Error(err)
	}
	if err := os.Rename(long+"/s", w.dir+"/s"); err != nil {
		t.Fatal(err)
	}
}

func TestAStaleSocketIsReplacedAndNothingElse(t *testing.T) {
	path := shortDir(t) + "/sub/keeper.sock"
	first, err := keeper.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := keeper.Listen(path); err == nil || !strings.Contains(err.Error(), "another keeper") {
		t.Errorf("two keepers listen: %v", err)
	}
	first.SetUnlinkOnClose(false)
	_ = first.Close()
	second, err := keeper.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = second.Close()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := keeper.Listen(path); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file was replaced: %v", err)
	}
}

// A keeper closes the connection as soon as it has answered, and about one client in
// twenty thousand reads at that very moment.
func TestNoAnswerIsLostAtTheEndOfItsConnection(t *testing.T) {
	w := newWorld(t)
	var clients sync.WaitGroup
	for range 3 {
		clients.Go(func() {
			for range 25_000 {
				if _, err := w.Info(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	clients.Wait()
}
