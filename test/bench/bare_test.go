package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/kube"
)

// watching is what the bare responder says when it has begun.
const watching = "watching"

// respond answers every grant of a node's Pods and mounts nothing: the least that
// any agent has to wait for. It is a process of its own with the agent's kind of
// client and of patch, a plain watch, and no state.
func respond(config string) error {
	client, err := kube.Connect(config, "bare")
	if err != nil {
		return err
	}
	ctx, names := context.Background(), grant.NamesFor("")
	pods := client.CoreV1().Pods(namespace)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, watching)
	return follow(ctx, pods, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector("spec.nodeName", bareNode).String(),
		ResourceVersion: list.ResourceVersion,
	}, func(p *corev1.Pod) {
		go func() {
			if err := respondTo(ctx, pods, p, names); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
	})
}

func respondTo(ctx context.Context, pods corev1client.PodInterface, p *corev1.Pod, names grant.Names) error {
	set, granted := p.Annotations[names.Mounts]
	_, answered := p.Annotations[names.Ready]
	if granted == answered {
		return nil
	}
	var ready *string
	if granted {
		decoded := grant.Decode(set)
		st := grant.Status{Hash: decoded.Hash, State: grant.StateReady}
		for _, m := range decoded.Mounts {
			st.Mounted = append(st.Mounted, m.Target)
		}
		ready = new(st.Encode())
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": p.UID, "resourceVersion": p.ResourceVersion, "annotations": map[string]any{names.Ready: ready},
	}})
	if err != nil {
		return err
	}
	_, err = pods.Patch(ctx, p.Name, types.MergePatchType, body, metav1.PatchOptions{})
	return err
}
