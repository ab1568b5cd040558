package absence_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/datalayer/node-mounts/internal/kube/absence"
)

const pod = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q,"namespace":%q,"uid":%q}}`

func TestAPodIsTheOneThatWasAskedForOrAnErrorThatSaysWhatIsKnown(t *testing.T) {
	for name, c := range map[string]struct {
		code int
		body string
		gone bool  // an API server's word
		want error // nil is another one, of the API, where code says so
	}{
		"the Pod":                            {200, fmt.Sprintf(pod, "p", "ns", "u"), false, nil},
		"another Pod":                        {200, fmt.Sprintf(pod, "q", "ns", "u"), false, absence.ErrNotIt},
		"a Pod of another namespace":         {200, fmt.Sprintf(pod, "p", "other", "u"), false, absence.ErrNotIt},
		"a Pod without a uid":                {200, fmt.Sprintf(pod, "p", "ns", ""), false, absence.ErrNotIt},
		"an empty document":                  {200, `{}`, false, absence.ErrNotIt},
		"an API server that has none":        {404, fmt.Sprintf(status, "p", "pods"), true, nil},
		"a load balancer's page":             {404, "<html>404 Not Found</html>", false, absence.ErrNotSaid},
		"an API server about something else": {404, fmt.Sprintf(status, "p", "nodes"), false, absence.ErrNotSaid},
		"an API server that may not tell":    {403, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Query().Has("resourceVersion") {
					t.Errorf("an old copy would do: %s", r.URL)
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(c.code)
				_, _ = io.WriteString(w, c.body)
			}))
			defer server.Close()
			client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			p, err := absence.Pod(t.Context(), client.CoreV1(), "ns", "p")
			if there := c.code == 200 && c.want == nil; (err == nil) != there || (p != nil) != there {
				t.Fatalf("%v, %v", p, err)
			}
			if absence.PodSaid(err, "p") != c.gone || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("it does not exist: %t, %v", absence.PodSaid(err, "p"), err)
			}
			if c.code >= 400 && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
				t.Errorf("the API's own error is lost: %v", err)
			}
		})
	}
}
