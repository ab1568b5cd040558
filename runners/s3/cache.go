package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rclone/rclone/lib/encoder"
	"github.com/rclone/rclone/lib/ranges"
	"github.com/rclone/rclone/vfs"
	"github.com/rclone/rclone/vfs/vfscache"
	"golang.org/x/sys/unix"
)

// What a file takes beside its content, at most: the block that is not full, rclone's
// notes on it, and the two folders for each folder above it.
const (
	blockSize  = 4096
	notesSize  = 4096
	folderSize = 2 * 4096
)

// cache bounds what the cache directory takes. rclone looks at its own bound once a
// minute and never at what is open; here room is made before anything is written.
type cache struct {
	files       *vfscache.Cache // nil: nothing is written
	data, notes string          // folders of rclone's
	limit       int64

	mu     sync.Mutex
	taken  int64
	cached map[*file]*cached
	busy   map[*file]struct{} // those with users
	moving map[string]int     // paths that are being renamed
}

// cached is what a file takes.
type cached struct {
	path  string // rclone's
	size  int64
	users int // of rclone's handles that are open or being opened
	last  time.Time
}

func newCache(v *vfs.VFS, limit int64) (*cache, error) {
	c := &cache{limit: limit, taken: 3 * folderSize, cached: map[*file]*cached{}, busy: map[*file]struct{}{}, moving: map[string]int{}}
	// rclone hands its cache to nobody, and has no way to drop one file.
	field := reflect.ValueOf(v).Elem().FieldByName("cache")
	if !field.IsValid() || field.Type() != reflect.TypeFor[*vfscache.Cache]() {
		return nil, errors.New("this version of rclone has its cache elsewhere")
	}
	if c.files = (*vfscache.Cache)(field.UnsafePointer()); c.files == nil {
		return c, nil
	}
	stats := c.files.Stats()
	data, isData := stats["path"].(string)
	notes, isNotes := stats["pathMeta"].(string)
	if !isData || !isNotes {
		return nil, errors.New("this version of rclone does not say where its cache is")
	}
	c.data, c.notes = data, notes
	return c, nil
}

func charge(name string, size int64) int64 {
	return (size+blockSize-1)/blockSize*blockSize + notesSize + folderSize*int64(strings.Count(name, "/"))
}

// begin is called before a handle of rclone's is opened. Nobody drops the file before
// end has been called as often.
func (c *cache) begin(f *file) {
	name := f.node().Path() // it may wait for the server: not with mu held
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.cached[f]
	if one == nil {
		one = &cached{}
		c.cached[f] = one
	}
	if one.users == 0 && one.size == 0 {
		one.path = name
	}
	one.users++
	c.busy[f] = struct{}{}
}

// end is called when the handle is closed, with the file's use held.
func (c *cache) end(f *file) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.cached[f]
	one.users--
	one.last = time.Now()
	if one.users > 0 {
		return
	}
	delete(c.busy, f)
	if one.size == 0 || f.unlinked.Load() {
		c.drop(f)
	}
}

// gone is called when the file has been removed, with its use held.
func (c *cache) gone(f *file) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.cached[f]; one != nil && one.users == 0 {
		c.drop(f)
	}
}

// reserve makes room for a file of that size, between begin and end.
func (c *cache) reserve(f *file, size int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.cached[f]
	more := charge(one.path, size) - one.size
	if size < 0 || size > c.limit {
		return fullError(c.limit)
	}
	if more <= 0 {
		return nil
	}
	if c.taken+more > c.limit {
		// More than is needed now: each look costs as much as there are files.
		c.free(more + c.limit/8)
	}
	if c.taken+more > c.limit {
		return fullError(c.limit)
	}
	c.taken += more
	one.size += more
	return nil
}

// fullError is a budget that does not suffice.
type fullError int64

func (e fullError) Error() string {
	return fmt.Sprintf("the files that are open for writing need more than the %d bytes of --cache-size", int64(e))
}

// Unwrap is what the caller's write(2) returns.
func (fullError) Unwrap() error { return syscall.ENOSPC }

// fetchable says whether the filesystem has the blocks for content that is still to be
// fetched: what is short when the file is stored can be helped no more.
func (c *cache) fetchable(size int64) error {
	for {
		var is unix.Statfs_t
		if err := unix.Statfs(c.data, &is); err != nil {
			return err
		}
		if is.Bavail*uint64(is.Bsize) > uint64(size) {
			return nil
		}
		if !c.freeAll() {
			return syscall.ENOSPC
		}
	}
}

// fetchStep is small, because after an outage rclone fails what takes more than one write.
const fetchStep = 128 << 10

// fetch gets from the server what is still missing of a file that was changed, whose
// handles stay open.
func (c *cache) fetch(f *file) error {
	item := c.files.Item(f.node().CachePath())
	if !item.IsDirty() {
		return nil
	}
	size, err := item.GetSize()
	if err != nil {
		return err
	}
	var to []byte
	for {
		missing := item.FindMissing(ranges.Range{Size: size})
		if missing.IsEmpty() {
			return nil
		}
		if to == nil {
			to = make([]byte, fetchStep)
		}
		if _, err := item.ReadAt(to[:min(missing.Size, fetchStep)], missing.Pos); err != nil {
			return err
		}
	}
}

// freeAll drops everything that can be, and says whether there was anything.
func (c *cache) freeAll() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.taken
	c.free(c.limit)
	return c.taken < before
}

// resized is called when a file has become shorter.
func (c *cache) resized(f *file, size int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.cached[f]; one != nil {
		less := max(one.size-charge(one.path, size), 0)
		one.size -= less
		c.taken -= less
	}
}

// free drops files that nobody has open and that are stored, the oldest first, until
// that much is free; called with mu held.
func (c *cache) free(wanted int64) {
	var closed []*file
	for f, one := range c.cached {
		if one.users == 0 && !c.isMoving(one.path) && !c.files.InUse(one.path) {
			closed = append(closed, f)
		}
	}
	slices.SortFunc(closed, func(a, b *file) int { return c.cached[a].last.Compare(c.cached[b].last) })
	for _, f := range closed {
		if c.taken+wanted <= c.limit {
			return
		}
		c.drop(f)
	}
}

func (c *cache) isMoving(name string) bool {
	for from := range c.moving {
		if name == from || strings.HasPrefix(name, from+"/") {
			return true
		}
	}
	return false
}

// drop removes a file that has no users, and the folders that are empty then; called
// with mu held.
func (c *cache) drop(f *file) {
	one := c.cached[f]
	delete(c.cached, f)
	c.taken -= one.size
	if one.size == 0 {
		return
	}
	for other := range c.busy {
		if c.cached[other].path == one.path {
			return // another file has this name by now
		}
	}
	if c.files.InUse(one.path) {
		return
	}
	c.files.Remove(one.path)
	c.removeNotes(one.path)
}

// removeNotes is for what rclone leaves of a file that it has removed, and for folders.
func (c *cache) removeNotes(name string) {
	_ = os.Remove(filepath.Join(c.notes, encoder.OS.FromStandardPath(name))) // most often it is not there
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		for other := range c.busy {
			if strings.HasPrefix(c.cached[other].path, dir+"/") {
				return // it may be about to make its file there
			}
		}
		inData := os.Remove(filepath.Join(c.data, encoder.OS.FromStandardPath(dir)))
		inNotes := os.Remove(filepath.Join(c.notes, encoder.OS.FromStandardPath(dir)))
		if errors.Is(cmp.Or(inData, inNotes), syscall.ENOTEMPTY) {
			return
		}
	}
}

// discard drops what was written of a file, which is not to be stored; closed is called
// between, and closes rclone's handles.
func (c *cache) discard(f *file, closed func()) {
	name := f.node().Path()
	// A handle that could not be closed keeps the file's blocks.
	_ = os.Truncate(filepath.Join(c.data, encoder.OS.FromStandardPath(name)), 0)
	c.files.Remove(name) // there is nothing to store now
	closed()
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.cached[f]; one != nil && one.users == 0 {
		c.drop(f)
	}
}

// rename tells the new names; do renames.
func (c *cache) rename(from, to string, do func() error) error {
	c.mu.Lock()
	c.moving[from]++
	c.mu.Unlock()
	err := do()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.moving[from]--; c.moving[from] == 0 {
		delete(c.moving, from)
	}
	if err != nil {
		return err
	}
	for _, one := range c.cached {
		if one.path == from {
			one.path = to
		} else if rest, beneath := strings.CutPrefix(one.path, from+"/"); beneath {
			one.path = to + "/" + rest
		}
	}
	return nil
}
