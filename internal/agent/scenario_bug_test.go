package agent_test

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/obs"
)

// buggy is a mount table with a bug that one target brings out, in one of its calls.
type buggy struct {
	mortal
	call  string
	fixed *atomic.Bool
	hit   *atomic.Int32
}

func (b buggy) at(call, place string) {
	if call == b.call && !b.fixed.Load() && filepath.Base(place) == "bad" {
		b.hit.Add(1)
		panic("a nil pointer, say, at " + place)
	}
}

func (b buggy) Bind(source, target *beneath.Dir, flags mnt.Flags) (mnt.Record, error) {
	b.at("bind", target.Path())
	return b.mortal.Bind(source, target, flags)
}

func (b buggy) Unmount(dir *beneath.Dir, name string, lazy bool) error {
	b.at("unmount", name)
	return b.mortal.Unmount(dir, name, lazy)
}

func (b buggy) At(dir *beneath.Dir) (mnt.Place, error) {
	b.at("look", dir.Path())
	return b.mortal.At(dir)
}

// lines is a log that tests read.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.b.String(), text)
}

// runFor makes passes over all Pods for some time, as the controller does, which catches
// what a pass panics with.
func (w *world) runFor(d time.Duration) {
	w.t.Helper()
	for end := w.clock.Now().Add(d); w.clock.Now().Before(end); w.clock.Step(time.Second) {
		for uid := range w.pods {
			_, _ = w.pass(uid) // what it could not do is seen in the answer
		}
	}
}

func (w *world) answerOf(uid string) grant.Status {
	w.t.Helper()
	p, _ := w.api.Pod(uid)
	if p.Ready == nil {
		w.t.Fatalf("%s has no answer", uid)
	}
	st, err := grant.DecodeStatus(*p.Ready)
	must(w.t, err)
	return st
}

func files(targets ...string) *string {
	var set []grant.Mount
	for _, target := range targets {
		set = append(set, grant.Mount{Kind: grant.KindFiles, Source: "home/" + target, Target: target, Mode: grant.ReadWrite, AllowExec: true})
	}
	text, err := grant.Encode(set)
	if err != nil {
		panic(err) // a set that the test has written
	}
	return &text
}

// A bug in the code that serves one grant would end the process with all its
// goroutines, again and again: nobody else on the node would be served.
func TestABugThatOneGrantBringsOutIsThatGrantsErrorAlone(t *testing.T) {
	for _, call := range []string{"bind", "unmount", "look"} {
		t.Run(call, func(t *testing.T) {
			w := newWorld(t)
			w.stopAgent()
			var fixed atomic.Bool
			var hit atomic.Int32
			var log lines
			ctx, cancel := context.WithCancel(t.Context())
			w.stop, w.metrics = cancel, obs.NewRecorder("story", "story")
			a, err := agent.New(ctx, agent.Config{
				Claim:  agent.Claim{Path: w.claim, Owner: beneath.Owner{UID: userID, GID: groupID}, Bound: 5 * time.Second},
				Policy: w.policy, Root: w.root, Kubelet: w.kubelet, BootID: "boot",
				Table:     buggy{mortal{Table: w.table, death: w.death, moved: w.moved}, call, &fixed, &hit},
				Processes: w.cast, API: w.api, Budget: &deadline.Budget{},
				Metrics: w.metrics, Clock: w.clock, Log: slog.New(slog.NewTextHandler(&log, nil)),
			})
			must(t, err)
			w.agent = a
			_, err = a.Start(ctx)
			must(t, err)
			for _, uid := range []string{"u1", "u2"} {
				w.newPod(uid, uid)
				w.makeVolume(uid)
				w.start(uid, "c1", 0, false)
			}
			w.annotate("u1", files("bad", "good"))
			w.annotate("u2", files("ada"))
			w.runFor(3 * time.Second)
			if st := w.answerOf("u1"); call == "bind" && (st.Failed["bad"] != grant.CodeMountFailed || !strings.Contains(st.Messages["bad"], "a bug of the agent")) {
				t.Errorf("the grant itself: %+v", st)
			}
			w.sweep()
			w.runFor(3 * time.Second)
			w.annotate("u1", files("good"))
			w.runFor(3 * time.Second)
			if st := w.answerOf("u2"); st.State != grant.StateReady {
				t.Errorf("the other Pod: %+v", st)
			}
			if st := w.answerOf("u1"); !slices.Contains(st.Mounted, "good") {
				t.Errorf("the other grant: %+v", st)
			}
			if hit.Load() == 0 || !log.has("scenario_bug_test.go") {
				t.Errorf("the bug came out %d times, and its stack is not in the log: the test shows nothing", hit.Load())
			}
			fixed.Store(true)
			w.runFor(time.Minute)
			if st := w.answerOf("u1"); st.State != grant.StateReady || !slices.Equal(st.Mounted, []string{"good"}) {
				t.Errorf("without the bug: %+v", st)
			}
		})
	}
}

var _ mnt.Table = buggy{}
