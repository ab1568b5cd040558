package operator_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/kube/kubetest"
	"github.com/datalayer/node-mounts/internal/kube/servertest"
	"github.com/datalayer/node-mounts/operator"
)

const namespace = "default"

var names = grant.NamesFor("")

// suite is what holds on every Kubernetes API, the one in memory and a real one.
func suite() map[string]func(*testing.T, *pod) {
	return map[string]func(*testing.T, *pod){
		"a grant removes the old answer":                          grantRemovesTheOldAnswer,
		"a removed grant takes the answer with it":                clearTakesTheAnswerWithIt,
		"writers at once lose nothing":                            writersAtOnceLoseNothing,
		"what another writer granted stays":                       othersGrantsStay,
		"removing what is not granted writes nothing":             removingWhatIsNotGrantedWritesNothing,
		"an annotation that cannot be read is not overwritten":    unreadableIsNotMerged,
		"a wait ends with the answer to its set and no other":     waitEndsWithItsAnswer,
		"a wait goes on while it is only not there yet":           waitGoesOnWhileItIsNotThereYet,
		"a wait ends with a failure beside what is not there yet": waitEndsWithAFailure,
		"the first answer can be had, whatever it says":           firstAnswerCanBeHad,
		"an answer to an equal set before is no answer":           equalSetIsAnsweredAnew,
		"a wait for a set that was replaced ends":                 replacedSetEndsTheWait,
		"a set of other kinds is another set, with the same hash": otherKindsAreAnotherSet,
		"a wait for a Pod that goes ends":                         waitEndsWithThePod,
		"a wait for a Pod that finishes ends":                     waitEndsWithAFinishedPod,
		"a Pod made again under its name is another one":          madeAgainIsAnotherPod,
		"a wait lasts as long as its context":                     waitLastsAsLongAsItsContext,
		"a Pod without a grant has nothing to wait for":           nothingToWaitFor,
	}
}

func TestInMemory(t *testing.T) {
	for name, test := range suite() {
		t.Run(name, func(t *testing.T) {
			client, err := kubetest.NewClient()
			must(t, err)
			test(t, newPod(t, client, "p"))
		})
	}
}

func TestOnARealAPIServer(t *testing.T) {
	s := servertest.Start(t)
	t.Run("suite", func(t *testing.T) {
		i := 0
		for name, test := range suite() {
			i++
			p := newPod(t, s.Client(t), fmt.Sprintf("p-%d", i))
			t.Run(name, func(t *testing.T) {
				p.t = t
				test(t, p)
			})
		}
	})
	t.Run("a wait survives watches that end", func(t *testing.T) { waitSurvivesWatchesThatEnd(t, s) })
	t.Run("a refusal of the API comes through", func(t *testing.T) { refusalsComeThrough(t, s) })
}

// pod is a Pod of a test with the client that grants on it.
type pod struct {
	t      *testing.T
	api    kubernetes.Interface
	client *operator.Client
	operator.Pod
}

func newPod(t *testing.T, api kubernetes.Interface, name string) *pod {
	t.Helper()
	p := &pod{t: t, api: api, client: operator.New(api.CoreV1(), names), Pod: operator.Pod{Namespace: namespace, Name: name}}
	p.create()
	return p
}

func (p *pod) create() {
	p.t.Helper()
	_, err := p.api.CoreV1().Pods(namespace).Create(p.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: namespace, Annotations: map[string]string{"other": "stays"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "runtime", Image: "sandbox"}}},
	}, metav1.CreateOptions{})
	must(p.t, err)
}

func (p *pod) delete() {
	p.t.Helper()
	now := int64(0)
	must(p.t, p.api.CoreV1().Pods(namespace).Delete(p.t.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
}

func (p *pod) now() *corev1.Pod {
	p.t.Helper()
	now, err := p.api.CoreV1().Pods(namespace).Get(p.t.Context(), p.Name, metav1.GetOptions{})
	must(p.t, err)
	return now
}

// set writes one annotation as anybody may, nil removes it.
func (p *pod) set(name string, text *string) {
	p.t.Helper()
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]*string{name: text}}})
	must(p.t, err)
	_, err = p.api.CoreV1().Pods(namespace).Patch(p.t.Context(), p.Name, types.MergePatchType, body, metav1.PatchOptions{})
	must(p.t, err)
}

func (p *pod) answer(st grant.Status) {
	p.t.Helper()
	text := st.Encode()
	p.set(names.Ready, &text)
}

func (p *pod) answered() bool {
	_, ok := p.now().Annotations[names.Ready]
	return ok
}

func (p *pod) granted() []string { return grant.Decode(p.now().Annotations[names.Mounts]).Targets() }

func (p *pod) grants(mounts ...grant.Mount) operator.Asked {
	p.t.Helper()
	asked, err := p.client.Grant(p.t.Context(), p.Pod, mounts...)
	must(p.t, err)
	return asked
}

// waits begins to wait and returns what gives the result.
func (p *pod) waits(asked operator.Asked) func() (grant.Status, error) {
	type result struct {
		st  grant.Status
		err error
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	p.t.Cleanup(cancel)
	done := make(chan result, 1)
	go func() {
		st, err := p.client.Wait(ctx, asked)
		done <- result{st, err}
	}()
	return func() (grant.Status, error) {
		r := <-done
		return r.st, r.err
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wants(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
	}
}

func home(target string) grant.Mount {
	return grant.Mount{Kind: grant.KindFiles, Source: "home/users/" + target, Target: target, AllowExec: true}
}

func ready(a operator.Asked, mounted ...string) grant.Status {
	return grant.Status{Hash: a.Hash, State: grant.StateReady, Mounted: mounted}
}

func grantRemovesTheOldAnswer(t *testing.T, p *pod) {
	p.answer(grant.Status{Hash: "old", State: grant.StateReady})
	asked := p.grants(home("ada"))
	now := p.now()
	set := grant.Decode(now.Annotations[names.Mounts])
	if set.Hash != asked.Hash || len(set.Mounts) != 1 || asked.Annotation != now.Annotations[names.Mounts] || asked.UID != now.UID {
		t.Errorf("asked %+v, the Pod has %q", asked, now.Annotations)
	}
	if p.answered() || now.Annotations["other"] != "stays" {
		t.Errorf("the Pod has %q", now.Annotations)
	}
}

func clearTakesTheAnswerWithIt(t *testing.T, p *pod) {
	p.answer(ready(p.grants(home("ada")), "ada"))
	for range 2 { // the second finds nothing
		must(t, p.client.Clear(t.Context(), p.Pod))
		if now := p.now().Annotations; len(now) != 1 || now["other"] != "stays" {
			t.Errorf("the Pod has %q", now)
		}
	}
}

// Writers meet each other, and somebody who writes something else all the time.
func writersAtOnceLoseNothing(t *testing.T, p *pod) {
	p.grants(home("old"), home("going"))
	const writers = 12
	want := []string{"old"}
	var group sync.WaitGroup
	errs := make(chan error, writers+1)
	for i := range writers {
		target := fmt.Sprintf("t%02d", i)
		want = append(want, target)
		group.Go(func() {
			_, err := p.client.Add(t.Context(), p.Pod, home(target))
			errs <- err
		})
	}
	group.Go(func() {
		_, err := p.client.Remove(t.Context(), p.Pod, "going")
		errs <- err
	})
	for i := range writers {
		text := fmt.Sprint(i)
		p.set("status", &text)
	}
	group.Wait()
	for range writers + 1 {
		must(t, <-errs)
	}
	slices.Sort(want)
	if got := p.granted(); !slices.Equal(got, want) {
		t.Errorf("granted %v, want %v", got, want)
	}
}

func othersGrantsStay(t *testing.T, p *pod) {
	theirs := `{"hash":"theirs","mounts":[{"kind":"later","source":"x","target":"later","extra":1},{"source":"data","target":"data","mode":"ro"}]}`
	p.set(names.Mounts, &theirs)
	asked, err := p.client.Add(t.Context(), p.Pod, home("ada"))
	must(t, err)
	if got := p.granted(); !slices.Equal(got, []string{"ada", "data", "later"}) || asked.Hash == "theirs" {
		t.Errorf("granted %v, asked %+v", got, asked)
	}
	_, err = p.client.Remove(t.Context(), p.Pod, "later", "ada")
	must(t, err)
	if got := p.granted(); !slices.Equal(got, []string{"data"}) {
		t.Errorf("granted %v", got)
	}
}

func removingWhatIsNotGrantedWritesNothing(t *testing.T, p *pod) {
	p.answer(ready(p.grants(home("ada")), "ada"))
	before := p.now().ResourceVersion
	_, err := p.client.Remove(t.Context(), p.Pod, "ada", "bob", "eve")
	var not *operator.NotGrantedError
	if !errors.As(err, &not) || !slices.Equal(not.Targets, []string{"bob", "eve"}) {
		t.Errorf("%v", err)
	}
	if now := p.now(); now.ResourceVersion != before {
		t.Errorf("the Pod was written: %q", now.Annotations)
	}
	must(t, p.client.Clear(t.Context(), p.Pod))
	if _, err := p.client.Remove(t.Context(), p.Pod, "ada"); !errors.As(err, &not) {
		t.Errorf("without a grant: %v", err)
	}
}

func unreadableIsNotMerged(t *testing.T, p *pod) {
	broken := `{"mounts":`
	p.set(names.Mounts, &broken)
	for what, try := range map[string]func() (operator.Asked, error){
		"add":    func() (operator.Asked, error) { return p.client.Add(t.Context(), p.Pod, home("ada")) },
		"remove": func() (operator.Asked, error) { return p.client.Remove(t.Context(), p.Pod, "ada") },
	} {
		var refusal *grant.Refusal
		if _, err := try(); !errors.Is(err, operator.ErrUnreadable) || !errors.As(err, &refusal) || refusal.Code != grant.CodeInvalidGrant {
			t.Errorf("%s: %v", what, err)
		}
	}
	if now := p.now().Annotations[names.Mounts]; now != broken {
		t.Errorf("the Pod has %q", now)
	}
	// Its answer carries no hash, and can be waited for all the same.
	asked, err := p.client.Asked(t.Context(), p.Pod)
	must(t, err)
	result := p.waits(asked)
	want := grant.Status{State: grant.StateFailed, Failed: map[string]grant.Code{"*": grant.CodeInvalidGrant}}
	p.answer(want)
	if st, err := result(); err != nil || st.Failed["*"] != grant.CodeInvalidGrant {
		t.Errorf("%+v, %v", st, err)
	}
	p.grants(home("ada"))
}

func waitEndsWithItsAnswer(t *testing.T, p *pod) {
	asked := p.grants(home("ada"))
	result := p.waits(asked)
	p.answer(grant.Status{Hash: "0000000000000000", State: grant.StateReady, Mounted: []string{"other"}})
	garbage := `{"hash":"` + asked.Hash + `","state":"splendid"}`
	p.set(names.Ready, &garbage)
	p.set(names.Ready, nil)
	p.answer(grant.Status{Hash: asked.Hash, State: grant.StateDegraded, Failed: map[string]grant.Code{"ada": grant.CodeMountFailed}})
	st, err := result()
	if err != nil || st.State != grant.StateDegraded || st.Failed["ada"] != grant.CodeMountFailed {
		t.Errorf("%+v, %v", st, err)
	}
	// It stands: waiting again ends at once.
	if again, err := p.waits(asked)(); err != nil || again.Hash != asked.Hash {
		t.Errorf("%+v, %v", again, err)
	}
}

func equalSetIsAnsweredAnew(t *testing.T, p *pod) {
	first := p.grants(home("ada"))
	p.answer(ready(first, "ada"))
	second := p.grants(home("ada"))
	if first.Hash != second.Hash || p.answered() {
		t.Fatalf("asked %+v, then %+v", first, second)
	}
	result := p.waits(second)
	p.answer(grant.Status{Hash: second.Hash, State: grant.StateFailed, Failed: map[string]grant.Code{"ada": grant.CodeMountFailed}})
	if st, err := result(); err != nil || st.State != grant.StateFailed {
		t.Errorf("%+v, %v", st, err)
	}
}

func replacedSetEndsTheWait(t *testing.T, p *pod) {
	result := p.waits(p.grants(home("ada")))
	p.grants(home("bob"))
	_, err := result()
	wants(t, err, operator.ErrSuperseded)
	asked := p.grants(home("ada"))
	must(t, p.client.Clear(t.Context(), p.Pod))
	_, err = p.waits(asked)()
	wants(t, err, operator.ErrSuperseded)
}

func otherKindsAreAnotherSet(t *testing.T, p *pod) {
	one := home("ada")
	other := one
	other.Kind = grant.KindSharedFolder
	first, second := p.grants(one), p.grants(other)
	p.answer(ready(second, "ada"))
	if first.Hash != second.Hash {
		t.Fatalf("the hashes are %s and %s", first.Hash, second.Hash)
	}
	_, err := p.waits(first)()
	wants(t, err, operator.ErrSuperseded)
}

func waitEndsWithThePod(t *testing.T, p *pod) {
	result := p.waits(p.grants(home("ada")))
	p.delete()
	// A real server tells first that it is being deleted.
	_, err := result()
	if !errors.Is(err, operator.ErrGone) && !errors.Is(err, operator.ErrEnding) {
		t.Error(err)
	}
	_, err = p.waits(operator.Asked{Pod: p.Pod})()
	wants(t, err, operator.ErrGone)
	_, err = p.client.Grant(t.Context(), p.Pod, home("ada"))
	wants(t, err, operator.ErrGone)
	wants(t, p.client.Clear(t.Context(), p.Pod), operator.ErrGone)
	_, err = p.client.Asked(t.Context(), p.Pod)
	wants(t, err, operator.ErrGone)
}

func waitEndsWithAFinishedPod(t *testing.T, p *pod) {
	asked := p.grants(home("ada"))
	result := p.waits(asked)
	now := p.now()
	now.Status.Phase = corev1.PodSucceeded
	_, err := p.api.CoreV1().Pods(namespace).UpdateStatus(t.Context(), now, metav1.UpdateOptions{})
	must(t, err)
	_, err = result()
	wants(t, err, operator.ErrEnding)
	for what, try := range map[string]func() (operator.Asked, error){
		"grant": func() (operator.Asked, error) { return p.client.Grant(t.Context(), p.Pod, home("bob")) },
		"add":   func() (operator.Asked, error) { return p.client.Add(t.Context(), p.Pod, home("bob")) },
	} {
		if _, err := try(); !errors.Is(err, operator.ErrEnding) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Mounts can still be taken away, and an answer that stands still counts.
	p.answer(ready(asked, "ada"))
	if st, err := p.waits(asked)(); err != nil || st.State != grant.StateReady {
		t.Errorf("%+v, %v", st, err)
	}
	_, err = p.client.Remove(t.Context(), p.Pod, "ada")
	must(t, err)
	p.grants()
}

func madeAgainIsAnotherPod(t *testing.T, p *pod) {
	p.UID = p.now().UID
	asked := p.grants(home("ada"))
	p.delete()
	p.create()
	text := asked.Annotation
	p.set(names.Mounts, &text)
	p.answer(ready(asked, "ada"))
	_, err := p.waits(asked)()
	wants(t, err, operator.ErrGone)
	before := p.now().ResourceVersion
	_, err = p.client.Grant(t.Context(), p.Pod, home("ada"))
	wants(t, err, operator.ErrGone)
	_, err = p.client.Add(t.Context(), p.Pod, home("ada"))
	wants(t, err, operator.ErrGone)
	if now := p.now(); now.ResourceVersion != before {
		t.Errorf("the second Pod was written: %q", now.Annotations)
	}
}

func waitLastsAsLongAsItsContext(t *testing.T, p *pod) {
	asked := p.grants(home("ada"))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := p.client.Wait(ctx, asked)
	wants(t, err, context.DeadlineExceeded)
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Errorf("it ended before its context: %v", err)
	}
}

func nothingToWaitFor(t *testing.T, p *pod) {
	_, err := p.client.Asked(t.Context(), p.Pod)
	wants(t, err, operator.ErrNoGrant)
	want := p.grants(home("ada"), home("bob"))
	got, err := p.client.Asked(t.Context(), p.Pod)
	if err != nil || got != want {
		t.Errorf("asked %+v, %v, want %+v", got, err, want)
	}
}
