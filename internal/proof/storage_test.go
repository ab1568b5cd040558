package proof_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/proof"
	"github.com/datalayer/node-mounts/internal/simnode"
)

func TestMain(m *testing.M) {
	simnode.Main()
	if err := simnode.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// server is a filesystem with one folder, of which the kernel may keep everything for
// an hour: its attributes, its names, and that it can be opened. A client of NFS
// keeps the same for as long as its options say.
type server struct {
	fs.Inode
	asked atomic.Int32
	fails atomic.Int32                  // the errno of every answer, 0: none fails
	gate  atomic.Pointer[chan struct{}] // nil, or what an answer waits for
}

var _ = (interface {
	fs.NodeGetattrer
	fs.NodeOpendirHandler
	fs.NodeReaddirer
})((*server)(nil))

func (s *server) answers() syscall.Errno {
	s.asked.Add(1)
	if gate := s.gate.Load(); gate != nil {
		<-*gate
	}
	return syscall.Errno(s.fails.Load())
}

func (s *server) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Nlink = syscall.S_IFDIR|0o755, 2
	return s.answers()
}

// OpendirHandle has the kernel open folders by itself from now on.
func (s *server) OpendirHandle(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	s.asked.Add(1)
	return nil, 0, syscall.ENOSYS
}

func (s *server) Readdir(context.Context) (fs.DirStream, syscall.Errno) {
	if errno := s.answers(); errno != 0 {
		return nil, errno
	}
	return fs.NewListDirStream([]fuse.DirEntry{{Name: "a", Mode: syscall.S_IFDIR, Ino: 2}}), 0
}

// mounted is a folder with the server's mount on "target", which has been read once.
func (s *server) mounted(t *testing.T) (in string) {
	t.Helper()
	in = t.TempDir()
	at := filepath.Join(in, "target")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	long := time.Hour
	f, err := fs.Mount(at, s, &fs.Options{
		AttrTimeout: &long, EntryTimeout: &long, NegativeTimeout: &long,
		MountOptions: fuse.MountOptions{DirectMountStrict: true, AllowOther: true, Name: "server", DisableReadDirPlus: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Unmount(); err != nil {
			t.Error(err)
		}
	})
	if _, err := os.ReadDir(at); err != nil {
		t.Fatal(err)
	}
	return in
}

// answers asks as a pass does that has just mounted, or looks after what stands.
func answers(t *testing.T, in string, bound time.Duration) error {
	t.Helper()
	tree, err := beneath.OpenRoot(in)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	s := &proof.Storage{Table: &mnt.Kernel{}, Budget: &deadline.Budget{}, Bound: bound, PerMount: 1}
	return s.Answers(t.Context(), tree, "target", nil)
}

func reads(t *testing.T, in string) error {
	t.Helper()
	dir, err := beneath.OpenRoot(filepath.Join(in, "target"))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	return proof.Reads(dir)
}

func TestAProofComesFromTheServerAndNotFromWhatIsKeptOfIt(t *testing.T) {
	s := &server{}
	in := s.mounted(t)
	// Once more, and nothing is asked: the kernel keeps it.
	before := s.asked.Load()
	if _, err := os.ReadDir(filepath.Join(in, "target")); err != nil || s.asked.Load() != before {
		t.Fatalf("reading it again asks the server %d times, %v: the test shows nothing", s.asked.Load()-before, err)
	}
	for name, prove := range map[string]func() error{
		"a source":         func() error { return reads(t, in) },
		"a standing mount": func() error { return answers(t, in, time.Minute) },
	} {
		before := s.asked.Load()
		if err := prove(); err != nil || s.asked.Load() == before {
			t.Errorf("%s: %v, with %d requests to the server", name, err, s.asked.Load()-before)
		}
	}
	for errno, want := range map[unix.Errno]error{unix.EIO: unix.EIO, unix.EACCES: unix.EACCES, unix.ESTALE: proof.ErrDeleted} {
		s.fails.Store(int32(errno))
		if err := reads(t, in); !errors.Is(err, want) {
			t.Errorf("a server that says %v: %v, expected %v", errno, err, want)
		}
		if err := answers(t, in, time.Minute); !errors.Is(err, want) {
			t.Errorf("a server that says %v, of a standing mount: %v, expected %v", errno, err, want)
		}
	}
}

func TestAServerThatHangsIsSaidToHangWhateverIsKeptOfIt(t *testing.T) {
	s := &server{}
	in := s.mounted(t)
	gate := make(chan struct{})
	s.gate.Store(&gate)
	err := answers(t, in, 100*time.Millisecond)
	close(gate)
	if !errors.Is(err, deadline.ErrHung) {
		t.Errorf("it says %v", err)
	}
}

func TestAnEmptyFolderAnswersAndADeletedOneIsSaidToBe(t *testing.T) {
	in := t.TempDir()
	at := filepath.Join(in, "target")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := reads(t, in); err != nil {
		t.Errorf("an empty folder: %v", err)
	}
	if err := answers(t, in, time.Minute); !errors.Is(err, proof.ErrNotAMount) {
		t.Errorf("a folder that is no mount: %v", err)
	}
	dir, err := beneath.OpenRoot(at)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := os.Remove(at); err != nil {
		t.Fatal(err)
	}
	if err := proof.Reads(dir); !errors.Is(err, proof.ErrDeleted) {
		t.Errorf("a deleted folder: %v", err)
	}
}
