package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/datalayer/node-mounts/charts"
	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/fleet"
	"github.com/datalayer/node-mounts/internal/install"
	"github.com/datalayer/node-mounts/internal/verify"
)

// releasing is what install and uninstall have in common.
type releasing struct {
	cluster  cluster
	timeout  time.Duration
	operator string
	verbose  bool
	form     output
}

func (r *releasing) bind(cmd *cobra.Command, operator string) {
	c, f := &r.cluster, cmd.Flags()
	c.prefix = grant.DefaultPrefix
	c.bindNamespace(cmd, install.DefaultNamespace, "namespace of the release: that of the shared claim")
	c.bindServer(cmd)
	f.DurationVar(&r.timeout, "timeout", install.DefaultTimeout, "how long each wait for the nodes may take")
	f.StringVar(&r.operator, "operator", "", operator)
	f.BoolVar(&r.verbose, "verbose", false, "tell what Helm does on standard error")
	r.form.bind(cmd, readable, asJSON)
}

// half is the Deployment that --operator names, nil without one. It looks at the
// other flags too.
func (r *releasing) half() (*install.Operator, error) {
	if err := r.cluster.check(); err != nil {
		return nil, err
	}
	if r.timeout <= 0 {
		return nil, advice.Usage(fmt.Errorf("--timeout %s is no time to wait", r.timeout), "")
	}
	if r.operator == "" {
		return nil, nil
	}
	o, err := install.ParseOperator(r.operator)
	return &o, err
}

// open makes the clients. It sends nothing.
func (r *releasing) open(cmd *cobra.Command) (install.Cluster, *rest.Config, error) {
	cfg, err := r.cluster.config()
	if err != nil {
		return install.Cluster{}, nil, err
	}
	cfg.QPS, cfg.Burst = 100, 200 // a preflight asks a hundred small questions
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return install.Cluster{}, nil, unusable(err)
	}
	logs := io.Discard
	if r.verbose {
		logs = cmd.ErrOrStderr()
	}
	helm, err := install.NewHelm(cfg, r.cluster.namespace, logs)
	progress := func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), advice.Plain(line)) }
	agents := &fleet.Cluster{Client: client, Config: cfg, Namespace: r.cluster.namespace}
	return install.Cluster{Client: client, Helm: helm, Agents: agents, Progress: progress}, cfg, err
}

func newInstall() *cobra.Command {
	var r releasing
	var request install.Request
	var settings install.Settings
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install or upgrade the agents in a cluster, checked before and after",
		Long: `install puts the agents of this version on the nodes: it looks at the cluster and at
every node first, installs the chart as Helm does (release ` + install.ReleaseName + `;
helm list, upgrade, rollback and uninstall work on it), waits for every node, and
checks what it made. It may be repeated: the second time it upgrades, or says that
there is nothing to change.

The agents come first, the operator's half after them: with --operator it is turned
on when everything else is well, and never before.

Values of the chart come from these variables, then --values, then --set, then
--claim; what is later wins:

` + variables(),
		Example: `  node-mounts install --claim datalayer-shared-fs
  node-mounts install --claim datalayer-shared-fs --operator datalayer/datalayer-operator
  node-mounts install --claim datalayer-shared-fs --dry-run >manifests.yaml`,
		Args: takes(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dryRun && cmd.Flags().Changed("output") {
				return advice.Usage(errors.New("--dry-run writes manifests, and -o chooses the form of a report"), "")
			}
			half, err := r.half()
			if err != nil {
				return err
			}
			settings.Environ, settings.In = os.Environ(), cmd.InOrStdin()
			values, warnings, err := settings.Values()
			for _, w := range warnings {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning:", advice.Plain(w))
			}
			if err != nil {
				return err
			}
			if request.Chart, err = charts.NodeMounts(); err != nil {
				return fmt.Errorf("reading the chart of this program: %w", err)
			}
			request.Namespace, request.Values, request.Timeout, request.Operator = r.cluster.namespace, values, r.timeout, half
			if dryRun {
				return render(cmd, request)
			}
			if !request.ReuseValues { // nothing is sent that cannot work
				if err := install.Sound(request.Chart, values); err != nil {
					return err
				}
			}
			return r.install(cmd, request)
		},
	}
	r.bind(cmd, "NAMESPACE/DEPLOYMENT[/CONTAINER] to turn on when the agents are well")
	bindValues(cmd, &settings)
	f := cmd.Flags()
	f.BoolVar(&request.ReuseValues, "reuse-values", false, "begin with the values of the release that is installed")
	f.BoolVar(&request.CreateNamespace, "create-namespace", false, "make the namespace of the Pods to serve where it does not exist")
	f.BoolVar(&request.SkipPreflight, "skip-preflight", false, "look at nothing before installing")
	f.BoolVar(&request.ForceConflicts, "force-conflicts", false, "take back fields of the release's objects that others have set, such as by kubectl edit")
	f.BoolVar(&dryRun, "dry-run", false, "write the manifests to standard output, and ask no cluster")
	return cmd
}

// bindValues adds the flags that say the chart's values.
func bindValues(cmd *cobra.Command, settings *install.Settings) {
	f := cmd.Flags()
	f.StringVar(&settings.Claim, "claim", "", "shared claim to mount; turns the gateway on")
	f.StringArrayVar(&settings.Set, "set", nil, "a value of the chart, as name.of.value=text; may be repeated")
	f.StringArrayVar(&settings.Texts, "set-string", nil, "as --set, where true and 123 are texts; may be repeated")
	f.StringArrayVarP(&settings.Files, "values", "f", nil, "file of values in YAML, - for standard input; may be repeated")
	takesFile(cmd, "values")
}

// variables are the rows of the table of variables.
func variables() string {
	var b strings.Builder
	for _, v := range install.Variables() {
		to := v.Value
		if to == "" {
			to = "no value"
		}
		form := "NAME"
		if v.Switch {
			form = "true|false|1|0"
		}
		fmt.Fprintf(&b, "  %s=%s\n      %s: %s\n", v.Name, form, to, v.What)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func render(cmd *cobra.Command, r install.Request) error {
	text, err := install.Render(cmd.Context(), r.Chart, r.Namespace, r.Values)
	if err == nil {
		_, err = io.WriteString(cmd.OutOrStdout(), text)
	}
	return err
}

func (r *releasing) install(cmd *cobra.Command, request install.Request) error {
	c, cfg, err := r.open(cmd)
	if err != nil {
		return err
	}
	request.Verify = func(ctx context.Context, s install.Serving) ([]install.Row, error) {
		return agentHalf(ctx, c.Client, cfg, s), nil
	}
	report, err := c.Install(cmd.Context(), request)
	if werr := r.writeReport(cmd.OutOrStdout(), report, err); werr != nil {
		return werr
	}
	if err == nil && request.Operator == nil {
		fmt.Fprintln(cmd.ErrOrStderr(), "next: turn the operator's half on, unless it is: "+install.DefaultOperator().Switch(true))
	}
	return err
}

func (r *releasing) writeReport(out io.Writer, report install.Report, err error) error {
	if r.form == asJSON {
		return writeDocument(out, r.form, report)
	}
	for _, part := range []struct {
		title string
		rows  []install.Row
	}{{"Preflight", report.Preflight}, {"Rollout", report.Rollout}, {"Checks", report.Checks}} {
		if err := writeRows(out, part.title, part.rows); err != nil {
			return err
		}
	}
	if err != nil || report.Change == "" {
		return nil
	}
	what := "revision %d of %s in %s, and every node has its agent.\n"
	if report.Change == install.Unchanged {
		what = "Nothing has changed: " + what
	} else {
		what = strings.ToUpper(string(report.Change[:1])) + string(report.Change[1:]) + ": " + what
	}
	fmt.Fprintf(out, what, report.Revision, report.Release, report.Namespace)
	if report.Operator != "" {
		fmt.Fprintf(out, "The operator's half is on: %s.\n", report.Operator)
	}
	return nil
}

// writeRows writes a table of checks, and beneath it what to do.
func writeRows(out io.Writer, title string, rows []install.Row) error {
	if len(rows) == 0 {
		return nil
	}
	var cells [][]string
	var todo []string
	for _, row := range rows {
		cells = append(cells, []string{row.Check, string(row.Status), row.Node, row.Detail})
		if row.Hint != "" && (row.Status == verify.Fail || row.Status == verify.Warn) {
			where := row.Check
			if row.Node != "" {
				where += ", " + row.Node
			}
			todo = append(todo, advice.Plain("  "+where+": "+row.Hint))
		}
	}
	if err := writeTable(out, []string{strings.ToUpper(title), "STATUS", "NODE", "DETAIL"}, cells); err != nil {
		return err
	}
	if len(todo) > 0 {
		fmt.Fprintln(out, "What to do:\n"+strings.Join(todo, "\n"))
	}
	fmt.Fprintln(out)
	return nil
}
