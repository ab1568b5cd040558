package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/datalayer/node-mounts/internal/keeper"
)

// KeeperVolume is the emptyDir of a keeper's Pod that its socket lies in, and
// KeeperSocket the socket's name there.
const (
	KeeperVolume = "socket"
	KeeperSocket = "keeper.sock"
)

// ErrNoKeeperPod says that no keeper runs on the node.
var ErrNoKeeperPod = errors.New("no keeper runs on this node")

// Keeper finds the keeper of a node. Its socket lies in a volume of its Pod, which
// the agent reaches through kubelet's folder: by the uid that the API gives, and never
// by a search. Every tenant could make a folder of that name in a volume of its own.
type Keeper struct {
	Client              kubernetes.Interface
	Namespace, Selector string // of its Pods
	Node, Kubelet       string

	mu  sync.Mutex
	uid string // of the Pod that answered last
}

// NewKeeper is one whose Pods are where says: namespace/selector.
func NewKeeper(client kubernetes.Interface, where, node, kubelet string) *Keeper {
	namespace, selector, _ := strings.Cut(where, "/")
	return &Keeper{Client: client, Namespace: namespace, Selector: selector, Node: node, Kubelet: kubelet}
}

// Dial connects to the keeper, for keeper.Client.
func (k *Keeper) Dial(ctx context.Context) (net.Conn, error) {
	k.mu.Lock()
	uid := k.uid
	k.mu.Unlock()
	if uid != "" {
		if conn, err := k.dial(ctx, uid); err == nil {
			return conn, nil
		}
	}
	uid, err := k.find(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := k.dial(ctx, uid)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	k.uid = uid
	k.mu.Unlock()
	return conn, nil
}

func (k *Keeper) dial(ctx context.Context, uid string) (net.Conn, error) {
	return keeper.DialSocket(filepath.Join(k.Kubelet, "pods", uid, "volumes", "kubernetes.io~empty-dir", KeeperVolume, KeeperSocket))(ctx)
}

// find asks the API for the newest keeper on the node that is not on its way out.
func (k *Keeper) find(ctx context.Context) (uid string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	pods, err := k.Client.CoreV1().Pods(k.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: k.Selector, FieldSelector: fields.OneTermEqualSelector("spec.nodeName", k.Node).String(),
	})
	if err != nil {
		return "", fmt.Errorf("kube: list keepers: %w", err)
	}
	items := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
		return p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
	if len(items) == 0 {
		return "", ErrNoKeeperPod
	}
	newest := slices.MaxFunc(items, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return string(newest.UID), nil
}
