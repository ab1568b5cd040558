package operator_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/operator"
)

// answer is one to the set by which these have failed.
func answer(a operator.Asked, mounted []string, failed map[string]grant.Code) grant.Status {
	st := grant.Status{Hash: a.Hash, State: grant.StateDegraded, Mounted: mounted, Failed: failed}
	if len(mounted) == 0 {
		st.State = grant.StateFailed
	}
	return st
}

type failures = map[string]grant.Code

// still wants a wait for the targets not to end with the answer that the Pod has, and
// returns what it says when its time is over.
func (p *pod) still(asked operator.Asked, targets ...string) (grant.Status, error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 300*time.Millisecond)
	defer cancel()
	st, err := p.client.Wait(ctx, asked, targets...)
	wants(p.t, err, context.DeadlineExceeded)
	return st, err
}

func waitGoesOnWhileItIsNotThereYet(t *testing.T, p *pod) {
	asked := p.grants(home("ada"), home("code"))
	result := p.waits(asked)
	p.answer(answer(asked, nil, failures{"*": grant.CodeNotReady}))
	fetching := answer(asked, []string{"ada"}, failures{"code": grant.CodeNotReady})
	p.answer(fetching)
	st, err := p.still(asked)
	if !reflect.DeepEqual(st, fetching) || err == nil || !strings.Contains(err.Error(), "not there yet: code ("+string(grant.CodeNotReady)+")") {
		t.Errorf("at the end of its time: %+v, %v", st, err)
	}
	p.answer(ready(asked, "ada", "code"))
	if st, err := result(); err != nil || st.State != grant.StateReady {
		t.Errorf("%+v, %v", st, err)
	}
}

func waitEndsWithAFailure(t *testing.T, p *pod) {
	asked := p.grants(home("ada"), home("code"))
	result := p.waits(asked)
	want := answer(asked, nil, failures{"ada": grant.CodeMountFailed, "code": grant.CodeNotReady})
	p.answer(want)
	if st, err := result(); err != nil || !reflect.DeepEqual(st, want) {
		t.Errorf("%+v, %v", st, err)
	}
	// Who waits for the other alone goes on.
	if st, err := p.still(asked, "code"); !reflect.DeepEqual(st, want) || err == nil || strings.Contains(err.Error(), "ada") {
		t.Errorf("%+v, %v", st, err)
	}
}

func firstAnswerCanBeHad(t *testing.T, p *pod) {
	asked := p.grants(home("ada"), home("code"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	want := answer(asked, []string{"ada"}, failures{"code": grant.CodeNotReady})
	p.answer(want)
	if st, err := p.client.WaitFirst(ctx, asked); err != nil || !reflect.DeepEqual(st, want) {
		t.Errorf("%+v, %v", st, err)
	}
}

func TestAWaitEndsWithWhatIsFinalForItsTargets(t *testing.T) {
	const notReady, held, dead, failed = grant.CodeNotReady, grant.CodeHeld, grant.CodeMountDead, grant.CodeMountFailed
	two := []string{"ada", "code"}
	for name, c := range map[string]struct {
		targets []string
		mounted []string
		failed  failures
		missing string // "" where the wait ends
	}{
		"all of it stands":                          {nil, two, nil, ""},
		"nothing stands yet":                        {nil, nil, failures{"*": notReady}, "*"},
		"it stands, and the container starts again": {nil, two, failures{"*": notReady}, "*"},
		"one is fetched":                            {nil, two[:1], failures{"code": notReady}, "code"},
		"two are":                                   {nil, nil, failures{"ada": notReady, "code": notReady}, "ada, code"},
		"one has died":                              {nil, two, failures{"ada": dead}, ""},
		"one that was revoked is held":              {nil, two[:1], failures{"code": notReady, "old": held}, ""},
		"a code that is not known":                  {nil, nil, failures{"ada": "NODE_MOUNT_GATEWAY_LATER", "code": notReady}, ""},
		"the set is refused":                        {nil, nil, failures{"*": grant.CodeTooManyMounts, "code": notReady}, ""},
		"mine stands, another's is fetched":         {two[:1], two[:1], failures{"code": notReady}, ""},
		"mine is fetched, another's failed":         {two[1:], nil, failures{"ada": failed, "code": notReady}, "code"},
		"mine failed, another's is fetched":         {two[:1], nil, failures{"ada": failed, "code": notReady}, ""},
		"of mine one failed and one is fetched":     {two, nil, failures{"ada": failed, "code": notReady}, ""},
		"mine is fetched, the set is refused":       {two[1:], nil, failures{"*": grant.CodeTooManyMounts, "code": notReady}, ""},
		"mine stands, the container starts again":   {two[:1], two[:1], failures{"*": notReady}, "*"},
		"mine stands anew while the last is held":   {two, two[:1], failures{"ada": held, "code": notReady}, "code"},
		"what I revoked is held":                    {two, nil, failures{"ada": held, "code": notReady}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, _ := inMemory(t)
				asked := p.grants(home("ada"), home("code"))
				p.answer(answer(asked, c.mounted, c.failed))
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				st, err := p.client.Wait(ctx, asked, c.targets...)
				if c.missing == "" {
					must(t, err)
				} else {
					wants(t, err, context.DeadlineExceeded)
					want := "not there yet: " + strings.ReplaceAll(c.missing, ",", " ("+string(notReady)+"),") + " (" + string(notReady) + ")"
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("%v, want %q", err, want)
					}
				}
				if len(st.Failed) != len(c.failed) || len(st.Mounted) != len(c.mounted) {
					t.Errorf("the answer is %+v", st)
				}
			})
		})
	}
}

// What was answered before is not the answer to what is asked now.
func TestAWaitThatEndsWithoutAnAnswerHasNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := inMemory(t)
		asked := p.grants(home("ada"))
		result := p.waits(asked)
		p.answer(answer(asked, nil, failures{"ada": grant.CodeNotReady}))
		synctest.Wait()
		p.set(names.Ready, nil)
		st, err := result()
		wants(t, err, context.DeadlineExceeded)
		if st.State != "" || strings.Contains(err.Error(), "not there yet") {
			t.Errorf("%+v, %v", st, err)
		}
	})
}

func TestAPodThatEndsBeforeAllIsThereGetsNothingMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := inMemory(t)
		asked := p.grants(home("ada"), home("code"))
		want := answer(asked, []string{"ada"}, failures{"code": grant.CodeNotReady})
		p.answer(want)
		result := p.waits(asked)
		synctest.Wait()
		now := p.now()
		now.Status.Phase = corev1.PodSucceeded
		_, err := p.api.CoreV1().Pods(namespace).UpdateStatus(t.Context(), now, metav1.UpdateOptions{})
		must(t, err)
		st, err := result()
		wants(t, err, operator.ErrEnding)
		if !reflect.DeepEqual(st, want) {
			t.Errorf("the last answer is %+v, want %+v", st, want)
		}
	})
}

func TestAWriterWithoutADeadlineGivesUpWhereOthersAlwaysComeFirst(t *testing.T) {
	for name, change := range map[string]func(context.Context, *pod) error{
		"grant":  func(ctx context.Context, p *pod) error { _, err := p.client.Grant(ctx, p.Pod, home("bob")); return err },
		"add":    func(ctx context.Context, p *pod) error { _, err := p.client.Add(ctx, p.Pod, home("bob")); return err },
		"remove": func(ctx context.Context, p *pod) error { _, err := p.client.Remove(ctx, p.Pod, "ada"); return err },
		"clear":  func(ctx context.Context, p *pod) error { return p.client.Clear(ctx, p.Pod) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, api := inMemory(t)
				p.grants(home("ada"))
				tries := 0
				fails(api, "patch", func(n int) error { tries = n; return conflict() })
				began := time.Now()
				err := change(t.Context(), p)
				if took := time.Since(began); !apierrors.IsConflict(err) || took < time.Minute || took > 62*time.Second || tries < 30 {
					t.Errorf("after %v and %d attempts: %v", took, tries, err)
				}
				if err == nil || !strings.Contains(err.Error(), "default/p: others changed the Pod before each attempt of 1m0s") {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

// The words are those of client-go's own limiter, which sends nothing.
func TestAWriterWhoseTimeIsOverSaysThatOthersCameFirst(t *testing.T) {
	const long = 2 * time.Minute // more than is tried without a deadline
	for name, last := range map[string]error{
		"it waits":                     nil,
		"the client holds back":        errors.New("client rate limiter Wait returned an error: rate: Wait(n=1) would exceed context deadline"),
		"a request is under way there": context.DeadlineExceeded,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, api := inMemory(t)
				ctx, cancel := context.WithTimeout(t.Context(), long)
				defer cancel()
				fails(api, "patch", func(n int) error {
					if n < 4 || last == nil {
						return conflict()
					}
					if errors.Is(last, context.DeadlineExceeded) {
						<-ctx.Done()
					}
					return last
				})
				began := time.Now()
				_, err := p.client.Add(ctx, p.Pod, home("ada"))
				wants(t, err, context.DeadlineExceeded)
				if !apierrors.IsConflict(err) || time.Since(began) != long {
					t.Errorf("after %v: %v", time.Since(began), err)
				}
			})
		})
	}
}
