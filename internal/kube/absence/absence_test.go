package absence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/datalayer/node-mounts/internal/kube/absence"
)

const status = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"not found","details":{"name":%q,"kind":%q}}`

func TestOnlyAnAPIServersStatusOnTheObjectItselfSaysThatItDoesNotExist(t *testing.T) {
	for name, c := range map[string]struct {
		code int
		kind string
		body string
		want bool
	}{
		"an API server's Status":          {404, "application/json", fmt.Sprintf(status, "p", "pods"), true},
		"a Status on another name":        {404, "application/json", fmt.Sprintf(status, "q", "pods"), false},
		"a Status on another resource":    {404, "application/json", fmt.Sprintf(status, "p", "nodes"), false},
		"a Status that names nothing":     {404, "application/json", `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`, false},
		"an API server without this path": {404, "text/plain; charset=utf-8", "404 page not found\n", false},
		"a load balancer's page":          {404, "text/html", "<html>404 Not Found</html>", false},
		"a gateway's JSON":                {404, "application/json", `{"message":"no route matched"}`, false},
		"nothing at all":                  {404, "", "", false},
		"forbidden":                       {403, "application/json", `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"details":{"name":"p","kind":"pods"}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", c.kind)
				w.WriteHeader(c.code)
				_, _ = io.WriteString(w, c.body)
			}))
			defer server.Close()
			client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			_, err = client.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
			if err == nil {
				t.Fatal("no error")
			}
			if got := absence.Said(fmt.Errorf("get: %w", err), "pods", "p"); got != c.want {
				t.Errorf("Said(%v) = %v", err, got)
			}
		})
	}
	if absence.Said(errors.New("p not found"), "pods", "p") || absence.Said(nil, "pods", "p") {
		t.Error("another error, or none, says it")
	}
	if !absence.Said(apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "p"), "pods", "p") {
		t.Error("an API server's error does not say it")
	}
}

func TestARequestThatTheClientHeldBackUntilItWasTooLateWasNotSent(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		http.Error(w, "away", http.StatusServiceUnavailable)
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: 0.01, Burst: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := client.CoreV1().Pods("ns").Get(ctx, "p", metav1.GetOptions{}); err == nil || absence.Unsent(err) {
		t.Errorf("the server was asked %d times: %v", asked, err)
	}
	if _, err := client.CoreV1().Pods("ns").Get(ctx, "p", metav1.GetOptions{}); asked != 1 || !absence.Unsent(fmt.Errorf("get: %w", err)) || ctx.Err() != nil {
		t.Errorf("the server was asked %d times: %v", asked, err)
	}
	if absence.Unsent(nil) || absence.Unsent(context.DeadlineExceeded) {
		t.Error("another error, or none, says it")
	}
}
