package procs

import (
	"bufio"
	"bytes"
	"io"
)

// maxFdinfo is how much of an fdinfo file is read, in bytes. A ring's lists its
// requests first: 32 KiB entries of 100 bytes at most.
const maxFdinfo = 8 << 20

// keeps tells from a descriptor's fdinfo, of which info is the beginning and fd
// the open file, whether it keeps files that no table of descriptors shows: a
// socket with descriptors that were sent and not yet received (SCM_RIGHTS; shown
// since Linux 5.6, for one that listens too), or an io_uring with registered
// files. What they are cannot be told without receiving them. "" for neither.
func keeps(info []byte, fd int) (what string, err error) {
	if _, rest, ok := bytes.Cut(info, []byte("\nscm_fds:")); ok {
		n, _, _ := bytes.Cut(rest, []byte{'\n'})
		if n = bytes.TrimSpace(n); len(n) > 0 && string(n) != "0" {
			return FilesInFlight, nil
		}
	}
	if !bytes.Contains(info, []byte("\nSqMask:")) {
		return "", nil
	}
	rest := io.MultiReader(bytes.NewReader(info), io.LimitReader(fdReader(fd), maxFdinfo))
	listing, files := false, false
	err = lines(bufio.NewReaderSize(rest, lineBuffer), func(line []byte) bool {
		if !listing {
			listing = bytes.HasPrefix(line, []byte("UserFiles:"))
			return true
		}
		// "    0: /path", until "UserBufs:". Older kernels list the holes.
		slot, name, ok := bytes.Cut(line, []byte(": "))
		if !ok || len(bytes.Trim(slot, " 0123456789")) > 0 {
			return false
		}
		files = string(name) != "<none>"
		return !files
	})
	if files {
		what = FilesInRing
	}
	return what, err
}
