package delivery_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/delivery"
)

// adversary swaps pairs of paths, taken at random. swapped has something in it
// when that has happened since it was last emptied.
type adversary struct {
	pairs   [][2]string
	swaps   atomic.Int64
	swapped chan struct{}
}

func (a *adversary) fight(stop <-chan struct{}) {
	dice := rand.New(rand.NewPCG(1, 2))
	for {
		select {
		case <-stop:
			return
		case a.swapped <- struct{}{}:
		default:
		}
		p := a.pairs[dice.IntN(len(a.pairs))]
		if unix.Renameat2(unix.AT_FDCWD, p[0], unix.AT_FDCWD, p[1], unix.RENAME_EXCHANGE) == nil {
			a.swaps.Add(1)
		}
		runtime.Gosched() // where there is one processor, the victim needs it too
	}
}

// Everything on the way to a source is swapped for links and other folders while
// homes are made there and bound. What package mnt shows of its calls alone holds
// for the whole delivery: one path that is resolved again loses this.
func TestAThousandDeliveriesAgainstAnAdversaryNeverLeaveTheClaim(t *testing.T) {
	const deliveries = 1000
	b := newBench(t)
	shared, outside := filepath.Join(b.fs, "shared"), filepath.Join(b.fs, "outside")
	for _, dir := range []string{shared + "/a", shared + "/a/home", shared + "/b", shared + "/b/home", outside + "/home"} {
		must(t, os.Mkdir(dir, 0o755))
	}
	must(t, os.Symlink("../outside", shared+"/relative"))
	must(t, os.Symlink(outside, shared+"/absolute"))
	adv := &adversary{swapped: make(chan struct{}, 1), pairs: [][2]string{
		{shared + "/a", shared + "/relative"},
		{shared + "/a", shared + "/absolute"},
		{shared + "/a", shared + "/b"},
		{shared + "/b", shared + "/absolute"},
	}}
	stop := make(chan struct{})
	var fight sync.WaitGroup
	fight.Go(func() { adv.fight(stop) })
	delivered, escapes := 0, 0
	for i := range deliveries {
		<-adv.swapped
		m := folder(t, "a/home")
		if i%2 == 0 {
			m = home(t, fmt.Sprintf("a/new-%d", i))
		}
		rec, err := b.bind.Deliver(t.Context(), b.tree, m, delivery.Credential{})
		switch {
		case err == nil:
			delivered++
			ms := b.mounted(t)
			if len(ms) != 1 || !strings.HasPrefix(ms[0].Root, "/shared/") || !rec.SameAs(b.place(t)) {
				t.Errorf("delivered %+v: %+v", rec, ms)
			}
		case errors.Is(err, beneath.ErrEscapes):
			escapes++
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOTDIR):
			// Swapped under our feet, too often: refused as well.
		default:
			t.Errorf("delivery %d: %v", i, err)
		}
		must(t, b.bind.Undo(t.Context(), b.tree, "target", false))
		if t.Failed() {
			break
		}
	}
	close(stop)
	fight.Wait()
	if left, ms := b.inTree(t), b.mounted(t); len(left)+len(ms) != 0 {
		t.Errorf("left in the tree: %v, %+v", left, ms)
	}
	for dir, want := range map[string]string{outside: "home", outside + "/home": ""} {
		var st unix.Stat_t
		must(t, unix.Stat(dir, &st))
		if got := strings.Join(namesIn(t, dir), " "); got != want || st.Uid != 0 || st.Mode&0o7777 != 0o755 {
			t.Errorf("%s has %q, is of %d and has the mode %o", dir, got, st.Uid, st.Mode)
		}
	}
	t.Logf("%d delivered, %d refused as escapes, %d swaps", delivered, escapes, adv.swaps.Load())
	if delivered < deliveries/20 || escapes < deliveries/20 || adv.swaps.Load() < deliveries {
		t.Errorf("%d delivered, %d refused as escapes, %d swaps: this was no fight", delivered, escapes, adv.swaps.Load())
	}
}
