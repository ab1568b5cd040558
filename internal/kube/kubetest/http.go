package kubetest

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"k8s.io/client-go/kubernetes"
)

// Handler serves the Pods of client as the Kubernetes API does, in JSON: get,
// list, watch and merge patch, which is all that the agent asks for. It cannot
// begin a watch with a list, as servers before 1.32 could not.
func Handler(client kubernetes.Interface) http.Handler {
	mux := http.NewServeMux()
	list := func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		pods := client.CoreV1().Pods(r.PathValue("namespace"))
		options := metav1.ListOptions{FieldSelector: query.Get("fieldSelector"), ResourceVersion: query.Get("resourceVersion")}
		switch {
		case query.Get("sendInitialEvents") == "true":
			respond(w, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil))
		case query.Get("watch") == "true" || query.Get("watch") == "1":
			follow(w, r, pods, options)
		default:
			l, err := pods.List(r.Context(), options)
			if err == nil {
				l.TypeMeta = metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}
			}
			respond(w, l, err)
		}
	}
	mux.HandleFunc("GET /api/v1/pods", list)
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/pods", list)
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/pods/{name}", func(w http.ResponseWriter, r *http.Request) {
		p, err := client.CoreV1().Pods(r.PathValue("namespace")).Get(r.Context(), r.PathValue("name"), metav1.GetOptions{})
		respond(w, typed(p), err)
	})
	mux.HandleFunc("PATCH /api/v1/namespaces/{namespace}/pods/{name}", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			respond(w, nil, err)
			return
		}
		p, err := client.CoreV1().Pods(r.PathValue("namespace")).Patch(r.Context(), r.PathValue("name"),
			types.PatchType(r.Header.Get("Content-Type")), body, metav1.PatchOptions{})
		respond(w, typed(p), err)
	})
	return mux
}

func typed(p *corev1.Pod) *corev1.Pod {
	if p != nil {
		p.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	}
	return p
}

func respond(w http.ResponseWriter, obj runtime.Object, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		status := apierrors.NewInternalError(err).Status()
		var api apierrors.APIStatus
		if errors.As(err, &api) {
			status = api.Status()
		}
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		w.WriteHeader(int(status.Code))
		obj = &status
	}
	_ = json.NewEncoder(w).Encode(obj) // a client that went away needs no answer
}

// follow streams a watch until the client goes.
func follow(w http.ResponseWriter, r *http.Request, pods typedcorev1.PodInterface, o metav1.ListOptions) {
	events, err := pods.Watch(r.Context(), o)
	if err != nil {
		respond(w, nil, err)
		return
	}
	defer events.Stop()
	w.Header().Set("Content-Type", "application/json")
	stream := http.NewResponseController(w)
	for {
		if stream.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case e, ok := <-events.ResultChan():
			if !ok {
				return
			}
			if p, isPod := e.Object.(*corev1.Pod); isPod {
				e.Object = typed(p.DeepCopy())
			}
			doc := struct {
				Type   string         `json:"type"`
				Object runtime.Object `json:"object"`
			}{string(e.Type), e.Object}
			if json.NewEncoder(w).Encode(doc) != nil {
				return
			}
		}
	}
}
