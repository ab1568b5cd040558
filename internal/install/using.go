package install

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/fleet"
	"github.com/datalayer/node-mounts/internal/nodeview"
)

// use is what stands on the nodes, as far as it is known.
type use struct {
	// pods have mounts, NAMESPACE/NAME.
	pods []string
	// unasked are nodes with Pods that may have mounts and no agent that says so, with
	// the reason.
	unasked []string
}

func (u use) none() bool { return len(u.pods)+len(u.unasked) == 0 }

// refusal is why nothing is done while something stands or may stand.
func (u use) refusal() error {
	var parts []error
	if len(u.pods) > 0 {
		parts = append(parts, fmt.Errorf("%w: %s", ErrInUse, listed(u.pods)))
	}
	if len(u.unasked) > 0 {
		parts = append(parts, fmt.Errorf("%w: %s", ErrUnasked, listed(u.unasked)))
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return fmt.Errorf("%w; %w", parts[0], parts[1])
}

// revoke is the command that takes mounts away and waits for it. Without the wait
// the answer is gone before the mounts are.
func (u use) revoke() string {
	namespace, pod := "NAMESPACE", "POD"
	if len(u.pods) == 1 {
		namespace, pod, _ = strings.Cut(u.pods[0], "/")
	}
	return fmt.Sprintf("`node-mounts revoke %s --all --wait -n %s`", pod, namespace)
}

// advice is what to do before the agents go.
func (u use) advice() string {
	const keep = "; with --force mounts stay, and their Pods hang in Terminating when they are deleted"
	if len(u.pods) == 0 {
		return "bring those agents back, or delete the Pods of those nodes: `node-mounts status` shows them" + keep
	}
	return "revoke them (" + u.revoke() + ") or delete the Pods" + keep
}

// using finds out which Pods have mounts. The annotations alone do not tell: a
// revocation removes the answer at once, and an agent that is dead takes nothing
// away. So the agents are asked, and one that does not answer counts where a Pod of
// its node carries the gateway volume: nothing can stand for any other Pod.
func (c Cluster) using(ctx context.Context, s Serving) (use, error) {
	list, err := c.Client.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return use{}, fmt.Errorf("looking for Pods with mounts: %w", err)
	}
	names := grant.NamesFor(s.Prefix)
	pods, matter := map[string]bool{}, map[string]string{}
	for i := range list.Items {
		p := &list.Items[i]
		if hasMounts(p, names) {
			pods[p.Namespace+"/"+p.Name] = true
		}
		if p.Spec.NodeName != "" && hasVolume(p, s.Volume) {
			matter[p.Spec.NodeName] = "it has no agent"
		}
	}
	answers, err := c.ask(ctx)
	if err != nil {
		return use{}, err
	}
	for _, a := range answers {
		if a.View == nil {
			if _, matters := matter[a.Node]; matters {
				matter[a.Node] = a.Err.Error()
			}
			continue
		}
		delete(matter, a.Node)
		for _, p := range a.View.Pods {
			if stands(p) {
				pods[nameOf(p)] = true
			}
		}
	}
	u := use{pods: slices.Sorted(maps.Keys(pods))}
	for node, why := range matter {
		u.unasked = append(u.unasked, fmt.Sprintf("%s (%s)", node, why))
	}
	slices.Sort(u.unasked)
	return u, nil
}

// ask asks every agent what stands on its node.
func (c Cluster) ask(ctx context.Context) ([]fleet.Answer, error) {
	if c.Agents == nil {
		return nil, nil
	}
	c.tell("asking the agents what is mounted")
	found, err := c.Agents.Agents(ctx)
	if err != nil {
		return nil, fmt.Errorf("looking for the agents: %w", err)
	}
	return fleet.Ask(ctx, c.Agents, found.Agents, fleet.DefaultBound), nil
}

// stands tells whether something would be left of a Pod without its agent that keeps
// it from ending. Its empty tree does not: kubelet unmounts a tmpfs.
func stands(p nodeview.Pod) bool { return len(p.Mounts)+len(p.Held)+p.Leaked > 0 }

func nameOf(p nodeview.Pod) string {
	if p.Name == "" {
		return "uid " + p.UID
	}
	return p.Namespace + "/" + p.Name
}

func hasVolume(p *corev1.Pod, name string) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
}

// settled refuses a change of what the agents find their mounts by while some stand:
// the agents of after would know nothing of them.
func (c Cluster) settled(ctx context.Context, t *todo) error {
	if !installed(t.last) {
		return nil
	}
	was, before, err := settingsOf(t.last)
	if err != nil {
		return err
	}
	changes := changed(before, t.all)
	if len(changes) == 0 {
		return nil
	}
	u, err := c.using(ctx, was)
	if err != nil || u.none() {
		return err
	}
	return advice.With(
		fmt.Errorf("nothing was changed: %s, while %w", strings.Join(changes, ", "), u.refusal()),
		"revoke everything first ("+u.revoke()+", for each Pod) and repeat this command: agents with another value would leave those mounts behind",
	)
}

// changed are the values that mounts are found by and that would be others.
func changed(before, after map[string]any) []string {
	var out []string
	for _, path := range []string{"nodeMountGateway.root", "kubeletDir", "nodeMountGateway.annotationPrefix", "nodeMountGateway.volumeName", namespaceValue} {
		from, to := look(before, path), look(after, path)
		widened := path == namespaceValue && (to == nil || to == "") // all namespaces, that one too
		if !widened && fmt.Sprint(from) != fmt.Sprint(to) {
			out = append(out, fmt.Sprintf("%s would change from %q to %q", path, text(from), text(to)))
		}
	}
	return out
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// ErrUnasked is an uninstallation while it is not known what stands.
var ErrUnasked = errors.New("what is mounted is not known where no agent answers")
