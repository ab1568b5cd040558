package checkout

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// record is checkout.json: what lies beside it.
type record struct {
	URL      string    `json:"url"`
	Revision string    `json:"revision"`
	Private  bool      `json:"private"`
	Boot     string    `json:"boot"`
	Made     time.Time `json:"made"`
	usage
}

// work names what is done once at a time.
func (r record) work() string { return r.URL + "\x00" + r.Revision }

// publish inspects what git left and moves it into the store. No process of git is
// left; what it was made to write is not believed.
func (j *job) publish(key string, private bool) (*record, error) {
	j.enter(PhasePublishing)
	c := &j.store.config
	// work is git's: a link that stands there now would lead root anywhere.
	work, err := os.Open(j.dir("work"))
	if err != nil {
		return nil, storage("open the checkout", err)
	}
	defer work.Close()
	root, err := openFolder(int(work.Fd()), "tree")
	if err != nil {
		return nil, storage("open the checkout", err)
	}
	defer root.Close()
	if err := j.checkHead(root); err != nil {
		return nil, err
	}
	if err := j.tidy(root); err != nil {
		return nil, storage("tidy the checkout", err)
	}
	r := record{URL: j.remote.url, Revision: j.revision, Private: private, Boot: c.Boot, Made: c.Now()}
	r.usage, err = j.hand(root)
	if err != nil {
		return nil, storage("hand the checkout over", err)
	}
	j.bytes.Store(r.Bytes)
	if err := j.store.admit(context.Background(), j); err != nil {
		return nil, err
	}
	return &r, storage("publish the checkout", j.move(key, &r))
}

// checkHead compares the commit that git says it has checked out with the one that
// was asked for: they differ for an annotated tag, which has an id of its own.
func (j *job) checkHead(root *os.File) error {
	file, err := openBeneath(int(root.Fd()), ".git/HEAD", unix.O_RDONLY)
	if err != nil {
		return storage("read the checkout's HEAD", err)
	}
	defer file.Close()
	head, err := io.ReadAll(io.LimitReader(file, 256))
	if err != nil {
		return storage("read the checkout's HEAD", err)
	}
	if strings.TrimSpace(string(head)) != j.revision {
		return fail(Invalid, messageNoCommit)
	}
	return nil
}

// repositoryConfig is all that a repository's own configuration says.
const repositoryConfig = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n"

// tidy leaves of .git what a checkout at a commit needs and nothing else: no branch
// of the server, and nothing that would tell the git of a sandbox to run a program
// or to look elsewhere.
func (j *job) tidy(root *os.File) error {
	git, err := openFolder(int(root.Fd()), ".git")
	if err != nil {
		return err
	}
	defer git.Close()
	names, err := git.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		switch name {
		case "HEAD", "index", "objects", "refs", "shallow":
			continue
		}
		if err := removeAt(git, name); err != nil {
			return err
		}
	}
	refs, err := openFolder(int(git.Fd()), "refs")
	if err != nil {
		return err
	}
	defer refs.Close()
	if err := empty(refs); err != nil {
		return err
	}
	objects, err := openFolder(int(git.Fd()), "objects")
	if err != nil {
		return err
	}
	defer objects.Close()
	// Alternates, which are other folders with objects.
	if err := removeAt(objects, "info"); err != nil {
		return err
	}
	config, err := openBeneath(int(git.Fd()), "config", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	defer config.Close()
	if _, err := config.WriteString(repositoryConfig); err != nil {
		return err
	}
	return config.Chown(j.store.config.User, j.store.config.Group)
}

// hand gives every file to the sandbox's user, who may write no more than anybody
// (the checkout is bound read-only), but whose git then accepts the repository as
// the user's own. It refuses what no checkout of git has.
func (j *job) hand(root *os.File) (usage, error) {
	c := &j.store.config
	var u usage
	if err := root.Chmod(0o755); err != nil {
		return u, err
	}
	if err := root.Chown(c.Owner.UID, c.Owner.GID); err != nil {
		return u, err
	}
	return u, walk(root, func(e *entry) error {
		u.Inodes++
		u.Bytes += e.stat.Blocks * 512
		if err := c.Limits.exceeded(u); err != nil {
			return err
		}
		mode := uint32(0o644)
		switch kind := e.kind(); {
		case e.stat.Uid != uint32(c.User):
			return fail(Invalid, "the checkout holds a file that git's user does not own")
		case kind == unix.S_IFDIR:
			mode = 0o755
		case kind == unix.S_IFREG && e.stat.Nlink != 1:
			// The other name may lie anywhere, and would be given away with this one.
			return fail(Invalid, "the checkout holds a file that has another name elsewhere")
		case kind == unix.S_IFREG && e.stat.Mode&0o100 != 0:
			mode = 0o755
		case kind == unix.S_IFREG, kind == unix.S_IFLNK:
		default:
			return fail(Invalid, "the checkout holds something that is neither file, folder nor link")
		}
		if err := unix.Fchownat(e.dir, e.name, c.Owner.UID, c.Owner.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return &fs.PathError{Op: "chown", Path: e.rel, Err: err}
		}
		if e.kind() == unix.S_IFLNK {
			return nil
		}
		if err := unix.Fchmodat(e.dir, e.name, mode, 0); err != nil {
			return &fs.PathError{Op: "chmod", Path: e.rel, Err: err}
		}
		return nil
	})
}

// move makes the checkout appear, whole, or not at all.
func (j *job) move(key string, r *record) error {
	out := j.dir("out")
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	if err := os.Rename(j.dir("work/tree"), filepath.Join(out, treeFolder)); err != nil {
		return err
	}
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, recordFile), append(content, '\n'), 0o600); err != nil {
		return err
	}
	err = os.Rename(out, j.store.readyPath(key))
	if !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	// The store knows of nothing there: what somebody has left of a checkout by hand.
	rubbish, err := j.store.withdraw(key)
	if err != nil {
		return err
	}
	if err := os.Rename(out, j.store.readyPath(key)); err != nil {
		return err
	}
	return j.store.removeRubbish(rubbish)
}

// discard removes the job's folder. What cannot be removed now is removed at the
// next start.
func (j *job) discard() error {
	if j.path == "" {
		return nil
	}
	jobs, err := os.Open(filepath.Dir(j.path))
	if err != nil {
		return err
	}
	defer jobs.Close()
	return removeAt(jobs, filepath.Base(j.path))
}

// readRecord reads checkout.json of a published checkout.
func readRecord(dir string) (*record, error) {
	content, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(content, &r); err != nil {
		return nil, err
	}
	if info, err := os.Lstat(filepath.Join(dir, treeFolder)); err != nil || !info.IsDir() {
		return nil, errors.Join(fs.ErrNotExist, err)
	}
	return &r, nil
}
