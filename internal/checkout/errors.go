package checkout

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Class says what kind of cause an error has, and with it who can do something.
type Class string

// The classes. A refused credential, an unusable address and a server that is away
// need different people.
const (
	// NotFound: the server answered and has no such repository, or no such commit.
	NotFound Class = "not-found"
	// AuthRefused: the server wants a credential, or does not take this one, or its
	// host key is not the one that was given.
	AuthRefused Class = "auth-refused"
	// Unreachable: no conversation with the server came about, or it broke off.
	Unreachable Class = "unreachable"
	// Timeout: the limit of time has passed.
	Timeout Class = "timeout"
	// TooLarge: the limit of bytes, files or memory has passed.
	TooLarge Class = "too-large"
	// DiskFull: the node has no room.
	DiskFull Class = "disk-full"
	// Refused: the address is one that this node does not fetch from.
	Refused Class = "refused"
	// Invalid: the request, the credential's form or the repository's content cannot
	// be used, now or later.
	Invalid Class = "invalid"
	// Failed: anything else; the message has git's own words.
	Failed Class = "failed"
)

// Error is why there is no checkout: one sentence for the person who asked, without
// anything secret, and what git said where that adds something. A class that words
// of git led to is believed as far as it fails the one request: a server, or the name
// of a file, can have put them there.
type Error struct {
	Class   Class
	Message string
	Detail  string // git's last words, redacted; may be empty
	Err     error  // may be nil
	// Node says that Detail and Err speak of the node, or of what else is on its
	// network: they are for its log, and not for a tenant.
	Node bool
}

func (e *Error) Error() string {
	if e.Detail == "" {
		return e.Message
	}
	return e.Message + " (" + e.Detail + ")"
}

func (e *Error) Unwrap() error { return e.Err }

// ClassOf is the class of an error from this package, Failed for every other.
func ClassOf(err error) Class {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	return Failed
}

func fail(class Class, message string) *Error { return &Error{Class: class, Message: message} }

// storage classifies an error of the store's own work on disk.
func storage(operation string, err error) error {
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*Error](err)
	if ok {
		return e
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return &Error{Class: DiskFull, Message: messageDiskFull, Err: err}
	}
	return &Error{Class: Failed, Message: "the node could not " + operation, Detail: err.Error(), Err: err, Node: true}
}

const (
	messageDiskFull = "the node has no disk space left for the checkout"
	// A port that is closed, a server that is not git's and a certificate that nobody
	// signed are one to a tenant, who could tell by them what is on the node's network.
	messageAway = "no git server could be reached at this address, or its certificate is not trusted: check the address; the agent's log says what happened"
)

// symptom is a sentence of git, ssh, curl or a server that gives its cause away.
type symptom struct {
	text    string // lower case
	class   Class
	message string
}

// symptoms are asked in this order: the first that matches counts, so what is
// certain comes before what can be a consequence of something else.
func symptoms() []symptom {
	const (
		noCommit   = "the server does not have this commit"
		noRepo     = "the server has no such repository, or shows it to nobody without a credential"
		credential = "the server does not accept the credential"
		wanted     = "the server asks for a credential: name a Secret that has one"
		redirected = "the server redirects to another address: write that address"
		hostKey    = "the server's host key is not in the known_hosts of the Secret"
		content    = "the repository has content that git refuses"
	)
	return []symptom{
		{"file too large", TooLarge, ""},
		{"out of memory", TooLarge, "the repository needs more memory than this node allows"},
		{"fsck error", Invalid, content},
		{"invalid path", Invalid, content},
		{"cannot create symlink", Invalid, content},
		{"file name too long", Invalid, content},
		// Of a very long path git's own words end before the reason.
		{"cannot create directory at", Invalid, content},
		{"not our ref", NotFound, noCommit},
		{"unadvertised object", NotFound, noCommit},
		{refusedWant, NotFound, noCommit},
		{"couldn't find remote ref", NotFound, noCommit},
		{"host key verification failed", AuthRefused, hostKey},
		{"could not read username", AuthRefused, wanted},
		{"could not read password", AuthRefused, wanted},
		{"authentication failed", AuthRefused, credential},
		{"permission denied", AuthRefused, credential},
		{"returned error: 401", AuthRefused, credential},
		{"returned error: 403", AuthRefused, credential},
		{"returned error: 407", Unreachable, "the proxy refuses the connection"},
		{"response 407", Unreachable, "the proxy refuses the connection"},
		{"returned error: 404", NotFound, noRepo},
		{"returned error: 30", Refused, redirected},
		{"not a git repository", NotFound, noRepo},
		{"not appear to be a git repository", NotFound, noRepo},
		{"not valid: is this a git repository", NotFound, noRepo},
		{"not found", NotFound, noRepo},
		{"unable to access", Unreachable, messageAway},
		{"early eof", Unreachable, messageAway},
		{"hung up", Unreachable, messageAway},
		{"rpc failed", Unreachable, messageAway},
		{"protocol error", Unreachable, messageAway},
		{"unexpected disconnect", Unreachable, messageAway},
		// ssh ends so, whatever it said before.
		{"could not read from remote repository", Unreachable, messageAway},
		{"reference is not a tree", Invalid, messageNoCommit},
		{"unable to read tree", Invalid, messageNoCommit},
		{"to a non-commit", Invalid, messageNoCommit},
		{"not a tree object", Invalid, messageNoCommit},
	}
}

// refusedWant begins what JGit says of a commit that it does not give by its id: "want
// ID not valid".
const refusedWant = "remote error: want "

const messageNoCommit = "the revision does not name a commit"

// classify turns what git printed into an error. secrets never reach it. local says
// that git spoke to no server: then what looks like a server's words is the name of a
// file.
func classify(output string, local bool, secrets []string, err error) *Error {
	own, theirs := speakers(output)
	e := &Error{Class: Failed, Message: "git failed", Err: err}
	wanted := ""
	for _, s := range symptoms() {
		if local && s.class != TooLarge && s.class != Invalid {
			continue
		}
		if strings.Contains(own, s.text) || s.class == NotFound && strings.Contains(theirs, s.text) {
			e.Class, e.Message, wanted = s.class, s.message, s.text
			break
		}
	}
	e.Detail = lastWords(redact(output, secrets), wanted)
	e.Node = e.Class == Unreachable
	return e
}

// speakers tells the lines of git apart from those that it repeats after a server,
// both in lower case. What a server says by ssh, or the name of a file with a line
// break, still passes for git's.
func speakers(output string) (own, theirs string) {
	for line := range strings.Lines(strings.ToLower(output)) {
		switch {
		case strings.HasPrefix(line, "remote:"):
		case strings.Contains(line, "remote error:"):
			theirs += line
		default:
			own += line
		}
	}
	return own, theirs
}

// saysFull tells whether git speaks of a full disk. A server may have said so of its
// own, and a file may be called so: only the disk itself tells whether it is true.
func saysFull(output string) bool {
	lower := strings.ToLower(output)
	return slices.ContainsFunc([]string{"no space left on device", "out of diskspace", "disk quota exceeded"}, func(words string) bool {
		return strings.Contains(lower, words)
	})
}

// A server's words reach an annotation; they are cut and lose what is not text.
const maxDetail = 200

// lastWords is the line of git's output that says most: the one with the symptom,
// else the last.
func lastWords(output, wanted string) string {
	var last string
	for line := range strings.FieldsFuncSeq(output, func(r rune) bool { return r == '\n' || r == '\r' }) {
		line = strings.TrimSpace(strings.Map(printable, line))
		if line == "" {
			continue
		}
		last = line
		if wanted != "" && strings.Contains(strings.ToLower(line), wanted) {
			break
		}
	}
	if len(last) > maxDetail {
		last = strings.ToValidUTF8(last[:maxDetail], "") + "…"
	}
	return last
}

func printable(r rune) rune {
	if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
		return -1
	}
	return r
}

const redacted = "[redacted]"

var userinfo = regexp.MustCompile(`://[^/\s'"]*@`)

// redact takes userinfo and every form of the secrets out of a text.
func redact(text string, secrets []string) string {
	text = userinfo.ReplaceAllStringFunc(text, func(found string) string {
		if found == "://git@" {
			return found
		}
		return "://" + redacted + "@"
	})
	for _, s := range secrets {
		text = strings.ReplaceAll(text, s, redacted)
	}
	return text
}
