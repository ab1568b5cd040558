package mnt

import (
	"errors"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/beneath"
)

// Children implements Table. From Linux 6.8 on it costs a system call and one for
// each mount at or beneath dir, whatever else is mounted on the node.
func (k *Kernel) Children(dir *beneath.Dir) ([]Mount, error) {
	p, _, err := place(dir.Fd())
	if err != nil {
		return nil, wrap("statx", dir, err)
	}
	if p.ID != 0 {
		if mounts, err := childrenOf(p.ID); err == nil {
			return mounts, nil
		}
		// A kernel or a seccomp filter without these calls, or an answer that this
		// package does not understand: mountinfo has it too.
	}
	return k.childrenFromList(dir)
}

func (k *Kernel) childrenFromList(dir *beneath.Dir) ([]Mount, error) {
	var stx unix.Statx_t
	if err := unix.Statx(dir.Fd(), "", statxFlags, unix.STATX_MNT_ID, &stx); err != nil {
		return nil, wrap("statx", dir, err)
	}
	mounts, err := k.List()
	if err != nil {
		return nil, err
	}
	var children []Mount
	for _, m := range mounts {
		if uint64(m.Parent) == stx.Mnt_id && m.ID != m.Parent {
			m.FSType, m.Source = "", ""
			children = append(children, m)
		}
	}
	return children, nil
}

func childrenOf(parent uint64) ([]Mount, error) {
	ids, err := listmount(parent)
	if err != nil {
		return nil, err
	}
	var children []Mount
	for _, id := range ids {
		st, err := statmount(id)
		if errors.Is(err, unix.ENOENT) {
			continue // it has gone meanwhile
		}
		if err != nil {
			return nil, err
		}
		if st.parent == parent {
			children = append(children, st.Mount)
		}
	}
	return children, nil
}

// listmount(2), which x/sys knows by number only: the unique ids of the mounts at
// any depth beneath one, in their order.
func listmount(beneath uint64) ([]uint64, error) {
	const batch = 512
	var all []uint64
	req := struct {
		size, spare uint32
		id, last    uint64
	}{size: mntIDReqSize, id: beneath}
	for {
		var ids [batch]uint64
		n, _, e := unix.Syscall6(unix.SYS_LISTMOUNT, uintptr(unsafe.Pointer(&req)), uintptr(unsafe.Pointer(&ids[0])), batch, 0, 0, 0)
		if e != 0 {
			return nil, e
		}
		all = append(all, slices.Clone(ids[:n])...)
		if n < batch {
			return all, nil
		}
		req.last = ids[n-1]
	}
}
