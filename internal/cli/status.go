package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/datalayer/node-mounts/operator"
)

func newStatus() *cobra.Command {
	var c cluster
	var form output
	cmd := &cobra.Command{
		Use:   "status [POD]",
		Short: "Show what Pods ask for and what is mounted",
		Long: `status lists the Pods that have a grant, an answer or the gateway's label: what
they ask for and what was answered. With a Pod it shows each folder, with the
reason where one is not there. An answer to another set than the Pod asks for
now is called stale and counts for nothing.`,
		Example: `  node-mounts status -A
  node-mounts status sandbox -n datalayer-runtimes -o wide`,
		Args: takes(0, 1, "at most a POD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.listStatus(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), form)
			}
			if c.everywhere {
				return usageError{fmt.Errorf("a POD is in one namespace: use -n instead of -A")}
			}
			return c.podStatus(cmd.Context(), cmd.OutOrStdout(), args[0], form)
		},
	}
	c.bind(cmd)
	c.bindEverywhere(cmd)
	form.bind(cmd, table, wide, asJSON, asYAML)
	cmd.ValidArgsFunction = c.completePod(anyPod, nil)
	return cmd
}

func (c *cluster) listStatus(ctx context.Context, out, errOut io.Writer, form output) error {
	s, err := c.connect()
	if err != nil {
		return err
	}
	pods, err := s.summaries(ctx)
	if err != nil {
		return fmt.Errorf("list the Pods%s: %w", inNamespace(s.namespace), err)
	}
	if form.structured() {
		return writeDocument(out, form, map[string]any{"pods": pods})
	}
	if len(pods) == 0 {
		fmt.Fprintf(errOut, "No Pods with grants%s.\n", inNamespace(s.namespace))
		return nil
	}
	return writePods(out, pods, form == wide, c.everywhere)
}

func inNamespace(namespace string) string {
	if namespace == metav1.NamespaceAll {
		return " in any namespace"
	}
	return " in namespace " + namespace
}

func (c *cluster) podStatus(ctx context.Context, out io.Writer, arg string, form output) error {
	s, pod, err := c.open(arg)
	if err != nil {
		return err
	}
	p, err := s.api.Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("%w: %w", operator.ErrGone, err)
	}
	if err != nil {
		return fmt.Errorf("read Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	sum := summarize(p, s.names)
	if form.structured() {
		return writeDocument(out, form, sum)
	}
	if err := writePods(out, []summary{sum}, form == wide, false); err != nil || len(sum.Targets) == 0 {
		return err
	}
	fmt.Fprintln(out)
	return writeTargets(out, sum.Targets, form == wide)
}

// writePods writes a line for each Pod.
func writePods(w io.Writer, pods []summary, wide, namespaces bool) error {
	head := []string{"NAME", "STATE", "ASKED", "MOUNTED", "FAILED", "HELD", "ANSWER", "AGE"}
	if namespaces {
		head = append([]string{"NAMESPACE"}, head...)
	}
	if wide {
		head = append(head, "UID", "HASH", "NODE")
	}
	var rows [][]string
	for _, p := range pods {
		row := []string{
			p.Name, p.State, strconv.Itoa(p.Asked), strconv.Itoa(p.Mounted), strconv.Itoa(p.Failed), strconv.Itoa(p.Held),
			p.Answer, duration.HumanDuration(time.Since(p.Created)),
		}
		if namespaces {
			row = append([]string{p.Namespace}, row...)
		}
		if wide {
			row = append(row, p.UID, p.Hash, p.Node)
		}
		rows = append(rows, row)
	}
	return writeTable(w, head, rows)
}

// writeTargets writes a line for each folder.
func writeTargets(w io.Writer, targets []target, wide bool) error {
	head := []string{"TARGET", "KIND", "SOURCE", "MODE"}
	if wide {
		head = append(head, "EXEC", "REVISION", "SECRET")
	}
	head = append(head, "STATE", "CODE", "REASON")
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
		rows = append(rows, append(row, t.State, shortCode(t.Code), t.Reason))
	}
	return writeTable(w, head, rows)
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
