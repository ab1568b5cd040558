package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/proof"
)

func mounted(kind grant.Kind, source, target string, dev mnt.Dev) journal.Entry {
	return journal.Entry{
		Target: target, State: journal.Mounted, Identity: plan.Identity{Kind: kind, Source: source}, Record: &mnt.Record{Dev: dev},
	}
}

func TestAStandingMountIsChargedToWhatItHangsTogetherWith(t *testing.T) {
	one, two := mnt.Dev{Major: 0, Minor: 1}, mnt.Dev{Major: 0, Minor: 2}
	half := mounted(grant.KindFiles, "h/u1", "u1", one)
	half.Record = nil
	for name, c := range map[string]struct {
		entry journal.Entry
		want  []string
	}{
		"a folder of the claim":                {mounted(grant.KindFiles, "h/u1", "u1", one), []string{"filesystem:0:1"}},
		"a folder of another one beneath it":   {mounted(grant.KindSharedFolder, "remote/u1", "u1", two), []string{"filesystem:0:2"}},
		"an export":                            {mounted(grant.KindNFS, "nas.example:/a", "a", one), []string{"server:nas.example"}},
		"another export of the same server":    {mounted(grant.KindNFS, "nas.example:/b", "b", two), []string{"server:nas.example"}},
		"a checkout":                           {mounted(grant.KindGit, "https://example.org/r", "r", one), []string{"filesystem:0:1"}},
		"a bucket, whose process is its own":   {mounted(grant.KindCloudStorage, "s3://b", "b", one), nil},
		"what an agent left that was killed":   {half, nil},
		"what no delivery of this agent makes": {mounted("else", "x", "x", one), []string{"filesystem:0:1"}},
	} {
		var got []string
		for _, k := range (&Agent{}).storageOf(c.entry) {
			got = append(got, k.Name)
			if k.AtOnce == 0 || k.AtOnce >= k.Limit {
				t.Errorf("%s: %d at once of %d threads", name, k.AtOnce, k.Limit)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: charged to %v, want %v", name, got, c.want)
		}
	}
}

// asked is a delivery of which mounts are asked only.
type asked struct {
	delivery.Delivery
	alive func(ctx context.Context, target string) error
}

func (d asked) Alive(ctx context.Context, _ *beneath.Dir, target string, _ ...deadline.Key) error {
	return d.alive(ctx, target)
}

// agentOf is an agent with the tree of one Pod, in which nothing is mounted.
func agentOf(t *testing.T, targets []string, alive func(ctx context.Context, target string) error) (*Agent, *podState) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "uid"), 0o755); err != nil {
		t.Fatal(err)
	}
	pods, err := beneath.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pods.Close)
	s := newState(journal.Pod{UID: "uid"})
	for _, target := range targets {
		s.j.Mounts = append(s.j.Mounts, mounted(grant.KindFiles, target, target, mnt.Dev{Minor: 1}))
	}
	a := &Agent{Config: Config{Budget: &deadline.Budget{}}, pods: pods, by: map[grant.Delivery]delivery.Delivery{grant.DeliveryBind: asked{alive: alive}}}
	return a, s
}

func TestEveryMountOfAPodIsAskedAtOnce(t *testing.T) {
	var targets []string
	for i := range 100 {
		targets = append(targets, fmt.Sprint("m", i))
	}
	var arrived sync.WaitGroup
	arrived.Add(len(targets))
	a, s := agentOf(t, targets, func(context.Context, string) error {
		arrived.Done()
		arrived.Wait()
		return nil
	})
	a.askStorage(t.Context(), s)
}

func TestWhatCouldNotBeAskedStaysWhatItWasSaidToBe(t *testing.T) {
	answers := map[string]error{
		"answers": nil, "hangs": deadline.ErrHung, "fails": unix.EIO,
		"no turn": deadline.ErrNoTurn, "no turn, said to be dead": deadline.ErrNoTurn,
	}
	a, s := agentOf(t, slices.Sorted(maps.Keys(answers)), func(_ context.Context, target string) error { return answers[target] })
	s.dead["answers"], s.dead["no turn, said to be dead"] = "before", "before"
	a.askStorage(t.Context(), s)
	if got := slices.Sorted(maps.Keys(s.dead)); !slices.Equal(got, []string{"fails", "hangs", "no turn, said to be dead"}) {
		t.Errorf("dead are %q", got)
	}
}

func TestASweepWhoseTimeIsUpLeavesWhatIsKnown(t *testing.T) {
	a, s := agentOf(t, []string{"m1", "m2"}, func(ctx context.Context, _ string) error {
		if ctx.Err() == nil {
			return unix.EIO
		}
		return ctx.Err()
	})
	s.dead["m1"] = "before"
	asking, cancel := context.WithCancel(t.Context())
	cancel()
	a.sweepPod(t.Context(), asking, s, nil, -1, false) // outdated: nothing is adopted
	if !maps.Equal(s.dead, map[string]string{"m1": "before"}) {
		t.Errorf("dead are %q", s.dead)
	}
}

// The agent has no table here: to look at what stands would be to fail.
func TestAMountOnStorageThatWasFoundToHangIsNotLookedAt(t *testing.T) {
	a, s := agentOf(t, []string{"m1", "m2"}, nil)
	release := make(chan struct{})
	defer close(release)
	_, err := deadline.Do(t.Context(), a.Budget, time.Nanosecond, func() (int, error) { <-release; return 0, nil }, nil, proof.Filesystem(mnt.Dev{Minor: 1}))
	if !errors.Is(err, deadline.ErrHung) {
		t.Fatal(err)
	}
	tree, err := a.pods.Open(s.j.UID)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	for _, e := range s.j.Mounts {
		if _, err := a.placeOf(t.Context(), tree, e); !errors.Is(err, deadline.ErrHung) {
			t.Errorf("%s: %v", e.Target, err)
		}
	}
	if lost := a.Budget.Lost(); lost != 1 {
		t.Errorf("%d threads are lost", lost)
	}
}
