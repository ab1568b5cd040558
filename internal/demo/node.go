package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/kube"
	"github.com/datalayer/node-mounts/internal/kube/kubetest"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/obs"
	"github.com/datalayer/node-mounts/internal/procs"
	"github.com/datalayer/node-mounts/internal/simnode"
	"github.com/datalayer/node-mounts/operator"
)

const (
	nodeName  = "demo-node"
	namespace = "sandboxes"
	podName   = "sandbox"
	podUID    = "5f0c3f1e-2d6a-4c55-9e0e-6a0f6c1d7b42"
)

// node is a node with an agent on it, and one Pod from a warm pool.
type node struct {
	sim     *simnode.Node
	pod     *simnode.Pod
	sandbox *simnode.Container
	client  kubernetes.Interface
	writer  *operator.Client
	names   grant.Names
	table   *mnt.Kernel
	stop    func() error
}

// start makes the node, the Pod's volume and its container as kubelet does, and
// then runs the agent.
func start(ctx context.Context, log io.Writer) (*node, error) {
	sim, err := simnode.New(simnode.Options{})
	if err != nil {
		return nil, err
	}
	n := &node{sim: sim, names: grant.NamesFor(grant.DefaultPrefix), table: &mnt.Kernel{}, stop: func() error { return nil }}
	if err := n.startPod(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	if err := n.startAgent(ctx, slog.New(slog.NewTextHandler(log, nil))); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *node) startPod() error {
	n.pod = n.sim.NewPod(podUID)
	if err := n.pod.SetUpVolume(false); err != nil {
		return err
	}
	c, err := n.pod.StartContainer(simnode.ContainerOptions{})
	if err != nil {
		return err
	}
	n.sandbox = c.AsUser(1000, 100)
	hostToContainer := corev1.MountPropagationHostToContainer
	n.client, err = kubetest.NewClient(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: podName, Namespace: namespace, UID: types.UID(podUID), Labels: map[string]string{n.names.Label: "true"}},
		Spec: corev1.PodSpec{
			NodeName: nodeName,
			Volumes: []corev1.Volume{{Name: grant.DefaultVolumeName, VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory},
			}}},
			Containers: []corev1.Container{{Name: "runtime", VolumeMounts: []corev1.VolumeMount{{
				Name: grant.DefaultVolumeName, MountPath: simnode.DefaultMountPath, MountPropagation: &hostToContainer,
			}}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "runtime", ContainerID: "containerd://" + c.ID(),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		}}},
	})
	if err != nil {
		return err
	}
	n.writer = operator.New(n.client.CoreV1(), n.names)
	return nil
}

func (n *node) startAgent(ctx context.Context, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	controller, err := kube.New(kube.Config{
		Client: n.client, Node: nodeName, Namespace: namespace, Names: n.names, Volume: grant.DefaultVolumeName, Log: log,
	})
	if err != nil {
		cancel()
		return err
	}
	a, err := agent.New(ctx, agent.Config{
		Policy: agent.DefaultPolicy(nodeName), Root: n.sim.Root, Kubelet: n.sim.Kubelet, BootID: "demo",
		Claim: agent.Claim{Path: n.sim.Claim, Owner: beneath.Owner{UID: 1000, GID: 100}, Bound: agent.DefaultBound},
		Table: n.table, Processes: procs.New("/proc"), API: controller, Budget: &deadline.Budget{},
		Metrics: obs.NewRecorder("demo", obs.KernelRelease()), Clock: clock.RealClock{}, Log: log,
	})
	if err != nil {
		cancel()
		return err
	}
	if _, err := a.Start(ctx); err != nil {
		cancel()
		a.Close()
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- controller.Run(ctx, a) }()
	n.stop = func() error {
		cancel()
		err := <-ended
		a.Close()
		return err
	}
	return nil
}

// Close ends the Pod as kubelet does, then the agent and the node. Its error
// lists what would not go.
func (n *node) Close() error {
	return errors.Join(n.stop(), n.sim.Close())
}

// endPod deletes the Pod: its container ends, the agent releases it, kubelet
// takes the volume away.
func (n *node) endPod(ctx context.Context) error {
	if err := n.client.CoreV1().Pods(namespace).Delete(ctx, podName, metav1.DeleteOptions{}); err != nil {
		return err
	}
	var err error
	for ctx.Err() == nil {
		var how string
		if how, err = n.pod.TearDownVolume(); err == nil || how == "gone" {
			return nil
		}
		if serr := pause(ctx, 5*time.Millisecond); serr != nil {
			break
		}
	}
	return fmt.Errorf("kubelet cannot take the volume away: %w", errors.Join(err, ctx.Err()))
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
