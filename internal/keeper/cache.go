package keeper

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// removeTime bounds the removal of one cache.
const removeTime = 10 * time.Minute

// leftover is a cache of an earlier instance.
type leftover struct {
	name     string
	uid, gid int
}

// openCaches prepares the folder of the caches and returns what is in it. Children
// make their folders themselves: the keeper may neither give a folder away nor look
// into one. With the sticky bit no child can touch another's, and without the bit for
// reading none finds out their names.
func (s *service) openCaches() ([]leftover, error) {
	if s.CacheRoot == "" {
		return nil, nil
	}
	if !filepath.IsAbs(s.CacheRoot) {
		return nil, fmt.Errorf("the folder for caches %q is no absolute path", s.CacheRoot)
	}
	if err := unix.Chmod(s.CacheRoot, unix.S_ISVTX|0o733); err != nil {
		return nil, fmt.Errorf("open the folder for caches, which must be a folder of root's: %w", &os.PathError{Op: "chmod", Path: s.CacheRoot, Err: err})
	}
	entries, err := os.ReadDir(s.CacheRoot)
	if err != nil {
		return nil, err
	}
	var left []leftover
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		// What is root's was made by nobody here, such as lost+found. The group is root's
		// where the folder hands down its own; who owns a folder needs none.
		if ok && st.Uid != 0 {
			left = append(left, leftover{e.Name(), int(st.Uid), max(1, int(st.Gid))})
		}
	}
	return left, nil
}

// removeLeft removes the caches of earlier instances, while the keeper answers already.
func (s *service) removeLeft(left []leftover) {
	s.mu.Lock()
	for _, l := range left {
		s.caches[l.name] = true
	}
	s.mu.Unlock()
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		for _, l := range left {
			s.releaseCache(l.name, l.uid, l.gid)
		}
	}()
}

// releaseCache removes a cache and gives back its name. What cannot be removed is left
// for the next user of the name, or the next instance.
func (s *service) releaseCache(name string, uid, gid int) {
	if name == "" {
		return
	}
	path := filepath.Join(s.CacheRoot, name)
	err := s.spawner.run(&spec{UID: uid, GID: gid, Remove: path}, stdio{s.null, s.null}, removeTime)
	if err != nil && !errors.Is(err, errEnding) {
		s.Log.Warn("a cache could not be removed", "cache", name, "error", err)
	}
	s.mu.Lock()
	delete(s.caches, name)
	s.mu.Unlock()
}
