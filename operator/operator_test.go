package operator_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/kube/kubetest"
	"github.com/datalayer/node-mounts/internal/kube/servertest"
	"github.com/datalayer/node-mounts/operator"
)

func inMemory(t *testing.T) (*pod, *fake.Clientset) {
	t.Helper()
	api, err := kubetest.NewClient()
	must(t, err)
	return newPod(t, api, "p"), api
}

// fails makes the requests of a verb fail with what err returns, while it returns
// something. err is told how many there have been.
func fails(api *fake.Clientset, verb string, err func(n int) error) {
	n := 0
	api.PrependReactor(verb, "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		n++
		err := err(n)
		return err != nil, nil, err
	})
}

func conflict() error {
	return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "p", errors.New("modified"))
}

func forbidden() error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", errors.New("no right"))
}

func requests(api *fake.Clientset) int { return len(api.Actions()) }

func TestABadGrantIsRefusedBeforeAnythingIsSent(t *testing.T) {
	p, api := inMemory(t)
	before := requests(api)
	bad := grant.Mount{Kind: grant.KindFiles, Source: "../etc", Target: "etc"}
	for what, try := range map[string]func() (operator.Asked, error){
		"grant": func() (operator.Asked, error) { return p.client.Grant(t.Context(), p.Pod, home("ada"), bad) },
		"add":   func() (operator.Asked, error) { return p.client.Add(t.Context(), p.Pod, home("ada"), bad) },
	} {
		var refusal *grant.Refusal
		if _, err := try(); !errors.As(err, &refusal) || refusal.Code != grant.CodeInvalidSource || refusal.Key != "etc" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if now := requests(api); now != before {
		t.Errorf("%d requests were sent", now-before)
	}
}

func TestAWriterThatAlwaysComesTooLateTriesUntilItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, api := inMemory(t)
		tries := 0
		fails(api, "patch", func(n int) error {
			tries = n
			return conflict()
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		_, err := p.client.Add(ctx, p.Pod, home("ada"))
		wants(t, err, context.DeadlineExceeded)
		if !apierrors.IsConflict(err) || time.Since(began) != time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if tries < 30 || tries > 100 {
			t.Errorf("%d attempts in a minute", tries)
		}
	})
}

// The API server compares resource versions first, so the writer learns of a
// conflict, and must not take the next Pod for its own.
func TestAPodMadeAgainBetweenReadingAndWritingIsNotGrantedOn(t *testing.T) {
	p, api := inMemory(t)
	fails(api, "patch", func(n int) error {
		if n > 1 {
			return nil
		}
		pods := api.Tracker()
		gvr := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
		obj, err := pods.Get(gvr, namespace, p.Name)
		must(t, err)
		again := obj.DeepCopyObject()
		again.(metav1.Object).SetUID("another")
		must(t, pods.Update(gvr, again, namespace))
		return conflict()
	})
	_, err := p.client.Grant(t.Context(), p.Pod, home("ada"))
	wants(t, err, operator.ErrGone)
	if granted := p.granted(); len(granted) != 0 {
		t.Errorf("the second Pod has %v", granted)
	}
}

func TestARefusalOfTheAPIIsPassedOnAsItCame(t *testing.T) {
	p, api := inMemory(t)
	asked := p.grants(home("ada"))
	fails(api, "patch", func(int) error { return forbidden() })
	if _, err := p.client.Add(t.Context(), p.Pod, home("bob")); !apierrors.IsForbidden(err) {
		t.Errorf("add: %v", err)
	}
	api.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) { return true, nil, forbidden() })
	if _, err := p.waits(asked)(); !apierrors.IsForbidden(err) {
		t.Errorf("wait: %v", err)
	}
	fails(api, "get", func(int) error { return apierrors.NewServiceUnavailable("away") })
	if _, err := p.waits(asked)(); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("a wait that has never reached the API: %v", err)
	}
	if _, err := p.client.Asked(t.Context(), p.Pod); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("asked: %v", err)
	}
}

func TestAWaitLivesThroughAnAPIThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, api := inMemory(t)
		asked := p.grants(home("ada"))
		away := time.Now().Add(50 * time.Second)
		gets := 0
		fails(api, "get", func(n int) error {
			gets = n
			if n > 1 && time.Now().Before(away) {
				return []error{apierrors.NewServiceUnavailable("away"), errors.New("connection refused"), apierrors.NewTooManyRequests("slow down", 1)}[n%3]
			}
			return nil
		})
		api.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
			return time.Now().Before(away), nil, errors.New("connection refused")
		})
		result := p.waits(asked)
		time.AfterFunc(55*time.Second, func() { p.answer(ready(asked, "ada")) })
		if st, err := result(); err != nil || st.State != grant.StateReady {
			t.Errorf("%+v, %v", st, err)
		}
		if gets < 10 || gets > 100 {
			t.Errorf("%d reads in a minute", gets)
		}
	})
}

func TestAWaitThatEndsWhileTheAPIIsAwaySaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, api := inMemory(t)
		asked := p.grants(home("ada"))
		fails(api, "get", func(n int) error {
			if n > 1 {
				return apierrors.NewServiceUnavailable("away")
			}
			return nil
		})
		api.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
			return true, nil, apierrors.NewServiceUnavailable("away")
		})
		_, err := p.waits(asked)()
		wants(t, err, context.DeadlineExceeded)
		if !apierrors.IsServiceUnavailable(err) {
			t.Errorf("%v", err)
		}
	})
}

// The words are those of client-go's own limiter, which sends nothing.
func TestAWaitWhoseClientHoldsItsQuestionsBackEndsWithItsContextAlone(t *testing.T) {
	for name, from := range map[string]int{"from the first": 1, "later": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, api := inMemory(t)
				asked := p.grants(home("ada"))
				fails(api, "get", func(n int) error {
					if n >= from {
						return errors.New("client rate limiter Wait returned an error: rate: Wait(n=1) would exceed context deadline")
					}
					return nil
				})
				api.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
					return true, nil, apierrors.NewServiceUnavailable("away")
				})
				_, err := p.waits(asked)()
				wants(t, err, context.DeadlineExceeded)
				if strings.Contains(err.Error(), "rate limiter") || apierrors.IsServiceUnavailable(err) != (from > 1) {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

// Watches end in four ways, and each time the answer must not be missed.
func TestAWaitSurvivesEveryEndOfAWatch(t *testing.T) {
	ended := func() watch.Interface {
		w := watch.NewFake()
		w.Stop()
		return w
	}
	broken := func() watch.Interface {
		w := watch.NewFakeWithChanSize(1, false)
		w.Error(&apierrors.NewResourceExpired("too old").ErrStatus)
		return w
	}
	none := func() watch.Interface { return nil }
	for name, c := range map[string]struct {
		w   func() watch.Interface
		err error
	}{
		"it is closed":                 {ended, nil},
		"it says that it is too old":   {broken, nil},
		"it cannot begin: too old":     {none, apierrors.NewResourceExpired("too old")},
		"it cannot begin: gone (410)":  {none, &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonGone}}},
		"it cannot begin: server busy": {none, apierrors.NewTooManyRequests("busy", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, api := inMemory(t)
				asked := p.grants(home("ada"))
				watches := 0
				api.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
					watches++
					if watches == 1 {
						return true, c.w(), c.err
					}
					return false, nil, nil
				})
				result := p.waits(asked)
				synctest.Wait()
				if watches != 1 {
					t.Fatalf("%d watches were begun", watches)
				}
				p.answer(ready(asked, "ada"))
				if st, err := result(); err != nil || st.State != grant.StateReady {
					t.Errorf("%+v, %v", st, err)
				}
			})
		})
	}
}

// short ends watches soon after they have begun, as the timeout of a client does that
// is for every request, and counts them. What else is asked has the time it takes.
type short struct {
	next  http.RoundTripper
	begun chan struct{}
}

func (c *short) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.Contains(r.URL.RawQuery, "watch=") {
		return c.next.RoundTrip(r)
	}
	c.begun <- struct{}{}
	ctx, end := context.WithCancel(r.Context())
	answer, err := c.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		end()
		return nil, err
	}
	time.AfterFunc(50*time.Millisecond, end)
	answer.Body = shortBody{answer.Body, ctx.Done()}
	return answer, nil
}

// WrappedRoundTripper lets client-go cancel requests.
func (c *short) WrappedRoundTripper() http.RoundTripper { return c.next }

// shortBody ends with a timeout.
type shortBody struct {
	io.ReadCloser
	over <-chan struct{}
}

func (b shortBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	select {
	case <-b.over:
		if err != nil {
			err = os.ErrDeadlineExceeded
		}
	default:
	}
	return n, err
}

func waitSurvivesWatchesThatEnd(t *testing.T, s *servertest.Server) {
	cfg := rest.CopyConfig(s.Admin)
	watches := &short{begun: make(chan struct{}, 1000)}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		watches.next = next
		return watches
	})
	api, err := kubernetes.NewForConfig(cfg)
	must(t, err)
	p := newPod(t, s.Client(t), "watched")
	asked := p.grants(home("ada"))
	p.client = operator.New(api.CoreV1(), names)
	result := p.waits(asked)
	for range 3 {
		<-watches.begun
	}
	p.answer(ready(asked, "ada"))
	if st, err := result(); err != nil || st.State != grant.StateReady {
		t.Errorf("%+v, %v", st, err)
	}
}

func refusalsComeThrough(t *testing.T, s *servertest.Server) {
	api, _ := s.User(t, "reader", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}})
	p := newPod(t, s.Client(t), "refused")
	asked := p.grants(home("ada"))
	p.client = operator.New(api.CoreV1(), names)
	if _, err := p.client.Add(t.Context(), p.Pod, home("bob")); !apierrors.IsForbidden(err) {
		t.Errorf("add: %v", err)
	}
	if _, err := p.waits(asked)(); !apierrors.IsForbidden(err) {
		t.Errorf("wait: %v", err)
	}
}

func TestAServerThatIsNoAPIServerDoesNotSayThatAPodIsMissing(t *testing.T) {
	for name, c := range map[string]struct {
		code int
		body string
	}{
		"a page":            {http.StatusNotFound, "<html>404 Not Found</html>"},
		"an empty document": {http.StatusOK, "{}"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(c.code)
				_, _ = io.WriteString(w, c.body)
			}))
			defer server.Close()
			api, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
			must(t, err)
			client, pod := operator.New(api.CoreV1(), names), operator.Pod{Namespace: namespace, Name: "p", UID: "u"}
			_, granted := client.Grant(t.Context(), pod, home("ada"))
			_, asked := client.Asked(t.Context(), pod)
			_, waited := client.Wait(t.Context(), operator.Asked{Pod: pod})
			for op, err := range map[string]error{"Grant": granted, "Asked": asked, "Wait": waited} {
				if err == nil || errors.Is(err, operator.ErrGone) {
					t.Errorf("%s: %v", op, err)
				}
			}
		})
	}
}
