package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	roleEnv = "NODE_MOUNTS_NODE_ROLE"
	runEnv  = "NODE_MOUNTS_NODE_RUN"

	roleLab     = "lab"
	roleMachine = "machine" // makes the machine's root and becomes its first process
	roleInit    = "init"    // is the machine's first process

	self = "/proc/self/exe"
)

// Addresses inside the lab. Its network is nobody else's, so they are fixed.
const (
	nodeAddress    = "10.123.0.1"
	serviceAddress = "10.96.0.1" // of the API, as Pods find it
	podRange       = "10.244.0.0/24"
	nodeName       = "node-1"
)

// Main is what TestMain of a package with a node in it calls:
//
//	os.Exit(node.Main(needs, m.Run))
//
// It asks needs once whether there is all that the tests need, executes the binary
// again in the lab, runs the tests there, and answers their exit status; or 1, with
// what it is on standard error, if the host is not afterwards what it was before.
func Main(needs func() error, run func() int) int {
	switch os.Getenv(roleEnv) {
	case "":
		if err := needs(); err != nil {
			fmt.Fprintf(os.Stderr, "error: %v\n", err)
			return 1
		}
		return outside()
	case roleLab:
		if err := furnishLab(); err != nil {
			fmt.Fprintf(os.Stderr, "error: making the network of the tests: %v\n", err)
			return 1
		}
		return run()
	case roleMachine:
		err := buildMachine()
		fmt.Fprintf(os.Stderr, "error: making the machine: %v\n", err)
		return 1
	case roleInit:
		return initRole()
	}
	fmt.Fprintf(os.Stderr, "error: %s=%q is no role\n", roleEnv, os.Getenv(roleEnv))
	return 2
}

// outside runs the lab and looks at the host before and after it.
func outside() int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "error: a node needs root, for its namespaces")
		return 1
	}
	run := fmt.Sprintf("%s%d", runPrefix, os.Getpid())
	before, err := ReadHost(os.Getpid())
	if err == nil {
		err = sweepRuns()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "error: looking at the host: %v\n", err)
		return 1
	}
	status, netns, err := runLab(run)
	if err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		return 1
	}
	left, err := before.Left(run, netns)
	if err == nil {
		err = removeRun(run)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "error: looking at the host again: %v\n", err)
		return 1
	}
	if len(left) > 0 {
		fmt.Fprintf(os.Stderr, "error: the node left on the host:\n  %s\n", strings.Join(left, "\n  "))
		if status == 0 {
			status = 1
		}
	}
	return status
}

// runLab starts this program in the lab and waits for it. It returns its exit
// status and the name of its network namespace.
func runLab(run string) (status int, netns string, err error) {
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), roleEnv+"="+roleLab, runEnv+"="+run)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	// The death signal comes when the thread that forked ends, not the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(stop)
	if err := cmd.Start(); err != nil {
		return 0, "", fmt.Errorf("starting the tests in namespaces of their own: %w", err)
	}
	netns, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	if err != nil {
		return 0, "", errors.Join(err, cmd.Process.Kill())
	}
	ended := make(chan struct{})
	go func() {
		select {
		case s := <-stop:
			// Asked to quit, `go test` waits for goroutines' stacks: those of the lab.
			if s == syscall.SIGQUIT {
				_ = cmd.Process.Signal(s)
				return
			}
			_ = cmd.Process.Kill()
		case <-ended:
		}
	}()
	err = cmd.Wait()
	close(ended)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, netns, nil
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode(), netns, nil
	case errors.As(err, &exit):
		fmt.Fprintf(os.Stderr, "error: the tests ended by %s\n", exit)
		return 1, netns, nil
	}
	return 0, netns, err
}

// furnishLab makes the lab's mounts its own and gives it a network: the node's
// address, and the API's service address without anything that forwards to it,
// because the API server listens on every address.
func furnishLab() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount --make-rprivate /: %w", err)
	}
	if err := unix.Sethostname([]byte(nodeName)); err != nil {
		return fmt.Errorf("sethostname: %w", err)
	}
	for _, line := range []string{
		"link set lo up",
		"address add " + serviceAddress + "/32 dev lo",
		// The two ends stand for a network card: kubelet wants a default route.
		"link add node type veth peer name world",
		"address add " + nodeAddress + "/24 dev node",
		"link set node up",
		"link set world up",
		"route add default dev node",
	} {
		if err := ip(line); err != nil {
			return err
		}
	}
	// Of the network namespace, as everything in /proc/sys/net/ipv4 that matters here.
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
}

func ip(line string) error {
	out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", line, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// unplug takes away the links that Pods of an ended machine had.
func unplug() error {
	names, err := links(os.Getpid())
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == "lo" || name == "node" || name == "world" {
			continue
		}
		// The kernel takes a Pod's link with the Pod's namespace, in its own time.
		if err := ip("link delete " + name); err != nil {
			if _, gone := os.Stat("/proc/sys/net/ipv4/conf/" + name); os.IsNotExist(gone) {
				continue
			}
			return err
		}
	}
	return nil
}

// RunName is the name of the cgroups of this run's nodes.
func RunName() string { return os.Getenv(runEnv) }
