package cli

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/agentcmd"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
)

func newRecover() *cobra.Command {
	var form output
	var force, verbose bool
	cmd := &cobra.Command{
		Use:   "recover POD",
		Short: "On the Pod's node: take down what a dead agent has left of a Pod that hangs in Terminating",
		Long: `recover does what the agent does when a Pod is gone, on a node whose agent does not
run: it takes the Pod's mounts down one by one, then kubelet can remove the
volume, and the Pod goes. It deletes no file: directories are removed by rmdir,
and only the agent's own record of the Pod goes with them. It may be repeated: by the
uid, which it prints, once nothing of the Pod is left and its name is not known
any more.

POD is the uid, the name, or NAMESPACE/NAME of a Pod that the agent knew. Run it
as root, in the mount namespace of the node or of the agent's Pod. It refuses
while an agent runs, and while processes of the Pod run.`,
		Example: `  node-mounts recover datalayer-runtimes/sandbox
  nsenter --target 1 --mount -- /usr/local/bin/node-mounts recover sandbox`,
		Args: takes(1, 1, "a POD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			log := slog.New(slog.DiscardHandler)
			if verbose {
				log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			}
			o, err := agentcmd.OpenOffline(cmd.Context(), cmd, log)
			if err != nil {
				return err
			}
			defer o.Close()
			return recoverPod(cmd, o, args[0], form, force)
		},
	}
	agentcmd.AddOfflineFlags(cmd)
	takesFolder(cmd, "root", "kubelet-dir")
	cmd.Flags().BoolVar(&force, "force", false, "also when processes of the Pod run: they lose their folders, or hold what they have open")
	cmd.Flags().BoolVar(&verbose, "verbose", false, "tell each step on standard error")
	form.bind(cmd, table, asJSON, asYAML)
	return cmd
}

func recoverPod(cmd *cobra.Command, o *agent.Offline, arg string, form output, force bool) error {
	ref, err := chosen(o.Pods(), arg)
	if err != nil {
		return err
	}
	rec, err := o.Recover(cmd.Context(), ref.UID, force)
	switch {
	case errors.Is(err, agent.ErrUnknown):
		err = nil // a uid: see chosen
	case errors.Is(err, agent.ErrInUse):
		return advice.With(fmt.Errorf("%s: %w", called(ref), err), "end them through the container runtime (`crictl ps`, `crictl stop`), or take the folders from under them with --force")
	case errors.Is(err, agent.ErrUnseen):
		return advice.With(fmt.Errorf("%s: %w", called(ref), err), "run it where the node's processes can be seen (hostPID: true in a container), or add --force when you know that the Pod has ended")
	}
	if werr := writeRecovery(cmd.OutOrStdout(), form, rec, err); werr != nil {
		return werr
	}
	return unfinished(rec, err)
}

// unfinished is the error of a recovery that has left something.
func unfinished(rec agent.Recovery, err error) error {
	const repeat = "end what keeps it busy, then repeat this; `kubectl get pods -A -o wide` shows what else runs on the node"
	switch {
	case errors.Is(err, mnt.ErrBusy), err == nil && len(rec.Left) > 0:
		return advice.With(errors.Join(fmt.Errorf("%s: something is still mounted", called(rec.Pod)), err), repeat)
	case err != nil:
		return fmt.Errorf("%s: %w", called(rec.Pod), err)
	case len(rec.Held) > 0:
		return advice.With(
			fmt.Errorf("%s: %d of its mounts may still be held by a process", called(rec.Pod), len(rec.Held)),
			"kubelet can remove the volume; end the process and repeat this to be certain that nobody has the folder",
		)
	}
	return nil
}

// uuid is the form of a Pod's uid. One that is unknown here has nothing on this
// node, which is what recovering it is for; an unknown name may be mistyped.
var uuid = regexp.MustCompile(`\A[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\z`)

// chosen finds the Pod that is meant among those that are known.
func chosen(pods []plan.Ref, arg string) (plan.Ref, error) {
	var found []plan.Ref
	for _, r := range pods {
		if r.UID == arg || r.Name == arg && arg != "" || r.Namespace+"/"+r.Name == arg && r.Name != "" {
			found = append(found, r)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return plan.Ref{}, advice.With(fmt.Errorf("%q is the name of %d Pods", arg, len(found)), "give the uid of one: "+listed(found))
	case uuid.MatchString(arg):
		return plan.Ref{UID: arg}, nil
	case len(pods) == 0:
		return plan.Ref{}, advice.With(fmt.Errorf("%.80q: %w", arg, agent.ErrUnknown), "nothing of any Pod is left on this node; a Pod that was recovered is known by its uid alone")
	}
	return plan.Ref{}, advice.With(fmt.Errorf("%.80q: %w", arg, agent.ErrUnknown), "known here: "+listed(pods)+"; a Pod that was recovered is known by its uid alone")
}

func listed(pods []plan.Ref) string {
	var names []string
	for _, r := range pods {
		names = append(names, called(r))
	}
	return strings.Join(names, ", ")
}

// called names a Pod by all that is known of it.
func called(r plan.Ref) string {
	if r.Name == "" {
		return r.UID
	}
	return fmt.Sprintf("%s/%s (%s)", r.Namespace, r.Name, r.UID)
}

// recovered is the document of a recovery.
type recovered struct {
	UID       string      `json:"uid"`
	Namespace string      `json:"namespace,omitempty"`
	Name      string      `json:"name,omitempty"`
	Taken     []takenDown `json:"taken"`
	Held      []heldMount `json:"held"`
	Left      []string    `json:"left"`
	// Done: nothing of the Pod is mounted, and nobody holds anything.
	Done bool `json:"done"`
}

type takenDown struct {
	Target string `json:"target"`
	Kind   string `json:"kind"`
	Source string `json:"source,omitempty"`
}

type heldMount struct {
	Target string `json:"target"`
	Why    string `json:"why"`
}

func writeRecovery(out io.Writer, form output, rec agent.Recovery, err error) error {
	doc := recovered{
		UID: rec.Pod.UID, Namespace: rec.Pod.Namespace, Name: rec.Pod.Name,
		Taken: []takenDown{}, Held: []heldMount{}, Left: []string{},
		Done: err == nil && len(rec.Held)+len(rec.Left) == 0,
	}
	var rows [][]string
	for _, m := range rec.Taken {
		doc.Taken = append(doc.Taken, takenDown{m.Target, string(m.Kind), m.Source})
		rows = append(rows, []string{m.Target, "taken down", m.Source})
	}
	for _, h := range rec.Held {
		doc.Held = append(doc.Held, heldMount{h.Target, h.Why})
		rows = append(rows, []string{h.Target, "held", h.Why})
	}
	for _, place := range rec.Left {
		doc.Left = append(doc.Left, place)
		rows = append(rows, []string{place, "still mounted", ""})
	}
	if form.structured() {
		return writeDocument(out, form, doc)
	}
	if len(rows) > 0 {
		if err := writeTable(out, []string{"MOUNT", "RESULT", "WHAT"}, rows); err != nil {
			return err
		}
	}
	if doc.Done {
		fmt.Fprintf(out, "Nothing of %s is mounted on this node. kubelet removes the volume at its next attempt.\n", called(rec.Pod))
	}
	return nil
}
