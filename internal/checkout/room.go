package checkout

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
)

// exceeded says which limit of one checkout has passed, nil when none has.
func (l Limits) exceeded(u usage) error {
	switch {
	case u.Inodes > l.Inodes:
		return fail(TooLarge, l.tooManyFiles())
	case u.Bytes > l.Bytes:
		return fail(TooLarge, l.tooManyBytes())
	}
	return nil
}

func (l Limits) tooManyBytes() string {
	return "the repository takes more disk than this node allows for one checkout, .git included: " + sizeText(l.Bytes) + " (git.checkoutSize)"
}

func (l Limits) tooManyFiles() string {
	return fmt.Sprintf("the repository has more files, folders and links than this node allows for one checkout, .git included: %d (git.checkoutFiles)", l.Inodes)
}

func (l Limits) tooManyInUse() string {
	return "the checkouts that are in use on this node take all the disk that is for them: " + sizeText(l.Total) +
		" (git.checkoutsTotal): revoke grants of repositories there"
}

// sizeText is a size as the settings have it.
func sizeText(n int64) string {
	units := []string{"", "Ki", "Mi", "Gi", "Ti"}
	i := 0
	for ; i < len(units)-1 && n > 0 && n%1024 == 0; i++ {
		n /= 1024
	}
	return fmt.Sprint(n, units[i])
}

// admit says whether a job may go on taking disk. Checkouts that nobody uses make way
// for it, those unused for longest first.
func (s *Store) admit(ctx context.Context, j *job) error {
	for ctx.Err() == nil {
		over, full := s.overTotal(j), s.full()
		if !over && !full {
			return nil
		}
		if full {
			j.short.Store(true)
		}
		if _, dropped := s.dropOldest(0); dropped {
			j.freed.Store(true)
			continue
		}
		if full {
			return fail(DiskFull, messageDiskFull)
		}
		return fail(DiskFull, s.config.Limits.tooManyInUse())
	}
	return nil // it ends for another reason
}

// overTotal tells whether all checkouts take more than they may, because of this job
// and not only of those that began after it.
func (s *Store) overTotal(j *job) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	total := j.bytes.Load()
	for _, p := range s.ready {
		total += p.record.Bytes
	}
	for _, f := range s.flights {
		if f.job.order < j.order {
			total += f.job.bytes.Load()
		}
	}
	return total > s.config.Limits.Total
}

// full tells whether less of the disk is free than checkouts leave free. Nobody's word
// is taken for it.
func (s *Store) full() bool {
	var disk unix.Statfs_t
	if err := unix.Statfs(s.config.Root, &disk); err != nil {
		return false
	}
	least := uint64(s.config.Limits.Free)
	// git is not root, and what is kept for root is not for it. Some filesystems do not
	// count files.
	return disk.Bavail == 0 || disk.Bavail < disk.Blocks/100*least ||
		disk.Files > 0 && (disk.Ffree == 0 || disk.Ffree < disk.Files/100*least)
}
