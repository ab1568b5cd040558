package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/kube"
	release "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/nodeview"
)

// ErrInUse is an uninstallation while Pods have mounts.
var ErrInUse = errors.New("some Pods have mounts")

// ErrNotInstalled is an uninstallation of what is not there.
var ErrNotInstalled = errors.New("it is not installed")

// Removal is what is to be taken away.
type Removal struct {
	// Force also where Pods have mounts, or may have: they keep them, and nobody takes
	// them away.
	Force    bool
	Timeout  time.Duration
	Operator *Operator
}

// Removed is what was done.
type Removed struct {
	Release   string `json:"release"`
	Namespace string `json:"namespace"`
	// Using are the Pods that had mounts, NAMESPACE/NAME.
	Using []string `json:"using"`
	// Unasked are the nodes where it is not known what is mounted, and why.
	Unasked []string `json:"unasked"`
	// Operator is the Deployment that was turned off, NAMESPACE/NAME.
	Operator string `json:"operator,omitempty"`
	// Stays is what is left on the nodes.
	Stays string `json:"stays"`
}

// Uninstall turns the operator's half off, and takes the agents away.
func (c Cluster) Uninstall(ctx context.Context, r Removal) (Removed, error) {
	done := Removed{Release: ReleaseName, Namespace: c.Helm.namespace, Using: []string{}, Unasked: []string{}}
	last, err := c.Helm.newest()
	if err != nil {
		return done, err
	}
	if !installed(last) {
		return done, advice.With(
			fmt.Errorf("release %s in namespace %s: %w", ReleaseName, c.Helm.namespace, ErrNotInstalled),
			"-n chooses the namespace of the release: `helm list -A` shows where it is",
		)
	}
	s, all, err := settingsOf(last)
	if err != nil {
		return done, err
	}
	done.Stays = cmp.Or(text(look(all, "nodeMountGateway.root")), nodeview.DefaultRoot)
	u, err := c.using(ctx, s)
	if err != nil {
		return done, err
	}
	done.Using, done.Unasked = append(done.Using, u.pods...), append(done.Unasked, u.unasked...)
	if !u.none() && !r.Force {
		return done, advice.With(u.refusal(), u.advice())
	}
	if done.Operator, err = c.turnOff(ctx, r); err != nil {
		return done, err
	}
	c.tell("taking the release away")
	if err := c.Helm.remove(r.Timeout); err != nil {
		return done, err
	}
	return done, c.gone(ctx, last, r.Timeout)
}

// gone waits until the agents have ended. The DaemonSet is gone before them.
func (c Cluster) gone(ctx context.Context, last *release.Release, timeout time.Duration) error {
	objects, err := parse(last.Manifest, last.Namespace)
	if err != nil {
		return err
	}
	a, err := findAgent(objects)
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	var left []string
	err = wait.PollUntilContextCancel(ctx, c.interval(), true, func(ctx context.Context) (bool, error) {
		list, err := c.Client.CoreV1().Pods(a.Namespace).List(ctx, a.pods())
		if err != nil {
			return false, transient(err)
		}
		now := []string{}
		for _, p := range list.Items {
			now = append(now, p.Name+" on "+p.Spec.NodeName)
		}
		if len(now) != len(left) {
			c.tell("%s still there", of(len(now), "agent", "is", "are"))
		}
		left = now
		return len(left) == 0, nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return advice.With(
			fmt.Errorf("the release is gone, and after %s agents are still there (%s): %w", timeout, listed(left), ErrTimeout),
			"is the kubelet of their nodes alive? `kubectl get nodes`",
		)
	}
	if err != nil {
		return fmt.Errorf("waiting for the agents to end: %w", err)
	}
	return nil
}

// turnOff is the first half of an uninstallation. An operator that goes on granting
// makes Pods that wait for ever.
func (c Cluster) turnOff(ctx context.Context, r Removal) (string, error) {
	if r.Operator != nil {
		h, err := c.half(ctx, *r.Operator)
		if err != nil {
			return "", err
		}
		return r.Operator.String(), c.turn(ctx, h, false)
	}
	halves, err := c.onHalves(ctx, nil)
	if err != nil || r.Force {
		return "", err
	}
	for _, o := range halves {
		return "", advice.With(
			fmt.Errorf("the operator's half is on: %s would go on to ask for mounts that nobody makes", o),
			fmt.Sprintf("turn it off first: `%s`, or --operator %s does it here", o.Switch(false), o),
		)
	}
	return "", nil
}

// settingsOf are what the agents of a release were told, and all its values.
func settingsOf(last *release.Release) (s Serving, all map[string]any, err error) {
	all, err = util.CoalesceValues(last.Chart, last.Config)
	if err != nil {
		return s, nil, fmt.Errorf("reading the values of the release: %w", err)
	}
	return servingOf(all, last.Namespace), all, nil
}

// hasMounts tells whether an agent has something of the Pod to take away. The answer
// lists what stands; a grant that is not answered yet may stand in part. Of a Pod
// that has ended the agent has taken all away, and its answer stays.
func hasMounts(p *corev1.Pod, names grant.Names) bool {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return false
	}
	var answered string
	if text, ok := p.Annotations[names.Ready]; ok {
		st, err := grant.DecodeStatus(text)
		if err != nil || len(st.Mounted) > 0 {
			return true
		}
		answered = st.Hash
	}
	text, asks := p.Annotations[names.Mounts]
	if !asks || p.Spec.NodeName == "" {
		return false
	}
	set := grant.Decode(text)
	return len(set.Mounts) > 0 && set.Hash != answered
}

func listed(pods []string) string {
	const most = 10
	if len(pods) <= most {
		return strings.Join(pods, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(pods[:most], ", "), len(pods)-most)
}

// remove takes the release away, and waits until its objects are gone.
func (h *Helm) remove(timeout time.Duration) error {
	un := action.NewUninstall(h.cfg)
	un.Timeout, un.WaitStrategy, un.DeletionPropagation = timeout, kube.StatusWatcherStrategy, "background"
	if _, err := un.Run(ReleaseName); err != nil {
		return advice.With(fmt.Errorf("taking the release away: %w", err), "repeat this command; `helm uninstall "+ReleaseName+" -n "+h.namespace+"` does the same")
	}
	return nil
}
