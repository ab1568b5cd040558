package agentcmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/procs"
)

// OfflineOptions are the agent's settings that count where none runs: what it
// keeps where.
func OfflineOptions() []Option {
	return slices.DeleteFunc(Options(), func(o Option) bool {
		return !slices.Contains([]string{"root", "kubelet-dir", "volume-name"}, o.Flag)
	})
}

// AddOfflineFlags gives a command the flags of OfflineOptions.
func AddOfflineFlags(cmd *cobra.Command) { addFlags(cmd, OfflineOptions()) }

// OpenOffline opens what a dead agent has left on this node, by the flags of cmd
// and the agent's own variables. Its errors say what to do (Hint).
func OpenOffline(ctx context.Context, cmd *cobra.Command, log *slog.Logger) (*agent.Offline, error) {
	s, err := resolveThese(OfflineOptions(), lookUp(cmd), os.LookupEnv)
	if err != nil {
		return nil, err
	}
	if id := os.Geteuid(); id != 0 {
		return nil, refuse(fmt.Errorf("running as uid %d: only root can unmount", id), "run it as root, on the Pod's node")
	}
	boot, err := BootID(procDir)
	if err != nil {
		return nil, refuse(err, "mount /proc")
	}
	o, err := agent.OpenOffline(ctx, agent.Config{
		Policy: plan.Policy{VolumeName: s.volume}, Root: s.root, Kubelet: s.kubelet, BootID: boot,
		Table: &mnt.Kernel{}, Processes: procs.New(procDir), Budget: &deadline.Budget{}, Clock: clock.RealClock{}, Log: log,
	})
	switch {
	case errors.Is(err, journal.ErrLocked):
		return nil, refuse(fmt.Errorf("the agent of this node is running: %w", err),
			"leave it to the agent, which releases Pods that are gone; if it does not, stop it first")
	case errors.Is(err, agent.ErrNoAgent):
		return nil, refuse(err, "run it on the Pod's node, and check --root (%s)", s.root)
	case errors.Is(err, agent.ErrNotShared):
		return nil, refuse(err, "run it in the node's own mount namespace: nsenter --target 1 --mount -- node-mounts recover ...")
	case err != nil:
		return nil, refuse(err, "check --root (%s) and --kubelet-dir (%s)", s.root, s.kubelet)
	}
	return o, nil
}
