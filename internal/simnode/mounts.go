package simnode

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/mnt"
)

// Mounts is the host's mount table, from Dir downwards.
func (n *Node) Mounts() ([]mnt.Mount, error) {
	ms, err := mountsOf(n.HostPID())
	return below(ms, n.Dir), err
}

// mountsOf reads the mount table of a process. Paths in it are that process's.
func mountsOf(pid int) ([]mnt.Mount, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mnt.ParseMountinfo(f)
}

func below(ms []mnt.Mount, dir string) []mnt.Mount {
	return slices.DeleteFunc(ms, func(m mnt.Mount) bool {
		return m.Point != dir && !strings.HasPrefix(m.Point, dir+"/")
	})
}

var errParent = errors.New("mounts stand beneath it")

// unmountBelow takes the mounts at and below dir out of our namespace, leaves
// first. Each round reads the table anew: with one mount its copies elsewhere in
// the table go as well, and mounts that others hid become reachable.
func unmountBelow(dir string) error {
	end := time.Now().Add(time.Second)
	for {
		ms, err := mountsOf(os.Getpid())
		if err != nil {
			return err
		}
		ms = below(ms, dir)
		if len(ms) == 0 {
			return nil
		}
		parents := map[int]bool{}
		for _, m := range ms {
			parents[m.Parent] = true
		}
		progress := false
		var stuck []string
		for _, m := range slices.Backward(ms) {
			err := errParent
			if !parents[m.ID] {
				err = unmountExactly(m)
			}
			if err == nil {
				progress = true
				continue
			}
			stuck = append(stuck, fmt.Sprintf("%s (%s, root %s, %s): %v", m.Point, m.FSType, m.Root, m.Flags, err))
		}
		if progress {
			continue
		}
		// A child that is being started has our descriptors until it executes its
		// program, and a mount is busy for that long.
		if time.Now().After(end) {
			return detach(dir, stuck)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// unmountExactly unmounts m, and not another mount that hides it: the path is
// believed only if it leads to the mount with this id.
func unmountExactly(m mnt.Mount) error {
	var st unix.Statx_t
	// No question to the filesystem, which may be dead.
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	if err := unix.Statx(unix.AT_FDCWD, m.Point, flags, unix.STATX_MNT_ID, &st); err != nil {
		return err
	}
	if st.Mnt_id != uint64(m.ID) {
		return fmt.Errorf("hidden by another mount: %w", unix.EBUSY)
	}
	return unix.Unmount(m.Point, unix.UMOUNT_NOFOLLOW)
}

func detach(dir string, stuck []string) error {
	err := fmt.Errorf("%d mounts were still in use: %s", len(stuck), strings.Join(stuck, "; "))
	if e := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); e != nil {
		return fmt.Errorf("%w; detaching them: %w", err, e)
	}
	return err
}
