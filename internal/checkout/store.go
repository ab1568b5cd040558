package checkout

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/datalayer/node-mounts/internal/lockfile"
)

const (
	jobsFolder  = "jobs"
	readyFolder = "ready"
	treeFolder  = "tree"
	recordFile  = "checkout.json"
	lockFile    = "lock"
)

// Limits bound one checkout and all of them. Each means what it says: only Free and
// Budget may be 0.
type Limits struct {
	Bytes   int64         // of one checkout with its repository, as the disk counts
	Inodes  int64         // files, folders and links of one, .git included
	Total   int64         // bytes of all, those in use and those under way included
	Free    int           // percent of the disk, in bytes and in files, that they leave free
	Memory  int64         // private memory of each process of git, in bytes
	Timeout time.Duration // for the whole of one checkout, waiting included
	Budget  int64         // bytes of checkouts that nobody uses; 0: none is kept
	Jobs    int           // at the same time
	PerHost int           // of these, for one server
}

// check refuses limits that no checkout fits: somebody left one out.
func (l Limits) check() error {
	least := min(l.Bytes, l.Inodes, l.Total, l.Memory, int64(l.Timeout), int64(l.Jobs), int64(l.PerHost))
	if least <= 0 || l.Free < 0 || l.Budget < 0 {
		return fmt.Errorf("checkout: a limit is missing or below zero: %+v", l)
	}
	return nil
}

// Processes is how many processes of git work on one checkout at the same time and keep
// what a server sends, with Limits.Memory for each: fetch, its helper for https,
// fetch-pack for the old protocol, and index-pack.
const Processes = 4

// Owner is who the files of a published checkout belong to.
type Owner struct{ UID, GID int }

// Config is what a Store is made from.
type Config struct {
	Root  string // a folder of its own, on a disk of the node; made 0711 root
	Boot  string // what names this boot: checkouts of another one may be incomplete
	Git   string // the program; /usr/bin/git when empty. 2.37 or newer
	User  int    // who runs git; owns nothing else. ssh wants it in /etc/passwd
	Group int
	Owner Owner // of published files: the sandbox's user. Not User
	// Hide are folders that git finds empty; /var/run/secrets when nil. The agent adds
	// every folder of the node that it can read and git need not.
	Hide    []string
	Limits  Limits
	Network Policy
	CA      []byte           // PEM: certificates that are trusted beside the system's
	Proxy   string           // for https; the proxy looks names up then
	Now     func() time.Time // nil: time.Now
	Log     *slog.Logger     // nil: nothing is logged
}

// Store keeps the checkouts of a node. Its methods may be called at the same time.
type Store struct {
	config Config
	salt   []byte // of the digests of credentials, for this process
	lock   *os.File
	ctx    context.Context //nolint:containedctx // the life of the store, which jobs outlive their callers in
	cancel context.CancelFunc
	slots  *slots

	mu        sync.Mutex
	ready     map[string]*published // by key
	uses      map[string]string     // key, by use
	flights   map[flightKey]*flight
	landed    map[*flight]bool // have a checkout that callers have still to claim
	begun     int              // flights
	recovered bool
	working   sync.WaitGroup
}

// published is a checkout in the store. The store's lock guards it.
type published struct {
	key    string
	record record
	users  map[string]bool
	idle   time.Time // since when nobody uses it
	// proofs are the credentials that the server has accepted for it, and until when
	// that is believed.
	proofs map[string]time.Time
}

// proofLife is how long an accepted credential is believed: a set of Pods that start
// together costs the server one question, and a revoked token opens nothing for long.
const proofLife = time.Minute

// Request asks for one commit.
type Request struct {
	URL        string // as package grant accepts it for the kind git
	Revision   string // 40 hex digits
	Credential *Credential
	Use        string // who uses it, until Release: the Pod and the target
	Pod        string // who asks: no Pod's work keeps that of the others waiting
}

// Checkout is a folder that holds the commit, and its repository in .git.
type Checkout struct {
	Path string
	Key  string // for Recover
}

// Open takes a folder into use, removes what a killed agent has left half done, and
// tries git once. Before Recover, nothing is collected.
func Open(ctx context.Context, c Config) (*Store, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	s := &Store{
		config: c, salt: []byte(rand.Text()), ready: map[string]*published{}, uses: map[string]string{},
		flights: map[flightKey]*flight{}, landed: map[*flight]bool{}, slots: newSlots(c.Limits.Jobs, c.Limits.PerHost),
	}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.takeFolder(); err != nil {
		s.Close()
		return nil, err
	}
	if err := s.tryGit(ctx); err != nil {
		s.Close()
		return nil, err
	}
	if !hasLandlock() {
		c.Log.Warn("this kernel has no Landlock: what git may read and write is bounded by covers and by its user alone; use Linux 5.19 or newer with landlock among its security modules")
	}
	return s, nil
}

func (c *Config) complete() error {
	if c.Git == "" {
		c.Git = "/usr/bin/git"
	}
	if c.Hide == nil {
		c.Hide = []string{"/var/run/secrets"}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Proxy != "" {
		u, err := url.Parse(c.Proxy)
		if err != nil || u.Host == "" || strings.ContainsAny(c.Proxy, "\n\"\\") {
			return errors.New("checkout: the proxy's address is not a URL")
		}
	}
	switch {
	case !filepath.IsAbs(c.Root) || !filepath.IsAbs(c.Git) || strings.ContainsAny(c.Root, "\"\n"):
		return errors.New("checkout: the folder and git are absolute paths")
	case c.User <= 0 || c.Group <= 0:
		return errors.New("checkout: git needs a user and a group that are not root's")
	case c.User == c.Owner.UID:
		// git could change every checkout that was published before.
		return errors.New("checkout: the files' owner and git's user are the same")
	// The kernel's limit for a socket is 108 bytes; the name of a job is 14.
	case len(c.Root) > 70:
		return errors.New("checkout: the folder's path is longer than 70 bytes")
	}
	return c.Limits.check()
}

func (s *Store) takeFolder() error {
	root := s.config.Root
	for _, f := range []struct {
		path string
		mode fs.FileMode
	}{{root, 0o711}, {filepath.Join(root, jobsFolder), 0o711}, {filepath.Join(root, readyFolder), 0o700}} {
		if err := os.MkdirAll(f.path, f.mode); err != nil {
			return storage("make the folder of checkouts", err)
		}
		if err := errors.Join(os.Lchown(f.path, 0, 0), os.Chmod(f.path, f.mode)); err != nil {
			return storage("make the folder of checkouts", err)
		}
	}
	var err error
	if s.lock, err = lockfile.Take(filepath.Join(root, lockFile)); errors.Is(err, lockfile.ErrTaken) {
		return &Error{Class: Failed, Message: "another agent uses the folder of checkouts", Detail: root, Err: err, Node: true}
	}
	if err != nil {
		return storage("lock the folder of checkouts", err)
	}
	return s.sweep()
}

// tryGit runs git once, confined as it will be: what is missing on this node shows
// at the start, and not at the first grant. Before 2.37, git cannot pin an address.
func (s *Store) tryGit(ctx context.Context) error {
	var out tail
	r := run{out: &out, spec: spec{
		Dir: "/", Argv: []string{s.config.Git, "version"}, Env: environment("/nonexistent", os.DevNull, "/nonexistent"),
		UID: s.config.User, GID: s.config.Group, Hide: s.config.Hide,
		FileBytes: uint64(s.config.Limits.Bytes), DataBytes: uint64(s.config.Limits.Memory),
	}}
	if words, err := r.do(ctx); err != nil {
		return &Error{Class: Failed, Message: "git does not run on this node", Detail: lastWords(words, ""), Err: err, Node: true}
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(out.kept), "git version %d.%d", &major, &minor); err != nil || major < 2 || major == 2 && minor < 37 {
		return fail(Failed, "git is older than 2.37 on this node: "+lastWords(string(out.kept), ""))
	}
	return nil
}

// Close ends what is under way and leaves what is published.
func (s *Store) Close() {
	s.cancel()
	s.working.Wait()
	if s.lock != nil {
		lockfile.Release(s.lock)
	}
}

func (s *Store) readyPath(key string) string {
	return filepath.Join(s.config.Root, readyFolder, key)
}

// contentKey names a content. A checkout that needed a credential has another name
// than the same commit read by anybody.
func contentKey(r remote, revision string, private bool) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%t", r.url, revision, private))
	return hex.EncodeToString(sum[:16])
}

// claim registers a use of a checkout and returns it; nil when it is not there.
func (s *Store) claim(key, use string) *Checkout {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claimLocked(key, use)
}

func (s *Store) claimLocked(key, use string) *Checkout {
	p := s.ready[key]
	if p == nil {
		return nil
	}
	tree := filepath.Join(s.readyPath(key), treeFolder)
	if _, err := os.Lstat(tree); err != nil {
		// Somebody has removed it by hand. Who uses it still has the mount.
		s.config.Log.Warn("a checkout has gone from the disk", "key", key)
		delete(s.ready, key)
		return nil
	}
	s.register(use, p)
	return &Checkout{Path: tree, Key: key}
}

// register counts a use; a use has one checkout. The caller holds the lock.
func (s *Store) register(use string, p *published) {
	if old, ok := s.uses[use]; ok && old != p.key {
		s.unregister(use)
	}
	s.uses[use] = p.key
	p.users[use] = true
}

func (s *Store) unregister(use string) {
	p := s.ready[s.uses[use]]
	delete(s.uses, use)
	if p == nil {
		return
	}
	delete(p.users, use)
	if len(p.users) == 0 {
		p.idle = s.config.Now()
		// The order in which checkouts go outlives the agent. Where that fails, an old
		// time is the worst.
		_ = os.Chtimes(s.readyPath(p.key), p.idle, p.idle)
	}
}

// Release says that a use has ended: nothing is mounted from its checkout any more.
func (s *Store) Release(use string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unregister(use)
}
