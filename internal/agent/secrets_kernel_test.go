package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/secret"
)

// secretCanary must be found nowhere but in the API.
const secretCanary = "canary-5e1f0c"

// secrets are the Secrets of an API in memory, all in the Pods' namespace.
type secrets struct {
	mu  sync.Mutex
	has map[string]string // name to the uid of the owning Pod
	err error
}

func (s *secrets) Secret(_ context.Context, namespace, name string) (secret.Stored, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	uid, ok := s.has[name]
	switch {
	case s.err != nil:
		return secret.Stored{}, s.err
	case !ok || namespace != "sandboxes":
		return secret.Stored{}, secret.ErrNotFound
	}
	return secret.Stored{
		Owners: []secret.Owner{{APIVersion: "v1", Kind: "Pod", UID: uid}},
		Data:   secret.NewData(map[string][]byte{"token": []byte(secretCanary)}),
	}, nil
}

func (s *secrets) set(name, uid string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name != "" {
		s.has[name] = uid
	}
	s.err = err
}

// listener keeps what a test logs.
type listener struct {
	testing.TB
	mu  sync.Mutex
	log strings.Builder
}

func (l *listener) Log(args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintln(&l.log, args...)
	l.TB.Log(args...)
}

func withSecret(m grant.Mount, name string) grant.Mount {
	m.Secret = name
	return m
}

func TestASecretIsLookedAtBeforeAnythingIsMadeAndItsValueIsShownNowhere(t *testing.T) {
	heard := &listener{TB: t}
	n := agenttest.NewNode(heard)
	api := &secrets{has: map[string]string{}}
	n.Secrets, n.Policy.Credentials = &secret.Reader{Source: api}, true
	n.Restart()
	p := n.RunningPod("credentials")
	api.set("mine", p.UID, nil)
	api.set("theirs", "another", nil)
	p.Grant(withSecret(home("h/mine", "mine"), "mine"), withSecret(home("h/theirs", "theirs"), "theirs"), withSecret(home("h/none", "none"), "none"))
	st := p.MustAnswer(grant.StateDegraded, []string{"mine"}, codes("theirs", "SECRET_REFUSED", "none", "SECRET_REFUSED"))
	if !strings.Contains(st.Messages["theirs"], "does not belong") || !strings.Contains(st.Messages["none"], "does not exist") {
		t.Errorf("it says %v", st.Messages)
	}
	for _, never := range []string{filepath.Join(n.Claim, "h/theirs"), filepath.Join(n.Claim, "h/none"), filepath.Join(treeOf(n, p), "theirs")} {
		absent(t, never)
	}
	texts := map[string]string{"the answer": st.Encode()}
	api.set("", "", secret.ErrForbidden)
	p.Grant(withSecret(home("h/mine", "mine"), "mine"), withSecret(home("h/late", "late"), "mine"))
	st = p.MustAnswer(grant.StateDegraded, []string{"mine"}, codes("late", "SECRET_REFUSED"))
	texts["a refusal"] = st.Encode()
	api.set("", "", errors.New("connection refused"))
	p.Grant(withSecret(home("h/mine", "mine"), "mine"), withSecret(home("h/late", "late"), "mine"))
	p.MustAnswer(grant.StateDegraded, []string{"mine"}, codes("late", "MOUNT_FAILED"))
	api.set("theirs", p.UID, nil)
	p.Grant(withSecret(home("h/theirs", "theirs"), "theirs"))
	p.MustAnswer(grant.StateReady, []string{"theirs"}, codes())

	views, err := json.Marshal(n.Agent.Views())
	must(t, err)
	families, err := n.Metrics.Gatherer().Gather()
	must(t, err)
	record, err := os.ReadFile(filepath.Join(n.Root, "journal", p.UID+".json"))
	must(t, err)
	heard.mu.Lock()
	texts["the log"] = heard.log.String()
	heard.mu.Unlock()
	texts["/gateway"], texts["metrics"], texts["the journal"] = string(views), fmt.Sprint(families), string(record)
	for where, text := range texts {
		if text == "" || strings.Contains(text, secretCanary) {
			t.Errorf("%s (%d bytes) has the value, or is empty", where, len(text))
		}
	}
	if !strings.Contains(texts["the journal"], `"theirs"`) || !strings.Contains(texts["the log"], "SECRET_REFUSED") {
		t.Error("this test looks in the wrong places")
	}
}
