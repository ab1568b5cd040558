package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/kube/servertest"
	"github.com/datalayer/node-mounts/internal/simnode"
)

const (
	namespace = "runtimes"
	// bareNode is the node of the Pods that the bare responder serves.
	bareNode = "node-bare"
)

// cluster is a real API server with somebody who grants and watches.
type cluster struct {
	b      *testing.B
	client kubernetes.Interface
	pods   corev1client.PodInterface
	config string // kubeconfig of the agent and of the bare responder
	names  grant.Names
	follow *follower
}

func newCluster(b *testing.B) *cluster {
	b.Helper()
	log.SetLogger(logr.Discard()) // or the API server's starter complains that nobody has
	server := servertest.Start(b)
	// A user of a name has the rights that were given to the name.
	server.User(b, "agent",
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch", "patch"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}})
	// The same kind of client as the agent's, without its limit of requests.
	config := rest.CopyConfig(server.Admin)
	config.QPS = -1
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(config)
	must(b, err)
	_, err = client.CoreV1().Namespaces().Create(b.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	must(b, err)
	c := &cluster{
		b: b, client: client, pods: client.CoreV1().Pods(namespace),
		config: server.Kubeconfig(b, "agent"), names: grant.NamesFor(""),
	}
	c.follow = newFollower(b, c.pods, c.names)
	return c
}

// remotePod is a Pod of a cluster.
type remotePod struct {
	c      *cluster
	name   string
	uid    string
	events <-chan event
	// first and next are annotations: one mount, and one more.
	first, next string
	container   *simnode.Container // nil for a Pod of the bare responder
}

// template is a pooled Pod bound to a node.
func template(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.PodSpec{
			NodeName: node,
			Volumes: []corev1.Volume{{
				Name: grant.DefaultVolumeName,
				VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
					Medium: corev1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("1Mi")),
				}},
			}},
			Containers: []corev1.Container{{
				Name: "runtime", Image: "runtime",
				VolumeMounts: []corev1.VolumeMount{{
					Name: grant.DefaultVolumeName, MountPath: simnode.DefaultMountPath,
					MountPropagation: ptr.To(corev1.MountPropagationHostToContainer),
				}},
			}},
		},
	}
}

// newPod makes a Pod with the home folders i and 1000+i as its first and next
// mount.
func (c *cluster) newPod(name, node string, i int) *remotePod {
	c.b.Helper()
	p := &remotePod{c: c, name: name, events: c.follow.events(name)}
	one, two := files(fmt.Sprintf("home/users/u%04d", i), target), files(fmt.Sprintf("home/users/u%04d", 1000+i), "work")
	p.first, p.next = encode(c.b, one), encode(c.b, one, two)
	made, err := c.pods.Create(c.b.Context(), template(name, node), metav1.CreateOptions{})
	must(c.b, err)
	p.uid = string(made.UID)
	return p
}

// run starts the Pod's container on the node and tells the API, as kubelet does.
func (p *remotePod) run(n *simnode.Node) {
	b := p.c.b
	b.Helper()
	on := n.NewPod(p.uid)
	must(b, on.SetUpVolume(false))
	var err error
	p.container, err = on.StartContainer(simnode.ContainerOptions{})
	must(b, err)
	body, err := json.Marshal(map[string]any{"status": corev1.PodStatus{
		Phase: corev1.PodRunning,
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "runtime", ContainerID: "containerd://" + p.container.ID(),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		}},
	}})
	must(b, err)
	_, err = p.c.pods.Patch(b.Context(), p.name, types.MergePatchType, body, metav1.PatchOptions{}, "status")
	must(b, err)
}

// patch writes the grant annotation and removes the answer in the same patch, as
// a writer does; without a set it removes the annotation alone, so that the
// removal of the answer says that the Pod was released.
func (p *remotePod) patch(set *string) error {
	change := map[string]any{p.c.names.Mounts: set}
	if set != nil {
		change[p.c.names.Ready] = nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": change}})
	if err != nil {
		return err
	}
	_, err = p.c.pods.Patch(p.c.b.Context(), p.name, types.MergePatchType, body, metav1.PatchOptions{})
	return err
}

// grant asks for the set and returns how long it took until a watcher had the
// answer to it.
func (p *remotePod) grant(set string) (time.Duration, error) {
	began := time.Now()
	if err := p.patch(&set); err != nil {
		return 0, err
	}
	hash := grant.Decode(set).Hash
	e, err := p.until(func(e event) bool { return e.answer != nil && e.answer.Hash == hash })
	if err == nil && e.answer.State != grant.StateReady {
		err = fmt.Errorf("pod %s: the answer is %+v", p.name, *e.answer)
	}
	return e.at.Sub(began), err
}

// clear takes everything away and waits until that is done.
func (p *remotePod) clear() error {
	if err := p.patch(nil); err != nil {
		return err
	}
	_, err := p.until(func(e event) bool { return !e.granted && e.answer == nil })
	return err
}

// until waits for an event of the Pod.
func (p *remotePod) until(is func(event) bool) (event, error) {
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case e, ok := <-p.events:
			if !ok {
				return event{}, errors.New("the watch of the pods has ended")
			}
			if is(e) {
				return e, nil
			}
		case <-late.C:
			return event{}, fmt.Errorf("pod %s: nothing within %s", p.name, patience)
		}
	}
}

// patches counts the patches of Pods that the API server has answered, by status
// code. It is the server's own count: also what was refused, and whoever asked.
func (c *cluster) patches() map[string]int {
	c.b.Helper()
	ctx, cancel := context.WithTimeout(c.b.Context(), patience)
	defer cancel()
	text, err := c.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	must(c.b, err)
	found := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		labels, ok := strings.CutPrefix(line, "apiserver_request_total{")
		if !ok || !strings.Contains(labels, `resource="pods"`) || !strings.Contains(labels, `subresource=""`) || !strings.Contains(labels, `verb="PATCH"`) {
			continue
		}
		_, after, _ := strings.Cut(labels, `code="`)
		code, _, _ := strings.Cut(after, `"`)
		fields := strings.Fields(line)
		n, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		must(c.b, err)
		found[code] += int(n)
	}
	if found["200"] == 0 {
		c.b.Fatal("the API server does not count patches of Pods where they are looked for")
	}
	return found
}
