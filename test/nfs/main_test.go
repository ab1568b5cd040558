// Package nfs has tests of the kind nfs on a real client and a real server: those
// of a kernel in a virtual machine, because the kernel that runs the tests may have
// neither.
//
// One machine is one story of several chapters. It has three networks:
//
//   - the node's own, where the server listens on loopback;
//   - that of the process with the agent, in which there is nothing at all, not even
//     a loopback interface that is up: what is mounted there works only if it speaks
//     through the node's;
//   - one more for an agent that ends in the middle of the story.
package nfs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/simnode"
	"github.com/datalayer/node-mounts/test/vm"
)

// What this binary is started as in the machine. Each role but the last two
// becomes the next one.
const (
	roleServed  = "served"  // with an NFS server
	roleBare    = "bare"    // without, and without the client's modules
	roleStory   = "story"   // tells the story of the machine with a server
	roleRefusal = "refusal" // tells the other
	roleAgent   = "agent"   // mounts one export, and ends
)

func TestMain(m *testing.M) {
	vm.Init()
	simnode.Main()
	role := ""
	if len(os.Args) > 1 {
		role = os.Args[1]
	}
	var err error
	switch role {
	case roleServed:
		err = errors.Join(moveRoot(), startServer(), becomeAgent(roleStory))
	case roleBare:
		err = errors.Join(moveRoot(), becomeAgent(roleRefusal))
	case roleStory:
		err = tell(chapters())
	case roleRefusal:
		err = tell([]testing.InternalTest{{Name: "a node without the client", F: withoutClient}})
	case roleAgent:
		err = mountAndEnd(os.Args[2:])
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Println("error:", role, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// moveRoot puts what the machine's first file system holds onto a mount that can be
// left for another root: rootfs itself cannot.
func moveRoot() error {
	const at = "/run/root"
	return errors.Join(
		os.Mkdir(at, 0o755),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("/", at, "", unix.MS_BIND|unix.MS_REC, ""),
		os.Chdir(at),
		unix.Mount(at, "/", "", unix.MS_MOVE, ""),
		unix.Chroot("."),
		os.Chdir("/"),
	)
}

// becomeAgent goes on in a network of its own.
func becomeAgent(role string) error {
	runtime.LockOSThread() // what exec keeps is this thread's
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", []string{os.Args[0], role}, os.Environ())
}

// tell runs tests as `go test -v` does, and ends with their status.
func tell(tests []testing.InternalTest) error {
	if err := simnode.Enter(); err != nil {
		return err
	}
	os.Args = []string{os.Args[0], "-test.v"}
	testing.Main(func(string, string) (bool, error) { return true, nil }, tests, nil, nil)
	return nil
}
