package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/advice"
)

// Forms of import that other commands read.
const (
	onlyMounts  output = "mounts"
	onlySecrets output = "secrets"
)

// What stands for a Pod that is not named.
const (
	somePod = "POD"
	someUID = "UID-OF-THE-POD"
)

const datashimName = "datashim"

type importing struct {
	cluster
	form output
	pod  string
}

func newImport() *cobra.Command {
	var i importing
	cmd := &cobra.Command{
		Use:   "import " + datashimName + " [FILE]",
		Short: "Make grants of what another system declares",
		Long: `import reads the Datasets of Datashim, as JSON or YAML and any number of them, and
prints the grants that take their place, and for each bucket a Secret. It changes
nothing. Keys are never printed: the Secret has their names, and a command is shown
that puts them in, from the Secret that Datashim has them in.

A Secret belongs to one Pod, which has to be there: --pod fills it in, and reads
nothing but the Pod. What is not carried over is told on standard error, with what to
do. Where a Dataset becomes nothing, it is an error, and the others are printed.

With -o mounts it prints what ` + "`grant -f`" + ` reads, with -o secrets what
` + "`kubectl apply -f`" + ` does.`,
		Example: `  kubectl get datasets -A -o yaml | node-mounts import datashim
  node-mounts import datashim datasets.yaml --pod sandbox -n pods -o secrets | kubectl apply -f -
  node-mounts import datashim datasets.yaml --pod sandbox -n pods -o mounts | node-mounts grant sandbox -n pods -f -`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := takes(1, 2, datashimName+" and a FILE")(cmd, args); err != nil {
				return err
			}
			if args[0] != datashimName {
				return fmt.Errorf("nothing is known of %.40q: what can be imported is %s", args[0], datashimName)
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return []cobra.Completion{datashimName}, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			file := "-"
			if len(args) > 1 {
				file = args[1]
			}
			return i.run(cmd, file)
		},
	}
	cmd.Flags().StringVar(&i.pod, "pod", "", "the Pod that the Secrets are for")
	i.bind(cmd)
	i.form.bind(cmd, readable, onlyMounts, onlySecrets, asJSON, asYAML)
	return cmd
}

// imports are what all Datasets become.
type imports struct {
	mounts  []grant.Mount
	secrets []newSecret
	notes   []importNote
	errs    advice.Several

	namespace, pod, uid string // that the Secrets are for
	// where is the flags for its namespace and its cluster.
	where string
}

// importNote is something that is not carried over.
type importNote struct {
	Dataset string `json:"dataset"`
	Note    string `json:"note"`
}

func (i *importing) run(cmd *cobra.Command, file string) error {
	if err := i.check(); err != nil {
		return err
	}
	text, err := readInput(cmd.InOrStdin(), file, maxDatasets, "FILE is one of Datasets, without it they are read from standard input")
	if errors.Is(err, errTooLarge) {
		return advice.With(fmt.Errorf("%s is larger than %d MiB", file, maxDatasets>>20), "split it")
	}
	if err != nil {
		return err
	}
	found, passed, err := readDatasets(text)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, p := range passed {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", advice.Plain(p)+": it is no Dataset, and passed over")
	}
	if len(found) == 0 {
		return advice.With(fmt.Errorf("%s has no Datasets", file), "`kubectl get datasets -A -o yaml` writes those of a cluster")
	}
	all, err := i.convert(cmd.Context(), found)
	if err != nil {
		return err
	}
	for _, n := range all.notes {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", advice.Plain(n.Dataset+": "+n.Note))
	}
	if len(all.mounts) > 0 || i.form.structured() {
		if err := all.write(cmd.OutOrStdout(), i.form, file); err != nil {
			return err
		}
	}
	if len(all.errs) > 0 {
		return all.errs
	}
	return nil
}

func (i *importing) convert(ctx context.Context, found []dataset) (imports, error) {
	all := imports{namespace: i.namespace, pod: somePod, uid: someUID, where: in(i.namespace)}
	prefix := ""
	if i.pod != "" {
		s, pod, err := i.open(i.pod)
		if err != nil {
			return all, err
		}
		p, err := s.read(ctx, pod)
		if err != nil {
			return all, err
		}
		all.namespace, all.pod, all.uid, prefix = p.Namespace, p.Name, string(p.UID), p.Name+"-"
		all.where = in(p.Namespace) + s.elsewhere
	}
	taken := map[string]string{}
	for _, d := range found {
		one, err := importDataset(d, prefix)
		if other, is := taken[d.Metadata.Name]; is && err == nil {
			err = fmt.Errorf("its name is the target of %s already: grant it by hand, with another target", other)
		}
		if err != nil {
			all.errs = append(all.errs, datasetError{d.name(), err})
			continue
		}
		taken[d.Metadata.Name] = d.name()
		all.mounts = append(all.mounts, one.mount)
		if one.secret != nil {
			all.secrets = append(all.secrets, *one.secret)
		}
		for _, n := range one.notes {
			all.notes = append(all.notes, importNote{d.name(), n})
		}
	}
	return all, nil
}

// datasetError says which Dataset an error is about.
type datasetError struct {
	dataset string
	error
}

func (e datasetError) Error() string { return e.dataset + ": " + e.error.Error() }
func (e datasetError) Unwrap() error { return e.error }

func (all imports) manifests() []map[string]any {
	out := []map[string]any{}
	for _, s := range all.secrets {
		out = append(out, s.manifest(all.namespace, all.pod, all.uid))
	}
	return out
}

func (all imports) commands() []string {
	out := []string{}
	for _, s := range all.secrets {
		out = append(out, s.fill(all.where))
	}
	return out
}

// set is the mounts as `grant -f` reads them.
func (all imports) set() (json.RawMessage, error) {
	text, err := grant.Encode(all.mounts)
	return json.RawMessage(text), err
}

func (all imports) write(w io.Writer, form output, file string) error {
	set, err := all.set()
	if err != nil {
		return err
	}
	switch form {
	case onlyMounts:
		return writeDocument(w, asJSON, set)
	case onlySecrets:
		return all.writeSecrets(w)
	case asJSON, asYAML:
		return writeDocument(w, form, map[string]any{
			"grant": set, "secrets": all.manifests(), "commands": all.commands(), "notes": append([]importNote{}, all.notes...),
		})
	}
	return all.writeText(w, set, file)
}

func (all imports) writeSecrets(w io.Writer) error {
	for _, m := range all.manifests() {
		b, err := yaml.Marshal(m)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "---\n%s", b); err != nil {
			return err
		}
	}
	return nil
}

func (all imports) writeText(w io.Writer, set json.RawMessage, file string) error {
	if file == "-" {
		file = "FILE"
	}
	again := programName + " import " + datashimName + " " + word(file)
	var errs []error
	step := 1
	if len(all.secrets) > 0 {
		who, apply := "--pod NAME", "kubectl apply -f -"
		if all.uid != someUID {
			who, apply = "--pod "+all.pod+all.where, "kubectl apply -f -"+all.where
		}
		fmt.Fprintf(w, "# %d. Make the Secrets of a Pod: `%s %s -o secrets | %s`.\n", step, again, who, apply)
		if all.uid == someUID {
			fmt.Fprintf(w, "#    %s and %s stand for the Pod's, which are not known without --pod.\n", somePod, someUID)
		}
		errs = append(errs, all.writeSecrets(w))
		fmt.Fprintf(w, "\n# %d. Put the keys in, from where they are now. Nothing of them is shown.\n", step+1)
		for _, c := range all.commands() {
			fmt.Fprintln(w, c)
		}
		fmt.Fprintln(w)
		step += 2
	}
	fmt.Fprintf(w, "# %d. Grant, beside what the Pod has: `%s -o mounts | %s grant %s%s -f -`.\n", step, again, programName, all.pod, all.where)
	errs = append(errs, writeDocument(w, asJSON, set))
	return errors.Join(errs...)
}
