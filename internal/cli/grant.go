package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/advice"
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

	// notes say what was made of sources that may have been meant otherwise.
	notes []string
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

With --wait it succeeds when these folders are mounted, whatever becomes of
others; with --replace, when the set is, and nothing besides it.

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
	takesFile(cmd, "filename")
	complete(cmd, "kind", strings.Split(kindNames(), ", ")...)
	complete(cmd, "mode", string(grant.ReadOnly), string(grant.ReadWrite))
	cmd.ValidArgsFunction = g.completePod(anyPod, nil)
	return cmd
}

// kindNames are the kinds that are offered. One that this release does not serve is
// taken all the same, and the agent of the Pod says why it is not mounted.
func kindNames() string {
	var names []string
	for _, k := range grant.Kinds() {
		if k.Kind != grant.KindPlain && !k.Unserved {
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
	for _, note := range g.notes {
		fmt.Fprintln(cmd.ErrOrStderr(), advice.Plain(note))
	}
	s, pod, err := g.open(arg)
	if err != nil {
		return err
	}
	ctx, cancel := g.wait.bound(cmd.Context())
	defer cancel()
	ask := s.operator.Add
	if g.replace {
		ask = s.operator.Grant
	}
	asked, err := ask(ctx, pod, mounts...)
	if err != nil {
		return s.unreached(cmd.Context(), ctx, pod, g.wait.timeout, s.mendable(pod, err))
	}
	var targets []string
	for _, m := range mounts {
		targets = append(targets, m.Target)
	}
	w := wanted{asked: asked, timeout: g.wait.timeout}
	if !g.replace {
		w.mounted = targets
	}
	return s.finish(ctx, cmd, g.form, g.wait, w, "asks for "+strings.Join(targets, ", "))
}

// mendable adds what to do where a Pod's annotation is in the way.
func (s *session) mendable(pod operator.Pod, err error) error {
	if errors.Is(err, operator.ErrUnreadable) {
		return advice.With(err, "`node-mounts grant "+s.mine(pod)+" -f FILE --replace` writes the whole set anew")
	}
	return err
}

// finish tells what was written, and waits for the answer where that is wanted.
func (s *session) finish(ctx context.Context, cmd *cobra.Command, form output, wait waiting, w wanted, what string) error {
	if wait.wait {
		return s.await(ctx, cmd, form, w)
	}
	if form.structured() {
		return writeDocument(cmd.OutOrStdout(), form, document(w.asked))
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "pod/%s %s (set %s)\n", w.asked.Name, what, w.asked.Hash)
	return err
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
			return nil, advice.Usage(fmt.Errorf("what to mount is not said: give --source and --target, or -f"), "")
		}
		return g.one()
	}
	if len(given) > 0 {
		return nil, advice.Usage(fmt.Errorf("with -f the file says what to mount: leave out %s", strings.Join(given, ", ")), "")
	}
	text, err := readInput(cmd.InOrStdin(), g.file, grant.MaxAnnotationBytes, "-f takes a file with the mounts, or - for standard input")
	if errors.Is(err, errTooLarge) {
		return nil, fmt.Errorf("%s is larger than an annotation may be", g.file)
	}
	if err != nil {
		return nil, err
	}
	mounts, rooted, err := parseMounts(text)
	g.notes = rooted
	if err != nil {
		return nil, fmt.Errorf("%s: %w", g.file, err)
	}
	if len(mounts) == 0 {
		return nil, advice.With(fmt.Errorf("%s has no mounts", g.file), "`node-mounts revoke POD --all` revokes everything")
	}
	return mounts, nil
}

func (g *granting) one() ([]grant.Mount, error) {
	if _, ok := grant.Kind(strings.TrimSpace(g.kind)).Info(); !ok {
		return nil, advice.Usage(fmt.Errorf("--kind %.80q: it is one of %s, or \"\"", g.kind, kindNames()), "")
	}
	if mode := strings.ToLower(strings.TrimSpace(g.mode)); mode != "" && mode != string(grant.ReadOnly) && mode != string(grant.ReadWrite) {
		return nil, advice.Usage(fmt.Errorf("--mode %.80q: it is one of %s, %s", g.mode, grant.ReadWrite, grant.ReadOnly), "")
	}
	m := grant.Mount{
		Kind: grant.Kind(g.kind), Source: g.source, Target: g.target, Mode: grant.Mode(g.mode),
		AllowExec: !g.noExec, Revision: g.revision, Secret: g.secret,
	}
	if info, ok := m.Kind.Info(); ok && info.ReadOnly && g.mode == "" {
		m.Mode = grant.ReadOnly
	}
	m, err := grant.Clean(m)
	if refusal, ok := errors.AsType[*grant.Refusal](err); ok && refusal.Key == "#0" { // a set's word for a place in it
		refusal.Key = "--target"
	}
	if err != nil {
		return nil, err
	}
	g.notes = noteRooted(nil, g.source, m)
	return []grant.Mount{m}, nil
}
