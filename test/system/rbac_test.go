package system_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/datalayer/node-mounts/test/ports"
)

// Every agent of these tests works as a user with agentRules in one namespace.
// This one shows that they are all it has.
func agentNeedsItsRole(t *testing.T, c *cluster) {
	n, other := c.node(t), c.node(t)
	p, q := n.run("sandbox"), other.create("sandbox")
	n.startAgent(agentOptions{})
	p.grant(twoFolders()...)
	eventually(t, "an event about the mounts", func() string {
		events, err := c.admin.CoreV1().Events(n.namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + p.UID})
		must(t, err)
		if len(events.Items) == 0 {
			return "there is none"
		}
		return ""
	})
	mustBeForbidden(t, n, p, q)
	p.grant()
	p.delete()
	q.remove()
}

// withoutEvents: the right to write events can be withheld, and nothing else
// depends on it.
func withoutEvents(t *testing.T, c *cluster) {
	n := c.nodeWith(t, podRules())
	p := n.run("sandbox")
	n.startAgent(agentOptions{})
	p.grant(twoFolders()...)
	n.agent.Says("forbidden")
	events, err := c.admin.CoreV1().Events(n.namespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(events.Items) > 0 {
		t.Errorf("events: %v", events.Items)
	}
	p.grant(home("home/users/bob", "bob"))
	p.delete()
}

// withoutPatch: an agent that may read Pods and not write to them mounts, and nobody
// would ever know. It is not ready, and says why, until it has the right.
func withoutPatch(t *testing.T, c *cluster) {
	rules := agentRules()
	for i := range rules {
		rules[i].Verbs = slices.DeleteFunc(slices.Clone(rules[i].Verbs), func(verb string) bool {
			return verb == "patch" && slices.Contains(rules[i].Resources, "pods")
		})
	}
	n := c.nodeWith(t, rules)
	p := n.run("sandbox")
	port := ports.Free(t, "")
	n.startAgent(agentOptions{flags: []string{"--health-port", port}})
	ready := func() string {
		resp, err := http.Get("http://127.0.0.1:" + port + "/readyz")
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		must(t, err)
		return strings.TrimSpace(string(body))
	}
	eventually(t, "an agent that may not answer to be ready before it has to", func() string {
		if now := ready(); now != "ok" {
			return now
		}
		return ""
	})
	asked := p.ask(twoFolders()...)
	eventually(t, "the agent to say that it may not answer", func() string {
		if now := ready(); !strings.Contains(now, "answers cannot be written in the namespace "+n.namespace) {
			return now
		}
		return ""
	})
	c.allow(t, n.namespace, agentRules())
	p.mustBeReady(p.answered(asked), twoFolders())
	eventually(t, "the agent to be ready", func() string {
		if now := ready(); now != "ok" {
			return now
		}
		return ""
	})
	p.grant()
	p.delete()
}

// mustBeForbidden tries with the agent's own credentials what it has no business
// to do. p is a Pod that it serves, q one of another namespace.
func mustBeForbidden(t *testing.T, n *node, p, q *pod) {
	t.Helper()
	agent, err := kubernetes.NewForConfig(configOf(t, n.kubeconfig))
	must(t, err)
	ctx, core, ns := t.Context(), agent.CoreV1(), n.namespace
	now, err := core.Pods(ns).Get(ctx, p.name, metav1.GetOptions{})
	must(t, err)
	for what, try := range map[string]func() error{
		"create a Pod": func() error {
			_, err := core.Pods(ns).Create(ctx, pooledPod("another", n.name), metav1.CreateOptions{})
			return err
		},
		"delete a Pod": func() error { return core.Pods(ns).Delete(ctx, p.name, metav1.DeleteOptions{}) },
		"delete all Pods": func() error {
			return core.Pods(ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		},
		"evict a Pod": func() error {
			return core.Pods(ns).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: p.name, Namespace: ns}})
		},
		"replace a Pod": func() error {
			_, err := core.Pods(ns).Update(ctx, now, metav1.UpdateOptions{})
			return err
		},
		"replace a Pod's status": func() error {
			_, err := core.Pods(ns).UpdateStatus(ctx, now, metav1.UpdateOptions{})
			return err
		},
		"patch a Pod's status": func() error {
			_, err := core.Pods(ns).Patch(ctx, p.name, types.MergePatchType, []byte(`{"status":{"phase":"Failed"}}`), metav1.PatchOptions{}, "status")
			return err
		},
		"add a container": func() error {
			_, err := core.Pods(ns).UpdateEphemeralContainers(ctx, p.name, now, metav1.UpdateOptions{})
			return err
		},
		"read a Secret": func() error {
			_, err := core.Secrets(ns).Get(ctx, "any", metav1.GetOptions{})
			return err
		},
		"list Secrets": func() error {
			_, err := core.Secrets(ns).List(ctx, metav1.ListOptions{})
			return err
		},
		"read a node": func() error {
			_, err := core.Nodes().Get(ctx, n.name, metav1.GetOptions{})
			return err
		},
		"list all Pods": func() error {
			_, err := core.Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.name})
			return err
		},
		"list another namespace's Pods": func() error {
			_, err := core.Pods(q.n.namespace).List(ctx, metav1.ListOptions{})
			return err
		},
		"watch another namespace's Pods": func() error {
			w, err := core.Pods(q.n.namespace).Watch(ctx, metav1.ListOptions{})
			if err == nil {
				w.Stop()
			}
			return err
		},
		"patch another namespace's Pod": func() error {
			_, err := core.Pods(q.n.namespace).Patch(ctx, q.name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`), metav1.PatchOptions{})
			return err
		},
		"read a ConfigMap": func() error {
			_, err := core.ConfigMaps(ns).Get(ctx, "any", metav1.GetOptions{})
			return err
		},
		"read Events": func() error {
			_, err := core.Events(ns).List(ctx, metav1.ListOptions{})
			return err
		},
	} {
		if err := try(); !apierrors.IsForbidden(err) {
			t.Errorf("the agent's user may %s: %v", what, err)
		}
	}
	if _, err := core.Pods(ns).Watch(ctx, metav1.ListOptions{TimeoutSeconds: new(int64)}); err != nil {
		t.Errorf("it may not watch: %v", err)
	}
}
