package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/exec"

	"github.com/datalayer/node-mounts/internal/fleet"
)

// Exec runs a program in a container. A program that ends with a status has no
// error; code is its status.
func (n *Node) Exec(ctx context.Context, namespace, pod, container string, argv []string, stdin io.Reader) (stdout, stderr string, code int, err error) {
	var out, problems bytes.Buffer
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err = fleet.Containers{Client: n.client, Config: n.config}.Exec(ctx, fleet.Place{Namespace: namespace, Pod: pod, Container: container}, argv,
			fleet.Streams{In: stdin, Out: &out, Err: &problems})
		if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), unknownToKubelet) {
			break
		}
		<-tick.C
	}
	var exit exec.CodeExitError
	if errors.As(err, &exit) {
		return out.String(), problems.String(), exit.Code, nil
	}
	if err != nil {
		err = fmt.Errorf("exec %q in %s/%s: %w: %s", argv, namespace, pod, err, problems.String())
	}
	return out.String(), problems.String(), 0, err
}

// unknownToKubelet is what a kubelet says that has just started, and has not heard of its
// Pods yet. Nothing was run.
const unknownToKubelet = "unable to upgrade connection: pod does not exist"

// WaitPod waits until the condition has nothing against a Pod.
func (n *Node) WaitPod(ctx context.Context, namespace, name string, condition func(*corev1.Pod) error) (*corev1.Pod, error) {
	var pod *corev1.Pod
	err := Until(ctx, "Pod "+namespace+"/"+name, func(ctx context.Context) error {
		p, err := n.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		pod = p
		return condition(p)
	})
	return pod, err
}

// Ready is a condition for WaitPod: the Pod is Ready.
func Ready(p *corev1.Pod) error {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	why := ""
	for _, s := range p.Status.ContainerStatuses {
		if w := s.State.Waiting; w != nil {
			why += fmt.Sprintf("; %s waits: %s %s", s.Name, w.Reason, w.Message)
		}
		if t := s.State.Terminated; t != nil {
			why += fmt.Sprintf("; %s ended: %d %s %s", s.Name, t.ExitCode, t.Reason, t.Message)
		}
	}
	return fmt.Errorf("phase %s, not Ready%s", p.Status.Phase, why)
}

// Restarted is a condition for WaitPod: the Pod is Ready, and each of its
// containers has another id than in the Pod before.
func Restarted(before *corev1.Pod) func(*corev1.Pod) error {
	ids := map[string]string{}
	for _, s := range before.Status.ContainerStatuses {
		ids[s.Name] = s.ContainerID
	}
	return func(p *corev1.Pod) error {
		if p.UID != before.UID {
			return errors.New("it is another Pod of that name")
		}
		for _, s := range p.Status.ContainerStatuses {
			if s.ContainerID == ids[s.Name] {
				return fmt.Errorf("container %s is the old one", s.Name)
			}
		}
		return Ready(p)
	}
}

// WaitGone waits until the API has no Pod of that name.
func (n *Node) WaitGone(ctx context.Context, namespace, name string) error {
	return Until(ctx, "the end of Pod "+namespace+"/"+name, func(ctx context.Context) error {
		p, err := n.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return fmt.Errorf("it is there: phase %s, deleted at %v", p.Status.Phase, p.DeletionTimestamp)
	})
}

// VolumePath is the folder of a Pod's emptyDir volume, in the machine.
func (n *Node) VolumePath(p *corev1.Pod, volume string) string {
	return fmt.Sprintf("%s/pods/%s/volumes/kubernetes.io~empty-dir/%s", n.o.KubeletDir, p.UID, volume)
}
