package grant

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Mode says whether the Pod may write to a mount.
type Mode string

const (
	// ReadOnly mounts are read-only, with everything mounted beneath them.
	ReadOnly Mode = "ro"
	// ReadWrite mounts can be written as far as file permissions allow.
	ReadWrite Mode = "rw"
)

// Mount is one grant. What [Decode] and [Clean] return is cleaned and valid; what
// a caller fills in is neither until it went through Clean or [Encode].
type Mount struct {
	UID       string // the writer's own name for it; not checked, not hashed
	Kind      Kind
	Source    string // in the form of its kind, see KindInfo.SourceForm
	Target    string // name of the folder in the Pod's mount directory
	Mode      Mode   // "" is read as ReadWrite by Clean and Encode
	AllowExec bool   // programs may be executed from it
	Revision  string // git: commit id, 40 lower-case hex digits
	Secret    string // name of a Secret that the Pod owns; "" where none is needed

	// exact repeats Source where that is clean and yet begins or ends with white
	// space ("/home/u /" cleans to "home/u "). Trimming such a source again would
	// make another folder of it.
	exact string
}

// Refusal says why an entry, or the whole set, is not mounted. It is an error.
type Refusal struct {
	Key     string // key in Status.Failed: the valid target, "#<index>", or WholeSet
	Code    Code
	Message string // one sentence for the person who wrote the grant
}

// Error returns the code, the key and the message.
func (r *Refusal) Error() string {
	return fmt.Sprintf("%s: %s: %s", r.Code, r.Key, r.Message)
}

// Clean trims the fields of m, checks each by the rules of the contract, and
// returns the mount as it is hashed and written. The error is a [*Refusal] whose
// Key is the target, or "#0" where that is not valid. Cleaning what Clean
// returned changes nothing.
func Clean(m Mount) (Mount, error) {
	cleaned, refusal := entryOf(m).clean(0)
	if refusal != nil {
		return Mount{}, refusal
	}
	return cleaned, nil
}

// field is the value of a text field, or the reason why there is none.
type field struct {
	text  string
	fault string // second half of a sentence that starts with the field's name
}

// entry is a mount before any rule was applied, from an annotation or a caller.
type entry struct {
	uid, kind, source, target, mode, revision, secret field

	allowExec      bool
	allowExecFault string
	exact          bool // the source is clean already: its white space belongs to it
	notObject      bool // the annotation has something else in its place
}

func entryOf(m Mount) entry {
	text := func(s string) field {
		if !utf8.ValidString(s) {
			return field{fault: faultText}
		}
		return field{text: s}
	}
	if m.Mode == "" {
		m.Mode = ReadWrite
	}
	return entry{
		uid: text(m.UID), kind: text(string(m.Kind)), source: text(m.Source), target: text(m.Target),
		mode: text(string(m.Mode)), revision: text(m.Revision), secret: text(m.Secret),
		allowExec: m.AllowExec, exact: m.exact != "" && m.exact == m.Source,
	}
}

// targetKey returns the entry's valid target, or "" and what is wrong with it.
func (e entry) targetKey() (target, problem string) {
	if e.target.fault != "" {
		return "", "target " + e.target.fault
	}
	target = trimSpace(e.target.text)
	if !validTarget(target) {
		return "", called("target", target) + " is not a plain folder name: use at most 127 letters, digits, '.', '_' and '-', the first a letter, a digit or '_'"
	}
	return target, ""
}

// clean applies the rules in the order of the contract: the target first, so that
// a refusal has a key; the kind before the source, because it says how that is read.
func (e entry) clean(index int) (Mount, *Refusal) {
	refuse := func(key string, code Code, message string) (Mount, *Refusal) {
		return Mount{}, &Refusal{Key: key, Code: code, Message: message}
	}
	if e.notObject {
		return refuse(indexKey(index), CodeInvalidGrant, "the entry is not an object: write each mount as one")
	}
	target, problem := e.targetKey()
	if problem != "" {
		return refuse(indexKey(index), CodeInvalidTarget, problem)
	}
	info, problem := e.kindInfo()
	if problem != "" {
		return refuse(target, CodeUnsupportedKind, problem)
	}
	mode, problem := e.access()
	if problem != "" {
		return refuse(target, CodeInvalidGrant, problem)
	}
	source, problem := e.cleanSource(info)
	if problem != "" {
		return refuse(target, CodeInvalidSource, problem)
	}
	revision, problem := e.cleanRevision(info.Kind)
	if problem != "" {
		return refuse(target, CodeInvalidSource, problem)
	}
	secret, problem := e.cleanSecret()
	if problem != "" {
		return refuse(target, CodeSecretRefused, problem)
	}
	m := Mount{
		UID: tidyUID(e.uid.text), Kind: info.Kind, Source: source, Target: target,
		Mode: mode, AllowExec: e.allowExec, Revision: revision, Secret: secret,
	}
	if trimSpace(source) != source {
		m.exact = source
	}
	return m, nil
}

// indexKey is the key of an entry that has no valid target.
func indexKey(index int) string { return fmt.Sprintf("#%d", index) }

func (e entry) kindInfo() (KindInfo, string) {
	if e.kind.fault != "" {
		return KindInfo{}, "kind " + e.kind.fault
	}
	kind := trimSpace(e.kind.text)
	info, ok := Kind(kind).Info()
	if !ok {
		return KindInfo{}, called("kind", kind) + " is not one that can be mounted"
	}
	return info, ""
}

// access reads mode and allow_exec. Neither has a fallback: a mode that is
// mistyped must not become the writable one.
func (e entry) access() (Mode, string) {
	if e.mode.fault != "" {
		return "", "mode " + e.mode.fault
	}
	mode := Mode(strings.ToLower(trimSpace(e.mode.text)))
	if mode != ReadOnly && mode != ReadWrite {
		return "", called("mode", e.mode.text) + ` is neither "ro" nor "rw"`
	}
	if e.allowExecFault != "" {
		return "", "allow_exec " + e.allowExecFault
	}
	return mode, ""
}

func (e entry) cleanSource(info KindInfo) (string, string) {
	if e.source.fault != "" {
		return "", "source " + e.source.fault
	}
	text := e.source.text
	if !e.exact || !info.relative {
		text = trimSpace(text)
	}
	cleaned, problem := info.source(text)
	if problem != "" {
		return "", called("source", text) + " " + problem
	}
	return cleaned, ""
}

// cleanRevision wants a pinned commit of git. Other kinds have no use for a
// revision; it is kept, because it is part of their hash.
func (e entry) cleanRevision(kind Kind) (string, string) {
	if e.revision.fault != "" {
		return "", "revision " + e.revision.fault
	}
	revision := trimSpace(e.revision.text)
	switch {
	case kind == KindGit && (len(revision) != 40 || !within(revision, 40, isLowerHex)):
		return "", called("revision", revision) + " is not a commit id of 40 lower-case hex digits: pin the commit, not a branch or a tag"
	case revision != "" && !within(revision, 128, isPrintable):
		return "", called("revision", revision) + " is not printable ASCII of at most 128 characters"
	}
	return revision, ""
}

func (e entry) cleanSecret() (string, string) {
	if e.secret.fault != "" {
		return "", "secret " + e.secret.fault
	}
	secret := trimSpace(e.secret.text)
	if secret != "" && !validSecretName(secret) {
		// Never repeated: somebody may have written the secret itself.
		return "", "secret is not the name of a Kubernetes Secret: use lower-case letters, digits, '-' and '.'"
	}
	return secret, ""
}
