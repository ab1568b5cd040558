package agentcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/facts"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/nodeview"
	"github.com/datalayer/node-mounts/internal/obs"
)

// errCannotServe says that something was found that keeps the node from serving.
var errCannotServe = errors.New("this node cannot serve grants")

func newProbe(env func(string) (string, bool)) *cobra.Command {
	options := slices.DeleteFunc(Options(), func(o Option) bool {
		return !slices.Contains([]string{"shared-root", "root", "kubelet-dir"}, o.Flag)
	})
	form := "text"
	cmd := &cobra.Command{
		Use:   "probe",
		Short: "Tell whether this node can serve grants, without an agent or a cluster",
		Long: `probe looks at this node as an agent would, changes nothing and asks no cluster:
whether the kernel can make correct mounts, whether they would reach Pods,
whether kubelet's folder is found, and whether the shared claim answers. The
claim counts where it is said where it is; before an installation it is mounted
nowhere.

Run it as root. In a container it looks at the node through the node's first
process, which it sees with hostPID. It exits with 3 where the node cannot serve.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if form != "text" && form != "json" {
				return usage(fmt.Errorf("--output %.80q: want text or json", form), "see %s --help", cmd.CommandPath())
			}
			s, err := resolveThese(options, lookUp(cmd), env)
			if err != nil {
				return err
			}
			return probe(cmd.Context(), cmd.OutOrStdout(), s, form == "json", said(options, cmd, env, "shared-root"))
		},
	}
	addFlags(cmd, options)
	cmd.Flags().StringVarP(&form, "output", "o", form, "text or json")
	return cmd
}

// said tells whether an option was given a value, by flag or variable.
func said(options []Option, cmd *cobra.Command, env func(string) (string, bool), flag string) bool {
	i := slices.IndexFunc(options, func(o Option) bool { return o.Flag == flag })
	v, ok := env(options[i].Env)
	return ok && v != "" || cmd.Flags().Changed(flag)
}

func probe(ctx context.Context, out io.Writer, s settings, asJSON, claim bool) error {
	doc, err := examineNode(ctx, s, claim)
	if err != nil {
		return err
	}
	if asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		err = enc.Encode(doc)
	} else {
		err = writeProbe(out, doc, claim)
	}
	if err == nil && len(doc.Faults) > 0 {
		return advice.Failing(fmt.Errorf("%w: %d faults", errCannotServe, len(doc.Faults)), "each fault says what to do")
	}
	return err
}

// examineNode finds out what the node is, through the eyes of its first process.
func examineNode(ctx context.Context, s settings, claim bool) (nodeview.Probe, error) {
	labels, err := selinux(procDir)
	if err != nil {
		return nodeview.Probe{}, refuse(err, "mount /proc")
	}
	node := theNode(procDir)
	mounts, err := node.List()
	if err != nil {
		return nodeview.Probe{}, refuse(fmt.Errorf("read the node's mount table: %w", err), "mount /proc, and run it as root")
	}
	table := &mnt.Kernel{}
	own, err := table.List()
	if err != nil {
		return nodeview.Probe{}, refuse(fmt.Errorf("read the mount table: %w", err), "mount /proc")
	}
	dir, tried := existing(s.root)
	if tried == nil {
		defer dir.Close()
		tried = table.Probe(dir)
	}
	f := facts.Of(ctx, facts.Node{
		Table: table, Mounts: mounts, Claimed: own, Probe: dir, Root: s.root, Kubelet: s.kubelet, Sight: node.sight, SELinux: labels,
		Claim: s.sharedRoot, Bound: agent.DefaultBound, Budget: &deadline.Budget{},
	})
	f.Kernel = obs.KernelRelease()
	return nodeview.Probe{Facts: f, Sight: node.whose, Faults: facts.Faults(f, facts.Dirs{Root: s.root, Kubelet: s.kubelet, Tried: tried}, claim)}, nil
}

// existing opens the folder, or the nearest one above it that exists: nothing is
// made by looking.
func existing(p string) (*beneath.Dir, error) {
	for {
		dir, err := beneath.OpenRoot(p)
		if !errors.Is(err, fs.ErrNotExist) || p == "/" {
			return dir, err
		}
		p = filepath.Dir(p)
	}
}

func writeProbe(out io.Writer, doc nodeview.Probe, claim bool) error {
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	row := func(name, value string) { fmt.Fprintf(t, "%s\t%s\n", name, value) }
	row("kernel", doc.Kernel)
	if doc.Sight == nodeview.SightSelf {
		row("seen from", "this process's own mounts: the node's first process may not be looked at")
	}
	row("mount_setattr", yes(doc.MountSetattr))
	row("kubelet's folder", "found: "+yes(doc.KubeletFound)+", "+string(doc.KubeletPropagation))
	row("agent's folder", string(doc.RootPropagation))
	row("SELinux", yes(doc.SELinux))
	state := "not mounted"
	if doc.Claim.Mounted {
		state = fmt.Sprintf("%s, kept up by: %s, answers: %s", doc.Claim.Filesystem, doc.Claim.Backing, yes(doc.Claim.Answers))
	}
	if !claim {
		state += " (not asked for)"
	}
	row("claim", doc.Claim.Path+": "+state)
	for i, f := range doc.Faults {
		row("fault "+strconv.Itoa(i+1), f)
	}
	if len(doc.Faults) == 0 {
		row("can serve", "yes")
	}
	return t.Flush()
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// sighted is a mount namespace to look at: the node's own, where it can be seen.
type sighted struct {
	mountinfo string
	// sight is where the node's root folder is seen.
	sight string
	whose string // nodeview.SightNode or nodeview.SightSelf
}

// theNode is the mount namespace of the first process: with hostPID, or outside of
// a container, that is the node's init. A container has copies of the node's mounts
// at best, and what it was given says nothing of the node. Where it may not be
// looked at, this process's own stands for it.
func theNode(proc string) sighted {
	first := filepath.Join(proc, "1")
	if _, err := os.Readlink(filepath.Join(first, "root")); err != nil {
		return sighted{filepath.Join(proc, "self/mountinfo"), "/", nodeview.SightSelf}
	}
	return sighted{filepath.Join(first, "mountinfo"), filepath.Join(first, "root"), nodeview.SightNode}
}

// List reads its mount table.
func (n sighted) List() ([]mnt.Mount, error) {
	f, err := os.Open(n.mountinfo)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mnt.ParseMountinfo(f)
}

// lister reads the node's mount table; nil where only this process's own is seen.
func (n sighted) lister() func() ([]mnt.Mount, error) {
	if n.whose != nodeview.SightNode {
		return nil
	}
	return n.List
}
