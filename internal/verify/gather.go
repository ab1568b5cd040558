package verify

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/datalayer/node-mounts/internal/fleet"
	"github.com/datalayer/node-mounts/internal/kube/absence"
	"github.com/datalayer/node-mounts/internal/nodeview"
)

// Names that a deployment has unless it chooses others.
const (
	// EnabledVariable turns each half on.
	EnabledVariable = "DATALAYER_NODE_MOUNT_GATEWAY_ENABLED"

	DefaultNamespace      = nodeview.DefaultNamespace
	DefaultOperator       = "datalayer-operator"
	DefaultRuntimeAccount = "datalayer-runtimes-sa"
)

// Agents asks the agent of every node.
type Agents interface {
	// Nodes returns an answer for every node that an agent runs on or should: one
	// that could not be asked costs the others nothing. An error means that nobody
	// could be.
	Nodes(ctx context.Context) ([]NodeAnswer, error)
}

// Cluster is what facts are gathered from.
type Cluster struct {
	API      kubernetes.Interface
	Agents   Agents
	Settings Settings
}

// Gather finds out all that Judge needs. What cannot be read is noted with the
// reason, and costs the rest nothing.
func Gather(ctx context.Context, c Cluster) Facts {
	f := Facts{Settings: c.Settings, Automount: map[Account]Known[*bool]{}, May: map[Question]Known[bool]{}}
	f.DaemonSets = known(c.daemonSets(ctx, c.Settings.AgentNamespace, fleet.Selector))
	f.Answers = known(c.Agents.Nodes(ctx))
	for i, a := range f.Answers.Value {
		if a.Document == nil && a.Err == nil {
			f.Answers.Value[i].Err = ErrNoGateway
		}
	}
	f.settle()
	c.Settings = f.Settings
	f.Nodes = known(c.nodes(ctx))
	f.Operators = known(c.operators(ctx))
	f.Pods = known(c.pods(ctx, f.served()))
	f.Handlers = known(c.handlers(ctx))
	f.Policies = known(c.policies(ctx, f.agentNamespaces()))
	f.API = known(c.addresses(ctx))
	f.Others = known(c.others(ctx, f))
	f.Claim = known(c.claim(ctx, f))
	for _, a := range f.runtimeAccounts() {
		f.Automount[a] = known(c.automount(ctx, a))
	}
	c.ask(ctx, f)
	return f
}

func known[T any](value T, err error) Known[T] { return Known[T]{value, err} }

func (f Facts) agentNamespaces() []string {
	var all []string
	for _, ds := range f.DaemonSets.Value {
		if !slices.Contains(all, ds.Namespace) {
			all = append(all, ds.Namespace)
		}
	}
	return all
}

// list reads a list in pages: an answer with every Pod of a large cluster is a
// burden on the API server.
func list[T any](ctx context.Context, opts metav1.ListOptions, read func(context.Context, metav1.ListOptions) (runtime.Object, error)) ([]T, error) {
	var all []T
	err := pager.New(read).EachListItem(ctx, opts, func(o runtime.Object) error {
		item, ok := o.(any).(*T)
		if !ok {
			return fmt.Errorf("a list has %T in it", o)
		}
		all = append(all, *item)
		return nil
	})
	return all, err
}

func (c Cluster) daemonSets(ctx context.Context, namespace, selector string) ([]appsv1.DaemonSet, error) {
	return list[appsv1.DaemonSet](ctx, metav1.ListOptions{LabelSelector: selector}, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return c.API.AppsV1().DaemonSets(namespace).List(ctx, o)
	})
}

// others are the DaemonSets beside the agents: one of them may hold the claim.
func (c Cluster) others(ctx context.Context, f Facts) ([]appsv1.DaemonSet, error) {
	var all []appsv1.DaemonSet
	for _, ns := range f.agentNamespaces() {
		found, err := c.daemonSets(ctx, ns, "")
		if err != nil {
			return nil, err
		}
		for _, ds := range found {
			if !slices.ContainsFunc(f.DaemonSets.Value, func(a appsv1.DaemonSet) bool { return a.UID == ds.UID }) {
				all = append(all, ds)
			}
		}
	}
	return all, nil
}

func (c Cluster) nodes(ctx context.Context) ([]corev1.Node, error) {
	return list[corev1.Node](ctx, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return c.API.CoreV1().Nodes().List(ctx, o)
	})
}

func (c Cluster) operators(ctx context.Context) ([]appsv1.Deployment, error) {
	opts := metav1.ListOptions{FieldSelector: "metadata.name=" + c.Settings.Operator}
	return list[appsv1.Deployment](ctx, opts, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return c.API.AppsV1().Deployments(c.Settings.OperatorNamespace).List(ctx, o)
	})
}

func (c Cluster) pods(ctx context.Context, namespaces []string) ([]corev1.Pod, error) {
	var gateway []corev1.Pod
	for _, ns := range namespaces {
		all, err := list[corev1.Pod](ctx, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return c.API.CoreV1().Pods(ns).List(ctx, o)
		})
		if err != nil {
			return nil, err
		}
		for _, p := range all {
			finished := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
			if !finished && (carries(p, c.Settings.Names.Label) || volumeOf(p, c.Settings.Volume) != nil) {
				gateway = append(gateway, p)
			}
		}
	}
	return gateway, nil
}

func (c Cluster) handlers(ctx context.Context) (map[string]string, error) {
	classes, err := c.API.NodeV1().RuntimeClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	handlers := map[string]string{}
	for _, class := range classes.Items {
		handlers[class.Name] = class.Handler
	}
	return handlers, nil
}

func (c Cluster) policies(ctx context.Context, namespaces []string) ([]networkingv1.NetworkPolicy, error) {
	var all []networkingv1.NetworkPolicy
	for _, ns := range namespaces {
		found, err := c.API.NetworkingV1().NetworkPolicies(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		all = append(all, found.Items...)
	}
	return all, nil
}

// addresses are the API server's: the service, as Pods are told by their
// environment, and the endpoints behind it.
func (c Cluster) addresses(ctx context.Context) ([]Address, error) {
	const name = "kubernetes"
	service, err := c.API.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	slicesOf, err := c.API.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name})
	if err != nil {
		return nil, err
	}
	var all []Address
	add := func(ip string, port int32) {
		if addr, err := netip.ParseAddr(ip); err == nil {
			all = append(all, Address{addr, port})
		}
	}
	for _, p := range service.Spec.Ports {
		add(service.Spec.ClusterIP, p.Port)
	}
	for _, s := range slicesOf.Items {
		for _, p := range s.Ports {
			for _, e := range s.Endpoints {
				for _, ip := range e.Addresses {
					if p.Port != nil {
						add(ip, *p.Port)
					}
				}
			}
		}
	}
	if len(all) == 0 {
		return nil, errors.New("the service default/kubernetes has no address")
	}
	return all, nil
}

func (c Cluster) claim(ctx context.Context, f Facts) (*corev1.PersistentVolumeClaim, error) {
	for _, ds := range f.DaemonSets.Value {
		name := f.claimName(ds)
		if name == "" {
			continue
		}
		pvc, err := c.API.CoreV1().PersistentVolumeClaims(ds.Namespace).Get(ctx, name, metav1.GetOptions{})
		if absence.Said(err, "persistentvolumeclaims", name) {
			return nil, nil
		}
		return pvc, err
	}
	return nil, nil
}

func (c Cluster) automount(ctx context.Context, a Account) (*bool, error) {
	account, err := c.API.CoreV1().ServiceAccounts(a.Namespace).Get(ctx, a.Name, metav1.GetOptions{})
	switch {
	case absence.Said(err, "serviceaccounts", a.Name):
		return nil, nil
	case err != nil:
		return nil, err
	case account.AutomountServiceAccountToken == nil:
		yes := true
		return &yes, nil
	}
	return account.AutomountServiceAccountToken, nil
}

// ask puts every question to the API server's authorizers, a few at a time.
func (c Cluster) ask(ctx context.Context, f Facts) {
	const together = 8
	var mu sync.Mutex
	var asking errgroup.Group
	asking.SetLimit(together)
	for _, q := range f.questions() {
		asking.Go(func() error {
			answer := known(c.may(ctx, q))
			mu.Lock()
			defer mu.Unlock()
			f.May[q] = answer
			return nil
		})
	}
	_ = asking.Wait() // what could not be asked is in the answer
}

// may asks for an account of this cluster, with the groups that its token has.
func (c Cluster) may(ctx context.Context, q Question) (bool, error) {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:   "system:serviceaccount:" + q.Account.Namespace + ":" + q.Name,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + q.Account.Namespace, "system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: q.In, Verb: q.Verb, Resource: q.Resource, Subresource: q.Subresource,
		},
	}}
	answer, err := c.API.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}
