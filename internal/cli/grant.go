package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/operator"
)

// granting are the flags of grant.
type granting struct {
	cluster
	form output

	source, target, kind, mode string
	revision, secret           string
	noExec                     bool

	file    string
	replace bool
	wait    waiting
}

// waiting are the flags of a command that can wait for the answer.
type waiting struct {
	wait    bool
	timeout time.Duration
}

func (w *waiting) bind(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&w.wait, "wait", false, "wait for the answer")
	cmd.Flags().DurationVar(&w.timeout, "timeout", defaultWait, "how long to wait, with --wait")
}

func (w *waiting) check(cmd *cobra.Command) error {
	if !w.wait && cmd.Flags().Changed("timeout") {
		return usageError{fmt.Errorf("--timeout has no meaning without --wait")}
	}
	return positive(w.timeout)
}

// mountFlags are those that describe one mount.
func mountFlags() []string {
	return []string{"source", "target", "kind", "mode", "no-exec", "revision", "secret"}
}

func newGrant() *cobra.Command {
	var g granting
	cmd := &cobra.Command{
		Use:   "grant POD (--source SOURCE --target TARGET | -f FILE)",
		Short: "Ask for folders in a running Pod, beside those it has",
		Long: `grant adds to what the Pod asks for: a folder takes the place of one with the
same target, everything else stays, also what somebody else grants at the same
moment. It refuses what no agent would mount before anything is sent.

A file has a list of mounts, or an object with "mounts", in JSON or YAML: of each
mount "source" and "target", and "kind", "mode", "allow_exec", "revision" and
"secret" as in the annotation. The kind there is "" unless it is given.`,
		Example: `  node-mounts grant sandbox --source home/users/ada --target ada --wait
  node-mounts grant sandbox --kind shared-folder --source datasets/penguins --target penguins --mode ro
  echo '[{"kind": "files", "source": "home/users/ada", "target": "ada"}]' | node-mounts grant sandbox -f - --replace`,
		Args: takes(1, 1, "a POD"),
		RunE: func(cmd *cobra.Command, args []string) error { return g.run(cmd, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&g.source, "source", "", "what to mount, in the form of its kind: a path beneath the claim")
	f.StringVar(&g.target, "target", "", "name of the folder in the Pod")
	f.StringVar(&g.kind, "kind", string(grant.KindFiles), `kind: `+kindNames())
	f.StringVar(&g.mode, "mode", "", "rw or ro; without it rw, unless the kind can only be read")
	f.BoolVar(&g.noExec, "no-exec", false, "let nothing be executed from it")
	f.StringVar(&g.revision, "revision", "", "commit id, for git")
	f.StringVar(&g.secret, "secret", "", "name of a Secret that the Pod owns, where the kind needs one")
	f.StringVarP(&g.file, "filename", "f", "", "file with the mounts, - for standard input")
	f.BoolVar(&g.replace, "replace", false, "make it the whole set: what the Pod has besides is revoked")
	g.wait.bind(cmd)
	g.bind(cmd)
	g.form.bind(cmd, table, wide, asJSON, asYAML)
	complete(cmd, "kind", strings.Split(kindNames(), ", ")...)
	complete(cmd, "mode", string(grant.ReadOnly), string(grant.ReadWrite))
	cmd.ValidArgsFunction = g.completePod(anyPod, nil)
	return cmd
}

func kindNames() string {
	var names []string
	for _, k := range grant.Kinds() {
		if k.Kind != grant.KindPlain {
			names = append(names, string(k.Kind))
		}
	}
	return strings.Join(names, ", ")
}

func (g *granting) run(cmd *cobra.Command, arg string) error {
	if err := g.wait.check(cmd); err != nil {
		return err
	}
	mounts, err := g.mounts(cmd)
	if err != nil {
		return err
	}
	s, pod, err := g.open(arg)
	if err != nil {
		return err
	}
	ask := s.operator.Add
	if g.replace {
		ask = s.operator.Grant
	}
	asked, err := ask(cmd.Context(), pod, mounts...)
	if err != nil {
		return mendable(err)
	}
	var targets []string
	for _, m := range mounts {
		targets = append(targets, m.Target)
	}
	return s.finish(cmd, g.form, g.wait, asked, "asks for "+strings.Join(targets, ", "), targets...)
}

// mendable adds what to do where a Pod's annotation is in the way.
func mendable(err error) error {
	if errors.Is(err, operator.ErrUnreadable) {
		return hinted{err, "`node-mounts grant --replace` writes the whole set anew"}
	}
	return err
}

// finish tells what was written, and waits for the answer where that is wanted: to
// mine, where that names targets.
func (s *session) finish(cmd *cobra.Command, form output, w waiting, asked operator.Asked, what string, mine ...string) error {
	doc := document(asked)
	if w.wait {
		return s.await(cmd.Context(), cmd.OutOrStdout(), form, doc, asked, w.timeout, mine...)
	}
	if form.structured() {
		return writeDocument(cmd.OutOrStdout(), form, doc)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "pod/%s %s (set %s)\n", asked.Name, what, asked.Hash)
	return nil
}

// mounts are what is to be granted, by every rule of the contract.
func (g *granting) mounts(cmd *cobra.Command) ([]grant.Mount, error) {
	var given []string
	for _, name := range mountFlags() {
		if cmd.Flags().Changed(name) {
			given = append(given, "--"+name)
		}
	}
	if g.file == "" {
		if g.source == "" || g.target == "" {
			return nil, usageError{fmt.Errorf("what to mount is not said: give --source and --target, or -f")}
		}
		return g.one()
	}
	if len(given) > 0 {
		return nil, usageError{fmt.Errorf("with -f the file says what to mount: leave out %s", strings.Join(given, ", "))}
	}
	text, err := g.read(cmd.InOrStdin())
	if err != nil {
		return nil, err
	}
	mounts, err := parseMounts(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", g.file, err)
	}
	if len(mounts) == 0 {
		return nil, hinted{fmt.Errorf("%s has no mounts", g.file), "`node-mounts revoke POD --all` revokes everything"}
	}
	return mounts, nil
}

func (g *granting) one() ([]grant.Mount, error) {
	if _, ok := grant.Kind(strings.TrimSpace(g.kind)).Info(); !ok {
		return nil, usageError{fmt.Errorf("--kind %.80q: it is one of %s, or \"\"", g.kind, kindNames())}
	}
	if mode := strings.ToLower(strings.TrimSpace(g.mode)); mode != "" && mode != string(grant.ReadOnly) && mode != string(grant.ReadWrite) {
		return nil, usageError{fmt.Errorf("--mode %.80q: it is one of %s, %s", g.mode, grant.ReadWrite, grant.ReadOnly)}
	}
	m := grant.Mount{
		Kind: grant.Kind(g.kind), Source: g.source, Target: g.target, Mode: grant.Mode(g.mode),
		AllowExec: !g.noExec, Revision: g.revision, Secret: g.secret,
	}
	if info, ok := m.Kind.Info(); ok && info.ReadOnly && g.mode == "" {
		m.Mode = grant.ReadOnly
	}
	m, err := grant.Clean(m)
	if err != nil {
		return nil, err
	}
	return []grant.Mount{m}, nil
}

// read reads the file, as far as it can be an annotation.
func (g *granting) read(stdin io.Reader) ([]byte, error) {
	in := stdin
	if g.file != "-" {
		f, err := os.Open(g.file)
		if err != nil {
			return nil, hinted{err, "-f takes a file with the mounts, or - for standard input"}
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, grant.MaxAnnotationBytes+1))
	if err == nil && len(b) > grant.MaxAnnotationBytes {
		err = fmt.Errorf("%s is larger than an annotation may be", g.file)
	}
	return b, err
}
