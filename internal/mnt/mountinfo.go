package mnt

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxLine bounds what is kept of one line, in bytes: room for a root and a mount
// point far beyond PATH_MAX. The super options at its end may be cut.
//
// A reader with less room is a weapon: any user can mount, in a user namespace,
// an overlay of hundreds of directories, whose options are a line of 300 KiB
// (seen on 6.18), and nobody could read that process's table any more.
const maxLine = 1 << 20

var errFormat = errors.New("not a line of mountinfo")

// ParseMountinfo reads a mount table in the format of /proc/PID/mountinfo
// (proc_pid_mountinfo(5)). One line that is none is an error of the whole: a
// table with a hole in it proves nothing.
func ParseMountinfo(r io.Reader) ([]Mount, error) {
	lines := bufio.NewReaderSize(r, 64<<10)
	var mounts []Mount
	for n := 1; ; n++ {
		line, err := readLine(lines)
		if errors.Is(err, io.EOF) {
			return mounts, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading mountinfo: %w", err)
		}
		m, err := parseMount(line)
		if err != nil {
			return nil, fmt.Errorf("mountinfo line %d: %w: %.200q", n, err, line)
		}
		mounts = append(mounts, m)
	}
}

// readLine reads one line and keeps at most maxLine of it. io.EOF comes without
// a line.
func readLine(r *bufio.Reader) (string, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part[:min(len(part), maxLine-len(line))]...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err == nil, errors.Is(err, io.EOF) && len(line) > 0:
			return strings.TrimSuffix(string(line), "\n"), nil
		}
		return "", err
	}
}

// parseMount reads
//
//	36 35 98:0 /root /point rw,noatime shared:1 master:2 - ext4 /dev/sda1 rw
//
// where any number of optional fields stand before the dash. The source may be
// empty, and may be a dash itself.
func parseMount(line string) (Mount, error) {
	f := strings.Split(line, " ")
	if len(f) < 10 {
		return Mount{}, errFormat
	}
	dash := 6
	for dash < len(f) && f[dash] != "-" {
		dash++
	}
	major, minor, ok := strings.Cut(f[2], ":")
	if !ok || dash+2 >= len(f) {
		return Mount{}, errFormat
	}
	m := Mount{
		Root: unescape(f[3]), Point: unescape(f[4]), Flags: ParseFlags(f[5]),
		Peer: optional(f[6:dash], "shared:"), Master: optional(f[6:dash], "master:"),
		FSType: unescape(f[dash+1]), Source: unescape(f[dash+2]),
	}
	var errs [4]error
	m.ID, errs[0] = strconv.Atoi(f[0])
	m.Parent, errs[1] = strconv.Atoi(f[1])
	m.Dev.Major, errs[2] = number(major)
	m.Dev.Minor, errs[3] = number(minor)
	if err := errors.Join(errs[:]...); err != nil {
		return Mount{}, fmt.Errorf("%w: %w", errFormat, err)
	}
	return m, nil
}

func number(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err
}

// optional finds the number of a propagation tag ("shared:12"), 0 for none.
func optional(fields []string, tag string) int {
	for _, f := range fields {
		if v, ok := strings.CutPrefix(f, tag); ok {
			n, err := strconv.Atoi(v)
			if err == nil {
				return n
			}
		}
	}
	return 0
}

// unescape undoes what the kernel does to blanks, newlines and backslashes in a
// field: a backslash and three octal digits. Other bytes stand for themselves.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		if s[0] == '\\' && len(s) >= 4 {
			if n, err := strconv.ParseUint(s[1:4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				s = s[4:]
				continue
			}
		}
		b.WriteByte(s[0])
		s = s[1:]
	}
	return b.String()
}
