package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/operator"
)

// defaultWait is how long an answer is waited for. A folder takes milliseconds; a
// Pod whose container has to start first takes as long as that.
const defaultWait = time.Minute

// lookBound is how long before the end of a wait a Pod that has not answered is
// looked at, at most: after the end there is no time left for it.
const lookBound = 2 * time.Second

func newWait() *cobra.Command {
	var c cluster
	var form output
	w := waiting{wait: true}
	cmd := &cobra.Command{
		Use:   "wait POD",
		Short: "Wait until the agent has answered what a Pod asks for",
		Long: `wait takes the set that the Pod asks for when it starts, and waits for the answer
to exactly that set. It succeeds when everything in it is mounted, and nothing that
was revoked before is still there. An answer by which something only takes its time
(` + shortCode(grant.CodeNotReady) + `) ends no wait: the agent answers again.`,
		Example: `  node-mounts wait sandbox --timeout 10s`,
		Args:    takes(1, 1, "a POD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := positive(w.timeout); err != nil {
				return err
			}
			s, pod, err := c.open(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := w.bound(cmd.Context())
			defer cancel()
			asked, err := s.operator.Asked(ctx, pod)
			if err != nil {
				return s.unreached(cmd.Context(), ctx, pod, w.timeout, err)
			}
			return s.await(ctx, cmd, form, wanted{asked: asked, timeout: w.timeout})
		},
	}
	c.bind(cmd)
	form.bind(cmd, table, wide, asJSON, asYAML)
	cmd.Flags().DurationVar(&w.timeout, "timeout", defaultWait, "how long it may take in all")
	cmd.ValidArgsFunction = c.completePod(grantedPod, nil)
	return cmd
}

// waiting are the flags of a command that can wait for the answer.
type waiting struct {
	wait    bool
	timeout time.Duration
}

func (w *waiting) bind(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&w.wait, "wait", false, "wait for the answer")
	cmd.Flags().DurationVar(&w.timeout, "timeout", defaultWait, "how long it may take in all, with --wait")
}

func (w *waiting) check(cmd *cobra.Command) error {
	if !w.wait && cmd.Flags().Changed("timeout") {
		return advice.Usage(fmt.Errorf("--timeout has no meaning without --wait"), "")
	}
	return positive(w.timeout)
}

func positive(timeout time.Duration) error {
	if timeout <= 0 {
		return advice.Usage(fmt.Errorf("--timeout %s is no time to wait", timeout), "")
	}
	return nil
}

// bound ends what a command that waits does with the API server: --timeout is for
// all of it, also for what comes before the wait.
func (w *waiting) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if !w.wait {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, w.timeout)
}

// unreached is the error of what was to be done before the wait, where the time was
// over before it was done.
func (s *session) unreached(whole, bounded context.Context, pod operator.Pod, timeout time.Duration, err error) error {
	if !over(whole, bounded, err) {
		return err
	}
	err = fmt.Errorf("within %s: %w", timeout, err)
	if apierrors.IsConflict(err) {
		return advice.Late(err, "")
	}
	return advice.Late(err, "the API server does not answer: when it does, `node-mounts status "+s.mine(pod)+"` tells what the Pod asks for")
}

// over tells whether an error means that the time of a wait was over.
func over(whole, bounded context.Context, err error) bool {
	return errors.Is(err, context.DeadlineExceeded) && errors.Is(bounded.Err(), context.DeadlineExceeded) && whole.Err() == nil
}

// result is what grant, revoke and wait tell of a Pod.
type result struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	UID       string   `json:"uid,omitempty"`
	Hash      string   `json:"hash,omitempty"`
	State     string   `json:"state"` // of the answer, "pending" without one, "none" where nothing is asked, "ending" where none comes
	Targets   []target `json:"targets"`
}

// document is the result before there is an answer.
func document(a operator.Asked) result {
	return result{
		Namespace: a.Namespace, Name: a.Name, UID: string(a.UID), Hash: a.Hash,
		State: statePending, Targets: targets(grant.Decode(a.Annotation), nil),
	}
}

// answered is the result by an answer.
func answered(a operator.Asked, st grant.Status) result {
	doc := document(a)
	doc.State, doc.Targets = string(st.State), targets(grant.Decode(a.Annotation), &st)
	return doc
}

// await waits for the final answer to the set until ctx ends, and writes it. Its error is
// nil when the answer says that what was wanted is so.
func (s *session) await(ctx context.Context, cmd *cobra.Command, form output, w wanted) error {
	out := cmd.OutOrStdout()
	doc := document(w.asked)
	glance := s.glance(ctx, w.asked.Pod)
	asked, st, err := s.follow(ctx, w.asked, w.targets())
	switch late := over(cmd.Context(), ctx, err); {
	case late && st.State != "":
		w.asked = asked
		if err := answered(asked, st).write(out, form); err != nil {
			return err
		}
		return s.unfinished(w, st, err, <-glance)
	case late:
		return unanswered(out, form, doc, s.late(asked, w.timeout, err, <-glance))
	case errors.Is(err, operator.ErrEnding) && w.takes():
		doc.State = stateEnding
		return unanswered(out, form, doc, advice.With(
			fmt.Errorf("it is written, and no answer comes: the Pod %s/%s is ending, and its agent takes everything away from it (%w)", asked.Namespace, asked.Name, err),
			"`node-mounts status "+s.mine(asked.Pod)+"` shows no under PUBLISHED when everything is gone",
		))
	case err != nil:
		return err
	}
	w.asked = asked
	if err := answered(asked, st).write(out, form); err != nil {
		return err
	}
	return s.verdict(w, st)
}

// unanswered writes the document of a wait that has ended without an answer: who
// asks for documents gets one, and a person reads the error.
func unanswered(out io.Writer, form output, doc result, why error) error {
	if form.structured() {
		if err := writeDocument(out, form, doc); err != nil {
			return err
		}
	}
	return why
}

// follow waits for the answer to the set, or to a later one as long as that asks
// for the same at the targets of mine: what somebody else adds or takes beside
// them is no concern of who granted these.
func (s *session) follow(ctx context.Context, asked operator.Asked, mine []string) (operator.Asked, grant.Status, error) {
	for {
		st, err := s.operator.Wait(ctx, asked, mine...)
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

// sighting is a Pod as it was shortly before a wait for its answer ended.
type sighting struct {
	pod *corev1.Pod
	err error
}

// glance looks at the Pod shortly before ctx ends. Nothing comes where ctx is
// cancelled before.
func (s *session) glance(ctx context.Context, pod operator.Pod) <-chan sighting {
	seen := make(chan sighting, 1)
	end, _ := ctx.Deadline()
	left := time.Until(end)
	timer := time.NewTimer(left - min(left/2, lookBound))
	go func() {
		defer timer.Stop()
		select {
		case <-ctx.Done():
			seen <- sighting{err: ctx.Err()}
		case <-timer.C:
			p, err := s.api.Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
			seen <- sighting{p, err}
		}
	}()
	return seen
}

// late says what is known of an answer that did not come: of the API, of the Pod,
// and of where its agent should be.
func (s *session) late(asked operator.Asked, timeout time.Duration, why error, seen sighting) error {
	err := fmt.Errorf("no answer within %s to the set %s of Pod %s/%s", timeout, asked.Hash, asked.Namespace, asked.Name)
	if seen.err != nil {
		return advice.Late(fmt.Errorf("%w: %w", err, why), "the API server does not answer: try again when it does")
	}
	known, hint := s.known(seen.pod)
	return advice.Late(fmt.Errorf("%w: %s", err, known), hint)
}

// unfinished says what is missing by the last answer of a wait whose time is over.
func (s *session) unfinished(w wanted, st grant.Status, why error, seen sighting) error {
	err := s.verdict(w, st)
	if err == nil { // what is missing is a flaw too
		return why
	}
	err = fmt.Errorf("after %s %w", w.timeout, err)
	if seen.err != nil {
		return advice.Late(fmt.Errorf("%w: %w", err, why), "the API server does not answer: try again when it does")
	}
	return advice.Late(err, "the agent goes on: `node-mounts wait "+s.mine(w.asked.Pod)+"` waits for it; if it lasts, `kubectl describe pod "+s.at(w.asked.Pod)+"` shows the Pod's events")
}

// known says in what state a Pod is that has no answer, and what to look at.
func (s *session) known(p *corev1.Pod) (fact, hint string) {
	node := p.Spec.NodeName
	agents := "is an agent running on the node, is it ready, does it serve this namespace, and may it patch Pods there? `kubectl get pods -A -o wide --field-selector spec.nodeName=" + node + s.elsewhere + "`"
	describe := "`kubectl describe pod " + s.at(operator.Pod{Namespace: p.Namespace, Name: p.Name}) + "` tells why"
	sum := summarize(p, s.names)
	switch {
	case node == "":
		return fmt.Sprintf("it is on no node yet (phase %s)", p.Status.Phase), describe
	case sum.Answer == answerStale:
		return fmt.Sprintf("the answer it has, by the agent on node %s, is to an earlier set", node), agents
	case p.Status.Phase == corev1.PodPending:
		return fmt.Sprintf("no container of it runs on node %s yet, and mounts come after the first", node), describe + "; then: " + agents
	case sum.Answer == answerGarbled:
		return fmt.Sprintf("the answer it has on node %s is not an agent's", node), agents
	}
	return fmt.Sprintf("it runs on node %s, and nothing there has answered", node), agents
}
