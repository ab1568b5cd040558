// Package system_test runs the agent as it runs on a node: a process of its own,
// in a mount namespace of its own, against a real kube-apiserver and the real
// kernel, with the rights of its Role and no others. The tests play kubelet and
// the container runtime.
package system_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/simnode"
)

// atOnce is how many tests run at the same time. They wait most of the time, so
// that is more than there are cores.
const atOnce = "6"

func TestMain(m *testing.M) {
	simnode.Main()
	if os.Getenv(roleEnv) != "" {
		os.Exit(agentRole())
	}
	if err := simnode.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// simnode shows a container's cgroup by a mount on its /proc entry. Agents have
	// namespaces of their own here, and have to see it too.
	err := unix.Mount("", "/proc", "", unix.MS_SHARED, "")
	flag.Parse()
	if !flagGiven("test.parallel") {
		err = errors.Join(err, flag.Set("test.parallel", atOnce))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func flagGiven(name string) bool {
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	return given
}

// TestSystem is one test because all of it shares one API server.
func TestSystem(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for name, story := range map[string]func(*testing.T, *cluster){
		"the agent needs its Role and nothing else": agentNeedsItsRole,
		"nor does it need to write events":          withoutEvents,
		"one that may not answer says so":           withoutPatch,
		"killed at every point it loses nothing":    killedAtEveryPoint,
		"nor between two system calls":              killedBetweenSystemCalls,
		"nor where something else is asked then":    killedAndAskedForSomethingElse,
		"nor does it forget who holds a mount":      killedWhileHeld,
		"nor keep the next agent from the node":     replacedWhileStorageHangs,
		"a hundred restarts double nothing":         manyRestarts,
		"nor do they where host paths overlap":      overlappingRestarts,
		"an answer is what the agent says":          answersAreTheAgents,
		"a change costs one patch":                  onePatchForEachChange,
		"one grant that fails costs no other":       oneFailsForEver,
		"two writers at once lose nothing":          twoWriters,
		"a set that changes all the time":           everChangingSet,
		"a Pod made again gets no old answer":       podMadeAgain,
		"a stale list releases nothing":             staleList,
		"a Pod that failed is released":             failedPod,
		"mounts stay until the containers end":      longPreStop,
		"a Pod that goes without the agent":         podGoesUnseen,
		"a node that booted again":                  rebootedNode,
		"nor is what outlived the boot believed":    rebootedAroundATree,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			story(t, c)
		})
	}
}

// TestTheAPIServerMayGoAway has an API server of its own, because it ends it.
func TestTheAPIServerMayGoAway(t *testing.T) {
	t.Parallel()
	apiServerAway(t, newCluster(t))
}
