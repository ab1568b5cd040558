package checkout

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/datalayer/node-mounts/internal/bug"
)

// sweep is the store's first act: rubbish of work that was killed goes, and so does
// what cannot be believed. What was published in another boot may have lost its last
// bytes with the power; to publish without waiting for the disk is worth a clone
// after a reboot. Here all of it is only put aside: after a reboot it may be millions of
// files, and the agent serves nobody until the store is open.
func (s *Store) sweep() error {
	jobs, err := os.Open(filepath.Join(s.config.Root, jobsFolder))
	if err != nil {
		return storage("look for unfinished checkouts", err)
	}
	defer jobs.Close()
	rubbish, err := jobs.Readdirnames(-1)
	if err != nil {
		return storage("look for unfinished checkouts", err)
	}
	found, err := os.ReadDir(filepath.Join(s.config.Root, readyFolder))
	if err != nil {
		return storage("read the checkouts", err)
	}
	for _, f := range found {
		dir := s.readyPath(f.Name())
		r, err := readRecord(dir)
		info, statErr := os.Lstat(dir)
		if err != nil || statErr != nil || r.Boot != s.config.Boot {
			s.config.Log.Info("removing a checkout of another boot, or one that cannot be read", "key", f.Name())
			name, err := s.withdraw(f.Name())
			if err != nil {
				return storage("remove a checkout", err)
			}
			rubbish = append(rubbish, name)
			continue
		}
		s.ready[f.Name()] = &published{
			key: f.Name(), record: *r, users: map[string]bool{}, idle: info.ModTime(), proofs: map[string]time.Time{},
		}
	}
	s.working.Go(func() { s.clear(rubbish) })
	return nil
}

// clear removes what sweep has put aside. What cannot be removed is tried again at the
// next start.
func (s *Store) clear(rubbish []string) {
	for _, name := range rubbish {
		if s.ctx.Err() != nil {
			return
		}
		s.config.Log.Info("removing an unfinished checkout, or an outdated one", "folder", name)
		if err := bug.Guard(s.config.Log, func() error { return s.removeRubbish(name) }); err != nil {
			s.config.Log.Error("what is left of a checkout cannot be removed", "folder", name, "error", err)
		}
	}
}

// Recover tells the store after a start which uses stand: the key of the checkout of
// each. It returns the uses whose checkout is not there any more, in order. From now
// on checkouts that nobody uses may go.
func (s *Store) Recover(uses map[string]string) (missing []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, use := range slices.Sorted(maps.Keys(uses)) {
		if p := s.ready[uses[use]]; p != nil {
			s.register(use, p)
		} else {
			missing = append(missing, use)
		}
	}
	s.recovered = true
	return missing
}

// Collect removes the checkouts that nobody uses and that were used longest ago,
// until those that are left fit the budget. It returns the bytes it has freed.
func (s *Store) Collect(ctx context.Context) int64 {
	return s.dropIdle(ctx, s.config.Limits.Budget)
}

func (s *Store) dropIdle(ctx context.Context, budget int64) (freed int64) {
	for ctx.Err() == nil {
		bytes, dropped := s.dropOldest(budget)
		if !dropped {
			return freed
		}
		freed += bytes
	}
	return freed
}

// dropOldest removes the checkout that should go next. dropped is false when none
// should.
func (s *Store) dropOldest(budget int64) (freed int64, dropped bool) {
	p, rubbish, err := s.takeIdle(budget)
	if p == nil {
		return 0, false
	}
	if err == nil {
		err = s.removeRubbish(rubbish)
	}
	if err != nil {
		s.config.Log.Error("a checkout cannot be removed", "key", p.key, "error", err)
		return 0, true
	}
	s.config.Log.Info("removed a checkout that nobody uses", "key", p.key, "bytes", p.record.Bytes)
	return p.record.Bytes, true
}

// takeIdle takes the checkout out of the store that should go next: nobody finds it
// from then on, and its name is free for another clone. It is nil when none should.
func (s *Store) takeIdle(budget int64) (oldest *published, rubbish string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.recovered {
		return nil, "", nil
	}
	var total int64
	for _, p := range s.ready {
		// Work on a content ends in a use of it: what is being proven or waited for stays.
		if len(p.users) > 0 || s.slots.wants(p.record.work()) || s.isLanded(p.key) {
			continue
		}
		total += p.record.Bytes
		if oldest == nil || p.idle.Before(oldest.idle) || p.idle.Equal(oldest.idle) && p.key < oldest.key {
			oldest = p
		}
	}
	if total <= budget {
		return nil, "", nil
	}
	delete(s.ready, oldest.key)
	rubbish, err = s.withdraw(oldest.key)
	return oldest, rubbish, err
}

// isLanded tells whether a caller has still to claim a checkout that was made for it.
// The caller holds the lock.
func (s *Store) isLanded(key string) bool {
	for f := range s.landed {
		if f.key == key {
			return true
		}
	}
	return false
}

// withdraw takes a checkout out of the store in one step; what it returns is rubbish
// among the jobs, which the next start removes if nobody does before.
func (s *Store) withdraw(key string) (rubbish string, err error) {
	rubbish = "gone-" + rand.Text()
	err = os.Rename(s.readyPath(key), filepath.Join(s.config.Root, jobsFolder, rubbish))
	if errors.Is(err, fs.ErrNotExist) {
		return rubbish, nil
	}
	return rubbish, err
}

func (s *Store) removeRubbish(name string) error {
	jobs, err := os.Open(filepath.Join(s.config.Root, jobsFolder))
	if err != nil {
		return err
	}
	defer jobs.Close()
	return removeAt(jobs, name)
}

// Progress is one clone that is under way.
type Progress struct {
	URL      string
	Revision string
	Phase    string // one of the Phase constants
	Bytes    int64  // on disk so far
	Began    time.Time
	Waiting  int // callers
}

// Progress lists the clones that are under way, the oldest first.
func (s *Store) Progress() []Progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Progress
	for _, f := range s.flights {
		all = append(all, Progress{
			URL: f.job.remote.url, Revision: f.job.revision, Phase: *f.job.phase.Load(), Bytes: f.job.bytes.Load(),
			Began: f.began, Waiting: f.waiting,
		})
	}
	slices.SortFunc(all, func(a, b Progress) int {
		return cmp.Or(a.Began.Compare(b.Began), strings.Compare(a.URL, b.URL), strings.Compare(a.Revision, b.Revision))
	})
	return all
}
