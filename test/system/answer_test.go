package system_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/datalayer/node-mounts/grant"
)

// answersAreTheAgents: whatever others do to the answer, it is soon what the
// agent says, and nothing is mounted or unmounted for it.
func answersAreTheAgents(t *testing.T, c *cluster) {
	n := c.node(t)
	p := n.run("sandbox")
	n.startAgent(agentOptions{})
	set := []grant.Mount{home("home/users/ada", "ada"), dataset("datasets/cats", "cats")}
	p.grant(set...)
	ids, binds, right := p.ids(), n.agent.calls()["Bind"], p.ready()

	p.grant(set...) // equal, and answered a second time: the first was removed
	replaced := func(what string, value *string) {
		t.Helper()
		p.annotate(map[string]*string{c.names.Ready: value})
		eventually(t, "an answer after "+what, func() string {
			if now := p.ready(); now == nil || now.Encode() != right.Encode() {
				return fmt.Sprintf("it is %+v", now)
			}
			return ""
		})
		p.mustHave(set)
	}
	replaced("one was deleted", nil)
	for _, forged := range []string{
		grant.Status{Hash: right.Hash, State: grant.StateReady, Mounted: []string{"ada", "bob", "cats"}}.Encode(),
		grant.Status{Hash: right.Hash, State: grant.StateFailed, Failed: map[string]grant.Code{"*": grant.CodeMountFailed}}.Encode(),
		grant.Status{Hash: "0000000000000000", State: grant.StateReady, Mounted: []string{}}.Encode(),
		"", "nothing that can be read",
	} {
		replaced("it was forged", &forged)
	}
	if now := p.ids(); !maps.Equal(now, ids) || n.agent.calls()["Bind"] != binds {
		t.Errorf("mounts are %v, were %v; %d binds, %d before", now, ids, n.agent.calls()["Bind"], binds)
	}
	p.delete()
}

// Mount tables of processes that are read: the container's to prove a grant, and those
// of the Pod's mount namespaces before and after a revocation, of which it has one here.
const (
	tablesOfAGrant      = 1
	tablesOfARevocation = 2
	// tablesOfASweep is room for what the sweep has proven again, and far less than
	// another reading for each grant would be.
	tablesOfASweep = 4
)

// onePatchForEachChange counts what the agent costs the API server and the
// kernel: one patch for a change, and no reading of the whole mount table.
func onePatchForEachChange(t *testing.T, c *cluster) {
	const changes = 20
	n := c.node(t)
	p := n.run("sandbox")
	a := n.startAgent(agentOptions{watch: true})
	p.grant(home("home/users/ada", "ada"))
	before := a.calls()
	if before[wholeTable] == 0 || before[processTable] == 0 {
		t.Fatalf("opened until now: %v: what opens mount tables is not seen", before)
	}
	events, err := c.admin.CoreV1().Pods(n.namespace).Watch(t.Context(), metav1.ListOptions{})
	must(t, err)
	defer events.Stop()
	answers, began := a.calls()["Answer"], time.Now()
	for i := range changes {
		m := home("home/users/bob", fmt.Sprintf("bob%d", i))
		p.grant(home("home/users/ada", "ada"), m, dataset("datasets/cats", "cats"))
	}
	// What the agent does beyond that, it would do now.
	last := p.ids()
	throughout(t, time.Second, func() string {
		if now := p.ids(); !maps.Equal(now, last) {
			return fmt.Sprintf("the mounts are %v, were %v", now, last)
		}
		return ""
	})
	if got := a.calls()["Answer"] - answers; got != changes {
		t.Errorf("%d answers to %d changes", got, changes)
	}
	// The sweep reads the table too, twice a minute.
	now := a.calls()
	sweeps := 1 + int(time.Since(began)/(30*time.Second))
	if got, most := now[wholeTable]-before[wholeTable], sweeps; got > most {
		t.Errorf("the node's mount table was opened %d times, at most %d are the sweep's", got, most)
	}
	// A change here is a grant and, but for the first, a revocation. Whose table it is
	// does not show in every path (/proc/thread-self, a number), so none may be read
	// beyond these.
	needed := tablesOfAGrant*changes + tablesOfARevocation*(changes-1)
	if got, most := now[processTable]-before[processTable], needed+tablesOfASweep*sweeps; got < needed || got > most {
		t.Errorf("processes' mount tables were opened %d times by %d changes, %d to %d are wanted", got, changes, needed, most)
	} else {
		t.Logf("processes' mount tables were opened %d times by %d changes", got, changes)
	}
	if got := modifications(t, events, p); got != 2*changes {
		t.Errorf("the Pod was changed %d times by %d changes and their answers", got, changes)
	}
	p.delete()
}

// modifications are the Pod's changes that a watch has delivered, up to what the Pod
// is now.
func modifications(t *testing.T, events watch.Interface, p *pod) int {
	t.Helper()
	now, err := p.get()
	must(t, err)
	versions := []string{}
	for late := time.After(patience); ; {
		select {
		case e := <-events.ResultChan():
			seen, ok := e.Object.(*corev1.Pod)
			if !ok || seen.UID != now.UID {
				t.Fatalf("the watch ended, or tells of another Pod: %+v", e)
			}
			if e.Type == watch.Modified && !slices.Contains(versions, seen.ResourceVersion) {
				versions = append(versions, seen.ResourceVersion)
			}
			if seen.ResourceVersion == now.ResourceVersion {
				return len(versions)
			}
		case <-late:
			t.Fatalf("the watch does not come to what the Pod is now, after %d changes", len(versions))
		}
	}
}

// oneFailsForEver: the other four are there and stay, and the Pod is not patched
// at every attempt.
func oneFailsForEver(t *testing.T, c *cluster) {
	n := c.node(t)
	p := n.run("sandbox")
	a := n.startAgent(agentOptions{})
	good := []grant.Mount{
		home("home/users/ada", "ada"), home("home/users/bob", "bob"), home("home/teams/red", "red"), dataset("datasets/cats", "cats"),
	}
	bad := dataset("datasets/dogs", "dogs")
	st := p.answered(p.ask(append(slices.Clone(good), bad)...))
	if st.State != grant.StateDegraded || !slices.Equal(st.Mounted, targets(good)) || st.Failed["dogs"] != grant.CodeMountFailed || st.Messages["dogs"] == "" {
		t.Fatalf("answered %+v", st)
	}
	ids := p.ids()
	throughout(t, 8*time.Second, func() string {
		if now := p.ids(); !maps.Equal(now, ids) || len(now) != len(good) {
			return fmt.Sprintf("the mounts are %v, were %v", now, ids)
		}
		return ""
	})
	if got := a.calls()["Answer"]; got > 2 {
		t.Errorf("%d answers to one set", got)
	}
	n.folder("datasets/dogs")
	n.claim = n.checksums()
	p.mustBeReady(p.answered(p.ask(append(slices.Clone(good), bad)...)), append(slices.Clone(good), bad))
	for target, id := range ids {
		if now := p.ids()[target]; now != id {
			t.Errorf("%s is mount %d, was %d", target, now, id)
		}
	}
	p.delete()
}
