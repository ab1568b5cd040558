package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/operator"
)

// defaultWait is how long an answer is waited for. A folder takes milliseconds; a
// Pod whose container has to start first takes as long as that.
const defaultWait = time.Minute

// lookBound is how long the last look at a Pod that has not answered may take.
const lookBound = 5 * time.Second

func newWait() *cobra.Command {
	var c cluster
	var form output
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait POD",
		Short: "Wait until the agent has answered what a Pod asks for",
		Long: `wait takes the set that the Pod asks for when it starts, and waits for the answer
to exactly that set. It succeeds when everything in it is mounted.`,
		Example: `  node-mounts wait sandbox --timeout 10s`,
		Args:    takes(1, 1, "a POD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := positive(timeout); err != nil {
				return err
			}
			s, pod, err := c.open(args[0])
			if err != nil {
				return err
			}
			asked, err := s.operator.Asked(cmd.Context(), pod)
			if err != nil {
				return err
			}
			return s.await(cmd.Context(), cmd.OutOrStdout(), form, document(asked), asked, timeout)
		},
	}
	c.bind(cmd)
	form.bind(cmd, table, wide, asJSON, asYAML)
	cmd.Flags().DurationVar(&timeout, "timeout", defaultWait, "how long to wait")
	cmd.ValidArgsFunction = c.completePod(grantedPod, nil)
	return cmd
}

func positive(timeout time.Duration) error {
	if timeout <= 0 {
		return usageError{fmt.Errorf("--timeout %s is no time to wait", timeout)}
	}
	return nil
}

// result is what grant, revoke and wait tell of a Pod.
type result struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	UID       string   `json:"uid,omitempty"`
	Hash      string   `json:"hash,omitempty"`
	State     string   `json:"state"` // of the answer, "pending" without one, "none" where nothing is asked
	Targets   []target `json:"targets"`
}

// document is the result before there is an answer.
func document(a operator.Asked) result {
	return result{
		Namespace: a.Namespace, Name: a.Name, UID: string(a.UID), Hash: a.Hash,
		State: statePending, Targets: targets(grant.Decode(a.Annotation), nil),
	}
}

// await waits for the answer to the set and writes it. Its error is nil when
// everything is mounted, or everything of mine where that names targets.
func (s *session) await(ctx context.Context, out io.Writer, form output, doc result, asked operator.Asked, timeout time.Duration, mine ...string) error {
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	asked, st, err := s.follow(waiting, asked, mine)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return s.late(ctx, asked, timeout, err)
	}
	if err != nil {
		return err
	}
	doc.State, doc.Targets = string(st.State), targets(grant.Decode(asked.Annotation), &st)
	if err := doc.write(out, form); err != nil {
		return err
	}
	if len(mine) > 0 {
		st = only(st, mine)
	}
	return verdict(asked, st)
}

// follow waits for the answer to the set, or to a later one as long as that asks
// for the same at the targets of mine: what somebody else adds or takes beside
// them is no concern of who granted these.
func (s *session) follow(ctx context.Context, asked operator.Asked, mine []string) (operator.Asked, grant.Status, error) {
	for {
		st, err := s.operator.Wait(ctx, asked)
		if !errors.Is(err, operator.ErrSuperseded) || len(mine) == 0 {
			return asked, st, err
		}
		now, askErr := s.operator.Asked(ctx, operator.Pod{Namespace: asked.Namespace, Name: asked.Name, UID: asked.UID})
		if askErr != nil || !sameAt(asked.Annotation, now.Annotation, mine) {
			return asked, st, err
		}
		asked = now
	}
}

// sameAt tells whether two sets ask for the same at the targets.
func sameAt(a, b string, targets []string) bool {
	at := func(annotation string) map[string]grant.Mount {
		out := make(map[string]grant.Mount)
		for _, m := range grant.Decode(annotation).Mounts {
			if slices.Contains(targets, m.Target) {
				out[m.Target] = m
			}
		}
		return out
	}
	return maps.Equal(at(a), at(b))
}

// only is the part of an answer that is about the targets, or about all.
func only(st grant.Status, targets []string) grant.Status {
	failed := make(map[string]grant.Code)
	for key, code := range st.Failed {
		if key == grant.WholeSet || slices.Contains(targets, key) {
			failed[key] = code
		}
	}
	st.Failed = failed
	if len(failed) == 0 {
		st.State = grant.StateReady
	}
	return st
}

func (r result) write(out io.Writer, form output) error {
	if form.structured() {
		return writeDocument(out, form, r)
	}
	fmt.Fprintf(out, "pod/%s %s\n", r.Name, r.State)
	if len(r.Targets) == 0 {
		return nil
	}
	return writeTargets(out, r.Targets, form == wide, false)
}

// verdict is the error of an answer that says that something is not as it was
// asked.
func verdict(asked operator.Asked, st grant.Status) error {
	if st.State == grant.StateReady {
		return nil
	}
	var what, advice []string
	for _, key := range slices.Sorted(maps.Keys(st.Failed)) {
		code := st.Failed[key]
		what = append(what, fmt.Sprintf("%s: %s", key, code))
		if r := remedy(code); r != "" && !slices.Contains(advice, r) {
			advice = append(advice, r)
		}
	}
	return hinted{
		fmt.Errorf("the Pod %s/%s is %s (%s)", asked.Namespace, asked.Name, st.State, strings.Join(what, ", ")),
		strings.Join(advice, " "),
	}
}

// late says what is known of an answer that did not come: of the API, of the Pod,
// and of where its agent should be.
func (s *session) late(ctx context.Context, asked operator.Asked, timeout time.Duration, why error) error {
	err := fmt.Errorf("no answer within %s to the set %s of Pod %s/%s", timeout, asked.Hash, asked.Namespace, asked.Name)
	ctx, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	p, gerr := s.api.Pods(asked.Namespace).Get(ctx, asked.Name, metav1.GetOptions{})
	if gerr != nil {
		return timedOut{hinted{fmt.Errorf("%w: %w", err, why), "the API server does not answer: try again when it does"}}
	}
	known, advice := s.known(p)
	return timedOut{hinted{fmt.Errorf("%w: %s", err, known), advice}}
}

// known says in what state a Pod is that has no answer, and what to look at.
func (s *session) known(p *corev1.Pod) (fact, advice string) {
	node := p.Spec.NodeName
	agents := "is an agent running on the node, and does it serve this namespace? `kubectl get pods -A -o wide --field-selector spec.nodeName=" + node + "`"
	sum := summarize(p, s.names)
	switch {
	case node == "":
		return fmt.Sprintf("it is on no node yet (phase %s)", p.Status.Phase), "`kubectl describe pod " + p.Name + "` tells why"
	case sum.Answer == answerStale:
		return fmt.Sprintf("the answer it has, by the agent on node %s, is to an earlier set", node), agents
	case p.Status.Phase == corev1.PodPending:
		return fmt.Sprintf("no container of it runs on node %s yet, and mounts come after the first", node), "`kubectl describe pod " + p.Name + "` tells why; then: " + agents
	case sum.Answer == answerGarbled:
		return fmt.Sprintf("the answer it has on node %s is not an agent's", node), agents
	}
	return fmt.Sprintf("it runs on node %s, and nothing there has answered", node), agents
}
