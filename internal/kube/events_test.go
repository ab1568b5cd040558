package kube

import (
	"context"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/internal/plan"
)

func TestAnEventIsAboutThePodAndFitsTheAPI(t *testing.T) {
	client := newAPI(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w, err := client.CoreV1().Events("runtimes").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	events := NewEvents(ctx, client, testNode)
	events.Event(plan.Pod{UID: "orphan"}, true, "NodeMountHeld", "a tree without a Pod's name is no object")
	events.Event(plan.Pod{UID: "uid-1", Namespace: "runtimes", Name: "p"}, true, "NodeMountsFailed", "x"+strings.Repeat("é", 2000))
	select {
	case <-ctx.Done():
		t.Fatal("no event was written")
	case got := <-w.ResultChan():
		e, ok := got.Object.(*corev1.Event)
		if !ok {
			t.Fatalf("%T", got.Object)
		}
		if e.InvolvedObject.Kind != "Pod" || e.InvolvedObject.Name != "p" || e.InvolvedObject.UID != "uid-1" || e.Namespace != "runtimes" {
			t.Errorf("about %+v in %s", e.InvolvedObject, e.Namespace)
		}
		if e.Type != corev1.EventTypeWarning || e.Reason != "NodeMountsFailed" || e.Source.Host != testNode {
			t.Errorf("%+v", e)
		}
		if len(e.Message) > maxEventMessage || !utf8.ValidString(e.Message) || !strings.HasSuffix(e.Message, "é...") {
			t.Errorf("%d bytes: %q", len(e.Message), e.Message)
		}
	}
}
