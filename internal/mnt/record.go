package mnt

import (
	"encoding/binary"
	"errors"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// record describes the mount whose root fd names, once it is attached. It
// touches no user storage: the kernel answers from what it holds.
//
// The root is found by statmount (Linux 6.8) or, before that, in the mount
// table. Where neither tells, Root stays empty: such a record matches no mount,
// so that a restarted agent makes the mount anew instead of trusting it.
func (k *Kernel) record(fd int, flags Flags) Record {
	p, _, err := place(fd)
	if err != nil {
		return Record{Flags: flags}
	}
	rec := Record{Dev: p.Dev, Root: p.Root, Inode: p.Inode, Flags: flags, ID: p.ID}
	if rec.Root == "" {
		rec = k.recordFromList(fd, rec)
	}
	return rec
}

// place describes the mount that fd lies on, as far as the kernel knows it by
// itself.
func place(fd int) (Place, unix.Statx_t, error) {
	stx, unique, err := statx(fd)
	if err != nil {
		return Place{}, stx, err
	}
	p := Place{Dev: Dev{Major: stx.Dev_major, Minor: stx.Dev_minor}, Inode: stx.Ino}
	if unique {
		p.ID = stx.Mnt_id
		// The superblock's number is what mountinfo shows too; filesystems with
		// a number per subvolume (btrfs) show another one in statx.
		if st, err := statmount(p.ID); err == nil {
			p.Dev, p.Root = st.Dev, st.Root
		}
	}
	return p, stx, nil
}

func (k *Kernel) recordFromList(fd int, rec Record) Record {
	var stx unix.Statx_t
	if err := unix.Statx(fd, "", statxFlags, unix.STATX_MNT_ID, &stx); err != nil {
		return rec
	}
	mounts, err := k.List()
	if err != nil {
		return rec
	}
	for _, m := range mounts {
		if uint64(m.ID) == stx.Mnt_id {
			rec.Dev, rec.Root = m.Dev, m.Root
		}
	}
	return rec
}

const statxFlags = unix.AT_EMPTY_PATH | unix.AT_STATX_DONT_SYNC | unix.AT_NO_AUTOMOUNT

// statx asks for the mount id, the unique one where the kernel has it, and for
// what it knows without asking a server.
func statx(fd int) (stx unix.Statx_t, unique bool, err error) {
	if err = unix.Statx(fd, "", statxFlags, unix.STATX_INO|unix.STATX_MNT_ID_UNIQUE, &stx); err != nil {
		return stx, false, err
	}
	return stx, stx.Mask&unix.STATX_MNT_ID_UNIQUE != 0, nil
}

// statmount(2), which x/sys knows by number only. The layout is struct
// statmount of include/uapi/linux/mount.h.
const (
	statmountSBBasic  = 0x1
	statmountMntBasic = 0x2
	statmountMntRoot  = 0x8
	statmountMntPoint = 0x10
	// What is asked for: the kernel answers what it can and says in the mask what
	// that was.
	statmountAll = statmountSBBasic | statmountMntBasic | statmountMntRoot | statmountMntPoint

	statmountOffMask     = 8
	statmountOffDevMajor = 16
	statmountOffParent   = 48 // unique
	statmountOffID       = 56 // mountinfo's
	statmountOffParentID = 60 // mountinfo's
	statmountOffAttr     = 64
	statmountOffPeer     = 80
	statmountOffMaster   = 88
	statmountOffMntRoot  = 104
	statmountOffMntPoint = 108
	statmountOffStrings  = 512

	mntIDReqSize = 24
)

var errStatmountShape = errors.New("unexpected answer")

// mounted is a Mount without FSType and Source. Its Point is "" where the mount is
// not beneath this process's root.
type mounted struct {
	Mount
	parent uint64 // the parent's unique id
}

func statmount(id uint64) (mounted, error) {
	req := struct {
		size, spare uint32
		id, param   uint64
	}{size: mntIDReqSize, id: id, param: statmountAll}
	for size := 4096; ; size *= 4 {
		buf := make([]byte, size)
		_, _, e := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&req)), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0, 0)
		switch {
		case e == unix.EOVERFLOW && size < 1<<20:
			continue
		case e != 0:
			return mounted{}, e
		}
		return parseStatmount(buf)
	}
}

func parseStatmount(buf []byte) (mounted, error) {
	ne := binary.NativeEndian
	if mask := ne.Uint64(buf[statmountOffMask:]); mask&(statmountAll&^statmountMntPoint) != statmountAll&^statmountMntPoint {
		return mounted{}, errStatmountShape
	}
	m := mounted{parent: ne.Uint64(buf[statmountOffParent:])}
	m.ID, m.Parent = int(ne.Uint32(buf[statmountOffID:])), int(ne.Uint32(buf[statmountOffParentID:]))
	m.Dev = Dev{Major: ne.Uint32(buf[statmountOffDevMajor:]), Minor: ne.Uint32(buf[statmountOffDevMajor+4:])}
	m.Peer, m.Master = int(ne.Uint64(buf[statmountOffPeer:])), int(ne.Uint64(buf[statmountOffMaster:]))
	attr := ne.Uint64(buf[statmountOffAttr:])
	for _, f := range flagTable {
		if attr&f.attr != 0 {
			m.Flags |= f.flag
		}
	}
	var err error
	if m.Root, err = statmountString(buf, statmountOffMntRoot); err != nil {
		return mounted{}, err
	}
	if ne.Uint64(buf[statmountOffMask:])&statmountMntPoint != 0 {
		m.Point, err = statmountString(buf, statmountOffMntPoint)
	}
	return m, err
}

// statmountString reads the text whose offset in the strings stands at field.
func statmountString(buf []byte, field int) (string, error) {
	off := statmountOffStrings + int(binary.NativeEndian.Uint32(buf[field:]))
	if off < 0 || off >= len(buf) {
		return "", errStatmountShape
	}
	text, _, ok := strings.Cut(string(buf[off:]), "\x00")
	if !ok {
		return "", errStatmountShape
	}
	return text, nil
}
