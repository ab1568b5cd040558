package kube

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/datalayer/node-mounts/internal/plan"
)

// maxEventMessage is what the API takes, in bytes.
const maxEventMessage = 1024

// Events writes events about Pods. They are sent in the background, equal ones
// are counted in one object, and a flood about one Pod is cut off (client-go's
// correlator); none of them ever holds up a pass.
type Events struct {
	recorder record.EventRecorder
}

// NewEvents makes Events of the agent on node, until ctx ends.
func NewEvents(ctx context.Context, client kubernetes.Interface, node string) *Events {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx), record.WithSleepDuration(time.Second))
	broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return &Events{recorder: broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: fieldManager, Host: node})}
}

// Event implements agent.Events.
func (e *Events) Event(p plan.Pod, warning bool, reason, message string) {
	if p.Name == "" {
		return // only its tree is known: there is no object to write about
	}
	kind := corev1.EventTypeNormal
	if warning {
		kind = corev1.EventTypeWarning
	}
	if len(message) > maxEventMessage {
		message = strings.ToValidUTF8(message[:maxEventMessage-len(ellipsis)], "") + ellipsis
	}
	e.recorder.Event(&corev1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: types.UID(p.UID), ResourceVersion: p.ResourceVersion,
	}, kind, reason, message)
}

const ellipsis = "..."
