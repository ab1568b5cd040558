package main

import (
	"encoding/json"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// facts are what a program sees of one path, without following a last link.
type facts struct {
	Path  string   `json:"path"`
	Type  string   `json:"type,omitempty"` // file, dir, link, other
	UID   uint32   `json:"uid"`
	GID   uint32   `json:"gid"`
	Mode  string   `json:"mode,omitempty"`  // four octal digits
	Flags []string `json:"flags"`           // of the mount: ro, nosuid, nodev, noexec
	FS    string   `json:"fs,omitempty"`    // magic number of the filesystem, hexadecimal
	Error string   `json:"error,omitempty"` // then nothing else is set
}

// stat prints a JSON list with one entry for each path, in order.
func stat(paths []string, out io.Writer) error {
	if len(paths) == 0 {
		return usageError("want PATH...")
	}
	all := make([]facts, 0, len(paths))
	for _, path := range paths {
		seen, err := look(path)
		if err != nil {
			seen = facts{Error: err.Error()}
		}
		seen.Path = path
		all = append(all, seen)
	}
	return json.NewEncoder(out).Encode(all)
}

func look(path string) (facts, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return facts{}, err
	}
	seen := facts{UID: st.Uid, GID: st.Gid, Mode: fmt.Sprintf("%04o", st.Mode&0o7777), Flags: []string{}, Type: "other"}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		seen.Type = "file"
	case unix.S_IFDIR:
		seen.Type = "dir"
	case unix.S_IFLNK:
		// statfs would tell of what the link points to.
		seen.Type = "link"
		return seen, nil
	}
	var mount unix.Statfs_t
	if err := unix.Statfs(path, &mount); err != nil {
		return facts{}, err
	}
	seen.FS = fmt.Sprintf("0x%x", uint64(mount.Type))
	for _, flag := range []struct {
		bit  int64
		name string
	}{{unix.ST_RDONLY, "ro"}, {unix.ST_NOSUID, "nosuid"}, {unix.ST_NODEV, "nodev"}, {unix.ST_NOEXEC, "noexec"}} {
		if mount.Flags&flag.bit != 0 {
			seen.Flags = append(seen.Flags, flag.name)
		}
	}
	return seen, nil
}
