package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/kube/absence"
	"github.com/datalayer/node-mounts/operator"
)

// showing are the flags of status.
type showing struct {
	cluster
	asking
	form  output
	nodes bool
}

func newStatus() *cobra.Command {
	var s showing
	cmd := &cobra.Command{
		Use:   "status [POD]",
		Short: "Show what Pods ask for and what is mounted",
		Long: `status lists the Pods that have a grant, an answer or the gateway's label: what
they ask for and what was answered. With a Pod it shows each folder, with the
reason where one is not there. An answer to another set than the Pod asks for
now is called stale and counts for nothing. A Pod that is ending or finished gets
nothing any more, whatever it asks for.

It asks the agents of those Pods' nodes too, which needs create on pods/exec in
their namespace: whether the Pod's tree is published, how many mounts are left
that should be gone, and the flags of each mount. Where that is not known it
shows - and says why on standard error.

With --nodes it shows every node that has an agent or should have one, and what
is bound for which Pod on it.`,
		Example: `  node-mounts status -A
  node-mounts status sandbox -n datalayer-runtimes -o wide
  node-mounts status --nodes`,
		Args: takes(0, 1, "at most a POD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case s.nodes && len(args) > 0:
				return advice.Usage(fmt.Errorf("with --nodes no POD is shown: leave one out"), "")
			case s.nodes && s.not:
				return advice.Usage(fmt.Errorf("--nodes asks the agents: leave out --no-agents"), "")
			case len(args) > 0 && s.everywhere:
				return advice.Usage(fmt.Errorf("a POD is in one namespace: use -n instead of -A"), "")
			}
			if err := s.asking.check(); err != nil {
				return err
			}
			ctx, out, errOut := cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr()
			if s.nodes {
				c, err := s.connect()
				if err != nil {
					return err
				}
				return s.asking.allowed(listNodes(ctx, out, errOut, c.agents(s.asking), s.form))
			}
			if len(args) == 0 {
				return s.list(ctx, out, errOut)
			}
			return s.one(ctx, out, errOut, args[0])
		},
	}
	s.cluster.bind(cmd)
	s.bindEverywhere(cmd)
	s.asking.bind(cmd)
	s.bindNot(cmd)
	cmd.Flags().BoolVar(&s.nodes, "nodes", false, "show the nodes, as their agents see them")
	s.form.bind(cmd, table, wide, asJSON, asYAML)
	cmd.ValidArgsFunction = s.completePod(anyPod, nil)
	return cmd
}

func (s *showing) list(ctx context.Context, out, errOut io.Writer) error {
	c, err := s.connect()
	if err != nil {
		return err
	}
	pods, err := c.summaries(ctx)
	if err != nil {
		err = fmt.Errorf("list the Pods%s: %w", inNamespace(c.namespace), err)
		if s.everywhere && apierrors.IsForbidden(err) {
			err = advice.With(err, "-A needs list on pods in all namespaces: -n chooses one")
		}
		return err
	}
	s.see(ctx, errOut, c, pods)
	if s.form.structured() {
		return writeDocument(out, s.form, map[string]any{"pods": pods})
	}
	if len(pods) == 0 {
		fmt.Fprintf(errOut, "No Pods with grants%s.\n", inNamespace(c.namespace))
		return nil
	}
	return writePods(out, pods, s.form == wide, s.everywhere)
}

// see adds what the agents see of the Pods, and tells what they could not be asked.
func (s *showing) see(ctx context.Context, errOut io.Writer, c *session, pods []summary) {
	nodes := nodesOf(pods)
	if s.not || len(nodes) == 0 {
		return
	}
	seen := look(ctx, c.agents(s.asking), nodes)
	if seen.refused {
		seen.unknown = append(seen.unknown, s.asking.rights())
	}
	for i := range pods {
		seen.add(&pods[i])
	}
	seen.tell(errOut)
}

func inNamespace(namespace string) string {
	if namespace == metav1.NamespaceAll {
		return " in any namespace"
	}
	return " in namespace " + namespace
}

func (s *showing) one(ctx context.Context, out, errOut io.Writer, arg string) error {
	c, pod, err := s.open(arg)
	if err != nil {
		return err
	}
	p, err := c.read(ctx, pod)
	if err != nil {
		return err
	}
	sums := []summary{summarize(p, c.names)}
	s.see(ctx, errOut, c, sums)
	if s.form.structured() {
		return writeDocument(out, s.form, sums[0])
	}
	if err := writePods(out, sums, s.form == wide, false); err != nil || len(sums[0].Targets) == 0 {
		return err
	}
	fmt.Fprintln(out)
	return writeTargets(out, sums[0].Targets, s.form == wide, true)
}

func (s *session) read(ctx context.Context, pod operator.Pod) (*corev1.Pod, error) {
	p, err := absence.Pod(ctx, s.api, pod.Namespace, pod.Name)
	if absence.PodSaid(err, pod.Name) {
		err = fmt.Errorf("%w: %w", operator.ErrGone, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return p, nil
}

// writePods writes a line for each Pod.
func writePods(w io.Writer, pods []summary, wide, namespaces bool) error {
	head := []string{"NAME", "STATE", "ASKED", "MOUNTED", "FAILED", "HELD", "PUBLISHED", "LEAKED", "ANSWER", "AGE"}
	if namespaces {
		head = append([]string{"NAMESPACE"}, head...)
	}
	if wide {
		head = append(head, "UID", "HASH", "NODE", "PHASE")
	}
	var rows [][]string
	for _, p := range pods {
		row := []string{
			p.Name, p.State, strconv.Itoa(p.Asked), strconv.Itoa(p.Mounted), strconv.Itoa(p.Failed), strconv.Itoa(p.Held),
			yesNo(p.Published), count(p.Leaked), p.Answer, duration.HumanDuration(time.Since(p.Created)),
		}
		if namespaces {
			row = append([]string{p.Namespace}, row...)
		}
		if wide {
			row = append(row, p.UID, p.Hash, p.Node, p.Phase)
		}
		rows = append(rows, row)
	}
	return writeTable(w, head, rows)
}

// writeTargets writes a line for each folder; seen adds what an agent sees.
func writeTargets(w io.Writer, targets []target, wide, seen bool) error {
	head := []string{"TARGET", "KIND", "SOURCE", "MODE"}
	if wide {
		head = append(head, "EXEC", "REVISION", "SECRET")
	}
	head = append(head, "STATE")
	if seen {
		head = append(head, "FLAGS")
	}
	head = append(head, "CODE", "REASON")
	var rows [][]string
	for _, t := range targets {
		row := []string{t.Target, kindCell(t.Kind), t.Source, t.Mode}
		if wide {
			exec := ""
			if t.AllowExec != nil {
				exec = strconv.FormatBool(*t.AllowExec)
			}
			row = append(row, exec, t.Revision, t.Secret)
		}
		row = append(row, t.State)
		if seen {
			row = append(row, t.Flags)
		}
		rows = append(rows, append(row, shortCode(t.Code), t.Reason))
	}
	return writeTable(w, head, rows)
}

// yesNo is a fact, "" where it is not known.
func yesNo(b *bool) string {
	switch {
	case b == nil:
		return ""
	case *b:
		return "yes"
	}
	return "no"
}

// kindCell makes the kind "" visible, and keeps it apart from none.
func kindCell(kind *string) string {
	if kind == nil {
		return ""
	}
	if *kind == "" {
		return `""`
	}
	return *kind
}
