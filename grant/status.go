package grant

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// State sums a Status up.
type State string

const (
	// StateReady means that nothing failed.
	StateReady State = "ready"
	// StateDegraded means that some mounts stand and others failed, or that a
	// mount that was made has died.
	StateDegraded State = "degraded"
	// StateFailed means that the whole set was refused, or that no mount could be
	// made.
	StateFailed State = "failed"
)

// Bounds of a ready annotation, in bytes.
const (
	maxStatus  = 64 << 10 // all of it, encoded
	maxMessage = 512      // one message, before it is encoded
	noteRoom   = 160      // the note about what was left out, encoded
)

// Status is the agent's answer to one set.
type Status struct {
	Hash     string            // of the set that is answered
	State    State             // anything but the three states is written as failed
	Mounted  []string          // targets that stand, sorted when decoded
	Failed   map[string]Code   // by target, "#<index>", or WholeSet
	Messages map[string]string // one sentence each, by the keys of Failed
}

// Encode writes the ready annotation: keys and lists sorted, compact, ASCII, and
// never more than 64 KiB. The same status gives the same bytes. A hash that no
// set can have is written as "".
//
// Messages are cut to 512 bytes each. Where there is not room for everything, the
// longest messages go first, then entries of Mounted, and only then entries of
// Failed, of which the first of each code stays longest; no code is ever
// shortened. What was left out of a list is counted in the message of WholeSet,
// unless that has one of its own.
func (s Status) Encode() string {
	state := s.State
	if state != StateReady && state != StateDegraded {
		state = StateFailed
	}
	hash := saneHash(s.Hash)
	room := maxStatus - len(appendStatus(nil, hash, state, nil, nil, []part{})) - noteRoom

	failed, room, failedLeft := fit(s.failedParts(), room)
	mounted, room, mountedLeft := fit(s.mountedParts(), room)
	messages := s.messageParts()
	if _, taken := s.Messages[WholeSet]; !taken && failedLeft+mountedLeft > 0 {
		note := fmt.Sprintf("The answer is too long: %d failures and %d mounts are not listed.", failedLeft, mountedLeft)
		messages = slices.Insert(messages, 0, memberPart(WholeSet, note))
		room += noteRoom
	}
	messages, _, _ = fit(messages, room)

	for _, parts := range [][]part{failed, mounted, messages} {
		slices.SortFunc(parts, byKey)
	}
	return string(appendStatus(nil, hash, state, failed, mounted, messages))
}

// part is one item of a list or object of the annotation.
type part struct {
	key  string
	text string // encoded
}

func memberPart(key, text string) part {
	return part{key: key, text: string(appendMember(nil, key, text))}
}

func byKey(a, b part) int { return strings.Compare(a.key, b.key) }

// fit keeps the parts that fit into room bytes, each with a comma, in their order.
func fit(parts []part, room int) (kept []part, left, dropped int) {
	for _, p := range parts {
		if len(p.text)+1 > room {
			dropped++
			continue
		}
		room -= len(p.text) + 1
		kept = append(kept, p)
	}
	return kept, room, dropped
}

// failedParts returns the members of "failed", the most telling first: the whole
// set, then one entry of each code, then the rest.
func (s Status) failedParts() []part {
	var first, rest []part
	seen := make(map[Code]bool)
	for _, key := range slices.Sorted(maps.Keys(s.Failed)) {
		code := s.Failed[key]
		p := memberPart(key, string(code))
		switch {
		case key == WholeSet:
			first = slices.Insert(first, 0, p)
		case !seen[code]:
			first = append(first, p)
		default:
			rest = append(rest, p)
		}
		seen[code] = true
	}
	return append(first, rest...)
}

func (s Status) mountedParts() []part {
	var parts []part
	for _, target := range slices.Compact(slices.Sorted(slices.Values(s.Mounted))) {
		parts = append(parts, part{key: target, text: string(appendString(nil, target))})
	}
	return parts
}

// messageParts returns the messages, the one of the whole set first, then the
// shortest: the longest are those that find no room.
func (s Status) messageParts() []part {
	var parts []part
	for key, message := range s.Messages {
		message = strings.ToValidUTF8(message, "\uFFFD")
		parts = append(parts, memberPart(key, cut(message, maxMessage)))
	}
	slices.SortFunc(parts, func(a, b part) int {
		switch {
		case a.key == WholeSet:
			return -1
		case b.key == WholeSet:
			return 1
		case len(a.text) != len(b.text):
			return len(a.text) - len(b.text)
		}
		return byKey(a, b)
	})
	return parts
}

// appendStatus writes the annotation from its parts. Messages are left out where
// there are none.
func appendStatus(b []byte, hash string, state State, failed, mounted, messages []part) []byte {
	b = append(b, `{"failed":{`...)
	b = append(appendParts(b, failed), '}')
	b = appendNext(b, "hash", hash)
	if messages != nil {
		b = append(b, `,"messages":{`...)
		b = append(appendParts(b, messages), '}')
	}
	b = append(b, `,"mounted":[`...)
	b = append(appendParts(b, mounted), ']')
	b = appendNext(b, "state", string(state))
	return append(b, '}')
}

func appendParts(b []byte, parts []part) []byte {
	for i, p := range parts {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, p.text...)
	}
	return b
}

// DecodeStatus reads a ready annotation. Keys it does not know, and messages it
// cannot read, are ignored; empty lists and maps are nil. The error is a
// [*Refusal] with CodeInvalidGrant.
func DecodeStatus(annotation string) (Status, error) {
	refuse := func(message string) (Status, error) {
		return Status{}, &Refusal{Key: WholeSet, Code: CodeInvalidGrant, Message: "ready annotation: " + message}
	}
	if len(annotation) > MaxAnnotationBytes {
		return refuse("it is too large to be read")
	}
	raw := []byte(annotation)
	if !json.Valid(raw) {
		return refuse("it is not valid JSON")
	}
	top, ok := members(raw, "hash", "state", "mounted", "failed", "messages")
	if !ok {
		return refuse("it is not an object")
	}
	hash, state := top["hash"].text(""), top["state"].text("")
	if hash.fault != "" {
		return refuse("hash " + hash.fault)
	}
	s := Status{Hash: hash.text, State: State(state.text)}
	if s.State != StateReady && s.State != StateDegraded && s.State != StateFailed {
		return refuse("state is not ready, degraded or failed")
	}
	if !lenient(top["mounted"], &s.Mounted) {
		return refuse("mounted is not a list of targets")
	}
	if !lenient(top["failed"], &s.Failed) {
		return refuse("failed does not map targets to codes")
	}
	if !lenient(top["messages"], &s.Messages) {
		s.Messages = nil
	}
	slices.Sort(s.Mounted)
	return s.normal(), nil
}

// lenient reads a member where there is one; an absent one and null are empty.
func lenient[T any](m member, into *T) bool {
	return m.count == 0 || m.count == 1 && json.Unmarshal(m.raw, into) == nil
}

// normal replaces empty lists and maps by nil, so that equal answers compare equal.
func (s Status) normal() Status {
	if len(s.Mounted) == 0 {
		s.Mounted = nil
	}
	if len(s.Failed) == 0 {
		s.Failed = nil
	}
	if len(s.Messages) == 0 {
		s.Messages = nil
	}
	return s
}
