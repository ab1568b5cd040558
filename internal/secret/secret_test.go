package secret_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/datalayer/node-mounts/internal/secret"
)

const canary = "canary-7f3a91"

// api is Secrets in memory, by namespace/name.
type api struct {
	has  map[string]secret.Stored
	err  error
	asks int
}

func (a *api) Secret(_ context.Context, namespace, name string) (secret.Stored, error) {
	a.asks++
	if a.err != nil {
		return secret.Stored{}, a.err
	}
	s, ok := a.has[namespace+"/"+name]
	if !ok {
		return secret.Stored{}, secret.ErrNotFound
	}
	return s, nil
}

func pod(uid string) secret.Owner { return secret.Owner{APIVersion: "v1", Kind: "Pod", UID: uid} }

func stored(value string, owners ...secret.Owner) secret.Stored {
	return secret.Stored{Owners: owners, Data: secret.NewData(map[string][]byte{"token": []byte(value), "empty": {}})}
}

func ref(name string) secret.Ref {
	return secret.Ref{Namespace: "sandboxes", PodUID: "uid-1", Name: name}
}

func TestASecretIsReadOnlyForThePodThatOwnsIt(t *testing.T) {
	a := &api{has: map[string]secret.Stored{
		"sandboxes/mine":   stored(canary, secret.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", UID: "uid-9"}, pod("uid-1")),
		"sandboxes/theirs": stored(canary, pod("uid-2")),
		"sandboxes/nobody": stored(canary),
		"sandboxes/set":    stored(canary, secret.Owner{APIVersion: "apps/v1", Kind: "Pod", UID: "uid-1"}),
		"sandboxes/other":  stored(canary, secret.Owner{APIVersion: "v1", Kind: "Node", UID: "uid-1"}),
		"sandboxes/blank":  stored(canary, pod("")),
		"platform/mine2":   stored(canary, pod("uid-1")),
	}}
	r := &secret.Reader{Source: a}
	data, err := r.Current(t.Context(), ref("mine"), "token")
	if v, ok := data.Value("token"); err != nil || !ok || string(v) != canary {
		t.Fatalf("the Pod's own: %v", err)
	}
	for name, says := range map[string]string{
		"theirs": "does not belong", "nobody": "does not belong", "set": "does not belong", "other": "does not belong",
		"blank": "does not belong", "mine2": "does not exist", "missing": "does not exist",
	} {
		refused(t, name, r, ref(name), says)
	}
	refused(t, "a missing key", r, ref("mine"), `has no "other"`, "token", "other")
	refused(t, "an empty key", r, ref("mine"), `has no "empty"`, "empty")
	asked := a.asks
	refused(t, "no Pod", r, secret.Ref{Namespace: "sandboxes", Name: "blank"}, "not known")
	if a.asks != asked {
		t.Error("a Secret was read for no Pod")
	}
	a.err = secret.ErrForbidden
	refused(t, "forbidden", r, ref("mine"), "may not read")
}

func refused(t *testing.T, what string, r *secret.Reader, ref secret.Ref, says string, keys ...string) {
	t.Helper()
	data, err := r.Current(t.Context(), ref, keys...)
	var refused *secret.RefusedError
	if !errors.As(err, &refused) || !strings.Contains(refused.Reason, says) {
		t.Errorf("%s: %v, want a refusal that says %q", what, err, says)
	}
	if _, ok := data.Value("token"); ok {
		t.Errorf("%s: refused, and handed out all the same", what)
	}
}

func TestAnAPIThatDoesNotAnswerIsNoRefusal(t *testing.T) {
	a := &api{err: errors.New("connection refused")}
	_, err := (&secret.Reader{Source: a}).Current(t.Context(), ref("mine"))
	var refused *secret.RefusedError
	if !errors.Is(err, secret.ErrUnavailable) || errors.As(err, &refused) {
		t.Errorf("%v", err)
	}
}

func TestNoPrintOfDataShowsAValue(t *testing.T) {
	d := secret.NewData(map[string][]byte{"token": []byte(canary)})
	holder := struct {
		D      secret.Data
		hidden secret.Data // fmt calls no methods of what is not exported
	}{d, d}
	var log bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(h).Info("read", "data", d, "pointer", &d, "holder", holder)
	}
	asJSON, err := json.Marshal(map[string]any{"d": d, "p": &d, "h": holder})
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{log.String(), string(asJSON), errors.Join(fmt.Errorf("%v", d)).Error()}
	for _, verb := range strings.Fields("%v %+v %#v %s %q %x %X %d %T %c %p %10s %U") {
		texts = append(texts, fmt.Sprintf(verb, d), fmt.Sprintf(verb, &d), fmt.Sprintf(verb, holder), fmt.Sprintf(verb, []secret.Data{d}),
			fmt.Sprintf(verb, secret.Stored{Data: d}))
	}
	for _, text := range texts {
		for _, form := range []string{canary, fmt.Sprintf("%x", canary), fmt.Sprintf("%X", canary), fmt.Sprintf("%d", []byte(canary))} {
			if strings.Contains(text, form) || strings.Contains(text, strings.Trim(form, "[]")) {
				t.Errorf("printed: %s", text)
			}
		}
	}
	if !strings.Contains(texts[0], "[redacted]") || !strings.Contains(texts[1], "[redacted]") {
		t.Errorf("not marked: %q", texts[:2])
	}
}

func TestDataIsACopyOnTheWayInAndOnTheWayOut(t *testing.T) {
	in := map[string][]byte{"k": []byte("v")}
	d := secret.NewData(in)
	in["k"][0] = 'x'
	out, _ := d.Value("k")
	out[0] = 'y'
	if v, _ := d.Value("k"); string(v) != "v" {
		t.Errorf("the value became %q", v)
	}
}
