package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/operator"
)

// revoking are the flags of revoke.
type revoking struct {
	cluster
	form          output
	all, release  bool
	ignoreMissing bool
	wait          waiting
}

func newRevoke() *cobra.Command {
	var r revoking
	cmd := &cobra.Command{
		Use:   "revoke POD (TARGET... | --all | --release)",
		Short: "Take folders away from a running Pod",
		Long: `revoke takes targets out of what the Pod asks for; everything else stays. When one
of them is not granted nothing is written at all.

With --all the Pod asks for nothing, and the agent answers when everything is
gone. With --release the annotation itself goes, and nothing is answered.

With --wait it succeeds when these targets are gone and no process holds them,
whatever becomes of others.`,
		Example: `  node-mounts revoke sandbox penguins --wait
  node-mounts revoke sandbox --all --wait`,
		Args: takes(1, -1, "a POD and what to revoke"),
		RunE: func(cmd *cobra.Command, args []string) error { return r.run(cmd, args[0], args[1:]) },
	}
	f := cmd.Flags()
	f.BoolVar(&r.all, "all", false, "revoke everything")
	f.BoolVar(&r.release, "release", false, "revoke everything and remove the annotation")
	f.BoolVar(&r.ignoreMissing, "ignore-not-found", false, "what is not granted is no error")
	r.wait.bind(cmd)
	r.bind(cmd)
	r.form.bind(cmd, table, wide, asJSON, asYAML)
	cmd.ValidArgsFunction = r.completePod(grantedPod, granted)
	return cmd
}

// granted are the targets that a Pod asks for.
func granted(s summary) []string {
	var names []string
	for _, t := range s.Targets {
		if t.Kind != nil {
			names = append(names, t.Target)
		}
	}
	return names
}

func (r *revoking) run(cmd *cobra.Command, arg string, targets []string) error {
	ways := 0
	for _, way := range []bool{len(targets) > 0, r.all, r.release} {
		if way {
			ways++
		}
	}
	if ways != 1 {
		return advice.Usage(fmt.Errorf("say what to revoke: targets, or --all, or --release"), "")
	}
	if err := r.wait.check(cmd); err != nil {
		return err
	}
	if r.release && r.wait.wait {
		return advice.Usage(fmt.Errorf("nothing is answered after --release, so there is nothing to wait for"), "--all --wait revokes everything and waits")
	}
	s, pod, err := r.open(arg)
	if err != nil {
		return err
	}
	ctx, cancel := r.wait.bound(cmd.Context())
	defer cancel()
	if len(targets) > 0 {
		err = r.targets(ctx, cmd, s, pod, targets)
	} else {
		err = r.everything(ctx, cmd, s, pod)
	}
	if exitStatus(err) == advice.StatusTimeout {
		return err
	}
	return s.unreached(cmd.Context(), ctx, pod, r.wait.timeout, err)
}

// targets revokes some of the set. With --ignore-not-found the others are left
// out and it is tried again: what is granted may change meanwhile.
func (r *revoking) targets(ctx context.Context, cmd *cobra.Command, s *session, pod operator.Pod, targets []string) error {
	all := slices.Clone(targets)
	for {
		asked, err := s.operator.Remove(ctx, pod, targets...)
		missing, ok := errors.AsType[*operator.NotGrantedError](err)
		switch {
		case err == nil:
			w := wanted{asked: asked, timeout: r.wait.timeout, gone: all}
			return s.finish(ctx, cmd, r.form, r.wait, w, "no longer asks for "+strings.Join(targets, ", "))
		case !ok:
			return s.mendable(pod, err)
		case slices.ContainsFunc(missing.Targets, func(t string) bool { return strings.HasPrefix(t, "#") }):
			return advice.With(err, s.nameless(pod)+" Nothing was changed.")
		case !r.ignoreMissing:
			return advice.With(err, "`node-mounts status "+s.mine(pod)+"` shows what is granted; nothing was changed")
		}
		targets = slices.DeleteFunc(targets, func(t string) bool { return slices.Contains(missing.Targets, t) })
		if len(targets) == 0 {
			return r.nothing(ctx, cmd, s, pod, all...)
		}
	}
}

func (r *revoking) everything(ctx context.Context, cmd *cobra.Command, s *session, pod operator.Pod) error {
	before, err := s.operator.Asked(ctx, pod)
	if errors.Is(err, operator.ErrNoGrant) && r.ignoreMissing {
		return r.nothing(ctx, cmd, s, pod)
	}
	if err != nil {
		return err
	}
	pod.UID = before.UID
	if r.all {
		asked, err := s.operator.Grant(ctx, pod)
		if err != nil {
			return err
		}
		return s.finish(ctx, cmd, r.form, r.wait, wanted{asked: asked, timeout: r.wait.timeout}, "asks for nothing")
	}
	if err := s.operator.Clear(ctx, pod); err != nil {
		return err
	}
	return r.said(cmd, pod, "is released")
}

// nothing tells that there was nothing to revoke.
func (r *revoking) nothing(ctx context.Context, cmd *cobra.Command, s *session, pod operator.Pod, targets ...string) error {
	asked, err := s.operator.Asked(ctx, pod)
	if errors.Is(err, operator.ErrNoGrant) {
		return r.said(cmd, pod, "has no grant")
	}
	if err != nil {
		return err
	}
	return s.finish(ctx, cmd, r.form, r.wait, wanted{asked: asked, timeout: r.wait.timeout, gone: targets}, "did not ask for it")
}

// said tells of a Pod that asks for nothing.
func (r *revoking) said(cmd *cobra.Command, pod operator.Pod, what string) error {
	if r.form.structured() {
		doc := result{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID), State: stateNone, Targets: []target{}}
		return writeDocument(cmd.OutOrStdout(), r.form, doc)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "pod/%s %s\n", pod.Name, what)
	return err
}
