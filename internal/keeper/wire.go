package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	// maxMessage is the longest packet, in bytes. The kernel takes one that fits the
	// sender's buffer, which has 208 KiB by default.
	maxMessage = 128 << 10
	// maxRights is how many descriptors the kernel sends beside one packet. A buffer for
	// all of them is what makes it possible to close what was not asked for.
	maxRights = 253
)

// The operations.
const (
	opInfo     = "info"
	opList     = "list"
	opStart    = "start"
	opPidfd    = "pidfd"
	opChild    = "child"
	opStop     = "stop"
	opForget   = "forget"
	opListener = "listener"
)

// request is what a client sends. Fields are only ever added.
type request struct {
	Protocol int    `json:"protocol"`
	Op       string `json:"op"`
	ID       string `json:"id,omitempty"`                // pidfd, child, stop, forget
	Grace    int64  `json:"graceMilliseconds,omitempty"` // stop
	Start    *order `json:"start,omitempty"`             // start
}

// order is a Start on its way. Strings are bytes: JSON would change what is no UTF-8.
// Beside it go the descriptor of the program and then Files more.
type order struct {
	Use       string   `json:"use"`
	Note      []byte   `json:"note,omitempty"`
	Args      [][]byte `json:"args"`
	Env       [][]byte `json:"env,omitempty"`
	UID       int      `json:"uid"`
	GID       int      `json:"gid"`
	Memory    int64    `json:"memory,omitempty"`
	CacheName string   `json:"cacheName,omitempty"`
	Files     int      `json:"files"`
}

// answer is what the keeper sends. Start, pidfd and listener have one descriptor
// beside it.
type answer struct {
	Info
	Failure  *failure `json:"failure,omitempty"`
	Children []Child  `json:"children,omitempty"`
	More     bool     `json:"more,omitempty"` // the rest of a list is in the next packet
}

// failure is an error on its way.
type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// The codes that a client tells apart; any other is a RemoteError.
const (
	codeUnknownChild = "unknown-child"
	codeEnded        = "ended"
	codeEnding       = "ending"
	codeRefused      = "refused"
	codeFailed       = "failed"
)

func (f *failure) Error() string { return f.Message }

func refuse(format string, args ...any) *failure {
	return &failure{codeRefused, fmt.Sprintf(format, args...)}
}

// asError is the failure as the client's caller knows it.
func (f *failure) asError() error {
	switch f.Code {
	case codeUnknownChild:
		return ErrUnknownChild
	case codeEnded:
		return ErrEnded
	case codeEnding:
		return fmt.Errorf("%w: %s", ErrUnavailable, f.Message)
	}
	return &RemoteError{f.Message}
}

// decode reads a request that came with so many descriptors. It trusts nothing.
func decode(b []byte, descriptors int) (*request, *failure) {
	var r request
	if err := json.Unmarshal(b, &r); err != nil {
		// The error may quote the request.
		return nil, refuse("the request is not the JSON of one")
	}
	if r.Protocol < 1 {
		return nil, refuse("the request names no protocol")
	}
	want := 0
	switch r.Op {
	case opStart:
		if r.Start == nil {
			return nil, refuse("nothing to start")
		}
		if err := r.Start.check(); err != nil {
			return nil, err
		}
		want = 1 + r.Start.Files
	case opPidfd, opChild, opStop, opForget:
		if r.ID == "" {
			return nil, refuse("no child is named")
		}
	case opInfo, opList, opListener:
	default:
		return nil, refuse("this keeper knows no operation %.40q: it speaks protocol %d", r.Op, Protocol)
	}
	if descriptors != want {
		return nil, refuse("%d descriptors came, %d are wanted", descriptors, want)
	}
	return &r, nil
}

// cacheName is one path segment that no shell and no person misreads.
var cacheName = regexp.MustCompile(`\A[A-Za-z0-9_][A-Za-z0-9._-]{0,126}\z`)

// check says what is wrong with an order. The messages show neither environment nor
// note.
func (o *order) check() *failure {
	size := 0
	for _, list := range [][][]byte{o.Args, o.Env} {
		for _, s := range list {
			size += len(s) + 8 // and a pointer, as the kernel counts
			if strings.IndexByte(string(s), 0) >= 0 {
				return refuse("an argument or a variable holds a NUL")
			}
		}
	}
	// -1 and its unsigned spelling mean "unchanged" to setresuid.
	const maxID = 1<<31 - 2
	switch {
	case len(o.Args) == 0:
		return refuse("Args[0], the name, is missing")
	case size > maxStrings:
		return refuse("arguments and environment have %d bytes, %d are allowed", size, maxStrings)
	case len(o.Note) > MaxNote:
		return refuse("the note has %d bytes, %d are allowed", len(o.Note), MaxNote)
	case len(o.Use) > MaxUse || !oneLine(o.Use):
		return refuse("the use is not one line of at most %d bytes", MaxUse)
	case o.UID <= 0 || o.GID <= 0 || o.UID > maxID || o.GID > maxID:
		return refuse("a child is never root: user %d and group %d are not from 1 to %d", o.UID, o.GID, maxID)
	case o.Memory < 0:
		return refuse("a negative number of bytes of memory")
	case o.Files < 0 || o.Files > MaxFiles:
		return refuse("%d files, at most %d are allowed", o.Files, MaxFiles)
	case o.CacheName != "" && !cacheName.MatchString(o.CacheName):
		return refuse("the name of the cache is not one of letters, digits, dots, dashes and underscores")
	}
	return nil
}

func oneLine(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// send writes one packet. The descriptors stay the caller's.
func send(c *net.UnixConn, v any, descriptors ...int) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > maxMessage {
		return fmt.Errorf("a message of %d bytes, %d are allowed", len(b), maxMessage)
	}
	var rights []byte
	if len(descriptors) > 0 {
		rights = unix.UnixRights(descriptors...)
	}
	_, _, err = c.WriteMsgUnix(b, rights, nil)
	return err
}

var errTruncated = errors.New("the message or its descriptors were cut")

// receive reads one packet. The descriptors are the caller's also where there is an
// error.
func receive(c *net.UnixConn) (b []byte, descriptors rights, err error) {
	b = make([]byte, maxMessage)
	oob := make([]byte, unix.CmsgSpace(4*maxRights))
	n, oobn, flags, _, err := c.ReadMsgUnix(b, oob)
	if errors.Is(err, io.EOF) && oobn == 0 {
		// The kernel looks for a packet first, and then whether the other end has closed: of
		// one that sent and closed in between it says that there is nothing more.
		n, oobn, flags, _, err = c.ReadMsgUnix(b, oob)
	}
	// An empty packet reads as the end of the connection, and may hold descriptors.
	if oobn > 0 {
		messages, parseErr := unix.ParseSocketControlMessage(oob[:oobn])
		for i := range messages {
			if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
				descriptors = append(descriptors, fds...)
			}
		}
		err = errors.Join(err, parseErr)
	}
	switch {
	case err != nil:
	case n == 0:
		err = io.EOF
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = errTruncated
	}
	return b[:max(n, 0)], descriptors, err
}

func receiveAnswer(c *net.UnixConn) (a answer, descriptors rights, err error) {
	b, descriptors, err := receive(c)
	if err == nil {
		err = json.Unmarshal(b, &a)
	}
	return a, descriptors, err
}

// rights are descriptors that came with a packet.
type rights []int

func (r rights) close() {
	for _, fd := range r {
		_ = unix.Close(fd)
	}
}

// chunks divides a list into parts of which each fits a packet.
func chunks(children []Child) (parts [][]Child) {
	size := 0
	for _, c := range children {
		b, err := json.Marshal(c)
		if err != nil {
			continue // a Child has nothing that cannot be written
		}
		if len(parts) == 0 || size+len(b) > maxMessage-maxHead {
			parts, size = append(parts, nil), 0
		}
		size += len(b) + 1
		parts[len(parts)-1] = append(parts[len(parts)-1], c)
	}
	if parts == nil {
		parts = [][]Child{nil}
	}
	return parts
}

// maxHead is more than an answer has beside its children.
const maxHead = 16 << 10

// peer is the user at the other end of a connection.
func peer(c *net.UnixConn) (uid uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	controlErr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(controlErr, err); err != nil {
		return 0, err
	}
	return cred.Uid, nil
}

// milliseconds is how a Grace travels.
func milliseconds(d time.Duration) int64 { return max(0, min(d, maxGrace)).Milliseconds() }
