// Package journal is the agent's record of each Pod on disk.
//
// A pass over a Pod writes what it is about to do before it does it, so that a
// SIGKILL at any point leaves nothing unknown: whatever may stand in the mount
// table is named here. There is no fsync: mounts do not survive a reboot
// either, and the boot in the record tells that one has happened.
package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/lockfile"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/plan"
)

// Version is the format's. A reader refuses a newer one: what it does not
// understand it must not call complete.
const Version = 1

// Pod is the record of one Pod.
type Pod struct {
	Version int `json:"version"`
	// BootID is the boot of the node that the record is of.
	BootID string `json:"boot_id"`

	UID       string `json:"uid"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`

	// Tree and Publication are the two mounts every grant needs, nil where they
	// are not wanted.
	Tree        *Base `json:"tree,omitempty"`
	Publication *Base `json:"publication,omitempty"`
	// Stale are the devices of trees, or of what was made of them, that stand on
	// the Pod's volume and are not its publication.
	Stale []mnt.Dev `json:"stale,omitempty"`

	Mounts []Entry `json:"mounts,omitempty"`
	Held   []Held  `json:"held,omitempty"`
}

// Base is the tree or the publication. It is written without a record first.
type Base struct {
	Record *mnt.Record `json:"record,omitempty"`
	// Unsound: something stands in its place that was not made, or not completely,
	// as this agent makes it. It is taken down and made anew.
	Unsound bool `json:"unsound,omitempty"`
}

// State is how far a grant has come.
type State string

// The states. What is Granting or Revoking may stand or not: only the mount
// table can tell.
const (
	Granting State = "granting"
	Mounted  State = "mounted"
	Revoking State = "revoking"
)

// Entry is one grant.
type Entry struct {
	Target   string        `json:"target"`
	Identity plan.Identity `json:"identity"`
	State    State         `json:"state"`
	// Record is there once the mount was made.
	Record *mnt.Record `json:"record,omitempty"`
	// Proven: a container of the Pod has been seen to have it.
	Proven bool `json:"proven,omitempty"`
}

// Delivery is what the grant's kind is delivered by, "" for a kind that is not known.
func (e Entry) Delivery() grant.Delivery {
	info, _ := e.Identity.Kind.Info()
	return info.Delivery
}

// Held is a mount that was taken from the tree while a process still has it.
type Held struct {
	Target string     `json:"target"`
	Record mnt.Record `json:"record"`
	// Nested are the mounts that stood beneath it: device and root only.
	Nested []mnt.Record `json:"nested,omitempty"`
	// IDs are the mountinfo ids that its copies, and the mounts beneath them, had
	// while they stood, by mount namespace.
	IDs map[uint64][]int `json:"ids,omitempty"`
	// Blind: not all could be looked at, so IDs are not all of them. Unseen are the
	// processes that could not be; nil stands for all of the Pod's.
	Blind  bool      `json:"blind,omitempty"`
	Unseen []Process `json:"unseen,omitempty"`
	// Busy: the kernel called it busy when it was taken away, and no process was
	// seen to have it.
	Busy bool `json:"busy,omitempty"`
	// Outsiders are processes of the node, and of no Pod, that were seen to have it.
	Outsiders []Process `json:"outsiders,omitempty"`
	// Why says what holds it, or why that cannot be told.
	Why string `json:"why"`
}

// Process is a process, by what identifies it while the node runs: its
// pid, and when it started, in clock ticks after boot.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

// Records are the mount's own and those of the mounts that stood beneath it.
func (h Held) Records() []mnt.Record { return append([]mnt.Record{h.Record}, h.Nested...) }

// Ref names the Pod.
func (p *Pod) Ref() plan.Ref {
	return plan.Ref{UID: p.UID, Namespace: p.Namespace, Name: p.Name}
}

// Find returns the entry for target, nil when there is none.
func (p *Pod) Find(target string) *Entry {
	i := slices.IndexFunc(p.Mounts, func(e Entry) bool { return e.Target == target })
	if i < 0 {
		return nil
	}
	return &p.Mounts[i]
}

// Drop removes the entry for target.
func (p *Pod) Drop(target string) {
	p.Mounts = slices.DeleteFunc(p.Mounts, func(e Entry) bool { return e.Target == target })
}

// Standing is what plan.Diff compares with.
func (p *Pod) Standing() []plan.Standing {
	out := make([]plan.Standing, len(p.Mounts))
	for i, e := range p.Mounts {
		out[i] = plan.Standing{Target: e.Target, Identity: e.Identity, Sound: e.State == Mounted}
	}
	return out
}

// uidForm keeps a UID usable as a file name. Kubernetes uses UUIDs, and 32 hex
// digits for static Pods.
var uidForm = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9-]{0,127}\z`)

// ValidUID tells whether uid can name a tree and a record.
func ValidUID(uid string) bool { return uidForm.MatchString(uid) }

const (
	suffix     = ".json"
	tempPrefix = ".new-"
)

// Store is the folder of all records. Different Pods may be written at once.
type Store struct {
	dir  string
	held *os.File
}

// Open makes the folder if it is missing, and takes it for this process until
// Close. ErrLocked where another process has it.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	held, err := lock(dir)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	return &Store{dir: dir, held: held}, nil
}

// Close lets another process have the journal.
func (s *Store) Close() { lockfile.Release(s.held) }

// Load reads every record. A record that cannot be read is set aside under
// another name and reported: its Pod is then one of which only the tree is
// known.
func (s *Store) Load() ([]Pod, error) {
	return s.records(os.Remove, func(path string) error { return os.Rename(path, path+".unreadable") })
}

// Read reads every record and changes nothing: what cannot be read is only
// reported. It is for programs that may be older than the records.
func (s *Store) Read() ([]Pod, error) {
	leave := func(string) error { return nil }
	return s.records(leave, leave)
}

// records reads every record. What a write that was cut off has left is given to cut,
// for the record it was to replace still stands; one that cannot be read to bad.
func (s *Store) records(cut, bad func(path string) error) ([]Pod, error) {
	names, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	var pods []Pod
	var errs []error
	for _, n := range names {
		if strings.HasPrefix(n.Name(), tempPrefix) {
			errs = append(errs, cut(filepath.Join(s.dir, n.Name())))
			continue
		}
		uid, ok := strings.CutSuffix(n.Name(), suffix)
		if !ok {
			continue
		}
		p, err := s.read(uid)
		if err != nil {
			errs = append(errs, err, bad(s.path(uid)))
			continue
		}
		pods = append(pods, p)
	}
	return pods, errors.Join(errs...)
}

func (s *Store) read(uid string) (Pod, error) {
	var p Pod
	b, err := os.ReadFile(s.path(uid))
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	switch {
	case err != nil:
	case p.Version != Version:
		err = fmt.Errorf("format version %d, this agent reads %d", p.Version, Version)
	case p.UID != uid || !ValidUID(uid):
		err = fmt.Errorf("names the Pod %q", p.UID)
	}
	if err != nil {
		return Pod{}, fmt.Errorf("journal of Pod %s: %w", uid, err)
	}
	return p, nil
}

// Save writes the record, replacing the old one at once or not at all.
func (s *Store) Save(p *Pod) error {
	if !ValidUID(p.UID) {
		return fmt.Errorf("journal: %q cannot name a record", p.UID)
	}
	p.Version = Version
	b, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("journal of Pod %s: %w", p.UID, err)
	}
	temp := filepath.Join(s.dir, tempPrefix+p.UID)
	if err := write(temp, b); err != nil {
		return fmt.Errorf("journal of Pod %s: %w", p.UID, err)
	}
	if err := os.Rename(temp, s.path(p.UID)); err != nil {
		return fmt.Errorf("journal of Pod %s: %w", p.UID, err)
	}
	return nil
}

// room is more than the record of a Pod with many mounts needs.
const room = 64 << 10

// Try tells whether records can be written now, by writing one of no Pod.
func (s *Store) Try() error {
	temp := filepath.Join(s.dir, tempPrefix+".room")
	err := write(temp, make([]byte, room))
	if err == nil {
		err = os.Remove(temp)
	}
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// write leaves no part of a file that does not fit: it would be in the way of the
// others.
func write(file string, b []byte) error {
	err := os.WriteFile(file, b, 0o600)
	if err != nil {
		_ = os.Remove(file) // it is not always there
	}
	return err
}

// Remove forgets the Pod. One that is unknown is no error.
func (s *Store) Remove(uid string) error {
	if !ValidUID(uid) {
		return fmt.Errorf("journal: %q cannot name a record", uid)
	}
	if err := os.Remove(s.path(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("journal of Pod %s: %w", uid, err)
	}
	return nil
}

func (s *Store) path(uid string) string { return filepath.Join(s.dir, uid+suffix) }
