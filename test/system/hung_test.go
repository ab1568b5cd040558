package system_test

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/lockfile"
)

// replacedWhileStorageHangs ends the agent while a call of its hangs in a storage that
// lets go of no caller, so that it cannot end: the next one serves Pods on other storage.
func replacedWhileStorageHangs(t *testing.T, c *cluster) {
	for name, signal := range map[string]unix.Signal{"killed": unix.SIGKILL, "told to end": unix.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := c.node(t)
			slow := newSlowStorage(t, filepath.Join(n.Claim, "slow"))
			hangs, other := n.run("sandbox"), n.run("other")
			first := n.startAgent(agentOptions{})
			ada, bob := home("home/users/ada", "ada"), home("home/users/bob", "bob")
			other.grant(ada)
			arrived := slow.hang()
			hangs.ask(dataset("slow/cats", "cats"))
			<-arrived
			must(t, unix.Kill(first.PID, signal))
			if signal == unix.SIGTERM {
				eventually(t, "the agent that ends to give up the journal", func() string {
					f, err := lockfile.Take(filepath.Join(n.Root, "journal", "lock"))
					if err != nil {
						return err.Error()
					}
					lockfile.Release(f)
					return ""
				})
			}

			n.agent = nil
			n.startAgent(agentOptions{})
			asked := other.ask(ada, bob)
			other.mustBeReady(other.answered(asked), []grant.Mount{ada, bob})
			if !first.Alive() {
				t.Error("the first agent has ended: its call did not hang")
			}

			slow.answer()
			<-first.Done
			hangs.delete()
			other.delete()
			slow.unmount()
		})
	}
}
