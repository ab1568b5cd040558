package operator

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/datalayer/node-mounts/grant"
)

// ContentType says where a content of an environment comes from.
type ContentType string

// The types of contents, and the kind that each is granted as.
const (
	ContentGit ContentType = "git" // git
	ContentNFS ContentType = "nfs" // shared-folder, or nfs where it names a server
	ContentS3  ContentType = "s3"  // cloud-storage
)

// Content is one thing that an environment promises its sandboxes. A field that
// its type does not use has to be empty: it would say that the type is mistyped.
type Content struct {
	// Name is what people call it. It is the uid of the grant.
	Name string
	// Target is the folder's name in the sandbox; empty means that it is made of
	// Name.
	Target string
	Type   ContentType

	URL      string // git: the repository, without credentials
	Revision string // git: the full commit id
	// Private: the repository is fetched with a credential. A bucket always is.
	Private bool

	Server string // nfs: the host of an export; empty means the shared claim
	Path   string // nfs: the export of Server, from its root
	// SubPath is the folder beneath the shared claim, of a content of type nfs that
	// names no Server.
	SubPath string

	Bucket string // s3
	Prefix string // s3: what the keys begin with; empty means the whole bucket

	// Mode is the most that the environment permits; empty means read-only.
	Mode grant.Mode
	// NoExec forbids programs in a repository. Data never has any.
	NoExec bool
}

// Launch is what contents are granted for.
type Launch struct {
	// Pod owns the Secrets of the contents that need one. Its uid is part of their
	// names.
	Pod Pod
	// Serves are the kinds that the deployment's agents serve.
	Serves []grant.Kind
	// Credentials: the agents may read the Secrets that grants name.
	Credentials bool
	// Mode narrows all contents; empty leaves to each what it permits.
	Mode grant.Mode
	// Beside are the launch's own mounts, whose targets no content may have. None
	// is fine: contents are the environment's promise, not the launch's wish.
	Beside []grant.Mount
}

// Granted is what the contents of an environment come to.
type Granted struct {
	// Mounts are those of the contents alone, in their order, clean.
	Mounts []grant.Mount
	// Secrets have to be there before the mounts are granted: see [OwnSecret].
	Secrets []SecretNeeded
	// Unserved are the contents that are right and yet cannot be granted here. A
	// launch that has any needs a Pod of its own, made with them.
	Unserved []Unserved
}

// SecretNeeded is a Secret that a mount names.
type SecretNeeded struct {
	Index  int // of the content
	Target string
	Kind   grant.Kind
	Name   string // of the Secret, in the Pod's namespace
}

// Unserved is a content that no agent of the deployment would mount, because of its
// kind or the Secret that it needs.
type Unserved struct {
	Index   int // of the content
	Kind    grant.Kind
	Refusal grant.Refusal // what an agent would answer
}

// ContentError lists everything that is wrong with the contents of an
// environment, in their order.
type ContentError struct {
	Problems []ContentProblem
}

// ContentProblem is one field of one content that cannot be used.
type ContentProblem struct {
	Field   string // "contents[2].revision"
	Code    grant.Code
	Message string // one sentence; it repeats nothing that may be a credential
}

// Error has a line for each problem.
func (e *ContentError) Error() string {
	lines := make([]string, 0, len(e.Problems)+1)
	lines = append(lines, "the contents cannot be granted:")
	for _, p := range e.Problems {
		lines = append(lines, "  "+p.Field+": "+p.Message)
	}
	return strings.Join(lines, "\n")
}

// errNoPod: the names of Secrets would be the same for every Pod.
var errNoPod = errors.New("contents need Secrets, and the Pod that is to own them is not named with its uid")

// Contents makes grants of an environment's contents. Nothing is added to them, a
// home folder least of all: whether there is one is for the launch to say. What a
// content permits and what the launch asks for narrow each other, and data is
// never executable.
//
// They are for a Pod of a pool. A Pod that was made with the contents in its spec
// would have each of them twice.
//
// The error is a [*ContentError] with every problem, or says that a Secret needs
// the Pod's uid.
func Contents(contents []Content, launch Launch) (Granted, error) {
	w := wanted{contents: contents, launch: launch, taken: make(map[string]string)}
	for i, m := range launch.Beside {
		w.taken[strings.TrimSpace(m.Target)] = fmt.Sprintf("a mount of the launch's own (%d)", i)
	}
	if !slices.Contains([]grant.Mode{"", grant.ReadOnly, grant.ReadWrite}, mode(launch.Mode)) {
		w.problem("launch.mode", grant.CodeInvalidGrant, `mode is neither "ro" nor "rw"`)
	}
	for i, c := range contents {
		w.content(i, c)
	}
	if len(w.problems) > 0 {
		return Granted{}, &ContentError{Problems: w.problems}
	}
	if len(w.granted.Secrets) > 0 && launch.Pod.UID == "" {
		return Granted{}, errNoPod
	}
	return w.granted, nil
}

// SecretName is the name of the Secret for a target of a Pod: the same each time,
// so that a launch that is tried again finds its Secret, and another for each Pod,
// because a Secret belongs to one. A target itself may be no name of a Secret.
func SecretName(pod Pod, target string) string {
	sum := sha256.Sum256([]byte(string(pod.UID) + "/" + target))
	return "node-mount-" + hex.EncodeToString(sum[:10])
}

// wanted collects what contents come to, and what is wrong with them.
type wanted struct {
	contents []Content
	launch   Launch
	taken    map[string]string // who has a target
	granted  Granted
	problems []ContentProblem
}

func (w *wanted) problem(field string, code grant.Code, format string, args ...any) {
	w.problems = append(w.problems, ContentProblem{Field: field, Code: code, Message: fmt.Sprintf(format, args...)})
}

func (w *wanted) content(i int, c Content) {
	before := len(w.problems)
	field := fmt.Sprintf("contents[%d].", i)
	target := w.target(field, i, c)
	m, known := w.source(field, c)
	if !known {
		return
	}
	w.foreign(field, c)
	if !slices.Contains([]grant.Mode{"", grant.ReadOnly, grant.ReadWrite}, mode(c.Mode)) {
		w.problem(field+"mode", grant.CodeInvalidGrant, `mode is neither "ro" nor "rw"`)
	}
	if c.Private && c.Type == ContentNFS {
		w.problem(field+"private", grant.CodeSecretRefused, "NFS uses no credential: the server decides by the node's address")
	}
	if len(w.problems) > before {
		return
	}
	info, _ := m.Kind.Info()
	m.UID, m.Target = c.Name, target
	m.Mode = narrow(info, c.Mode, w.launch.Mode)
	// A repository holds programs as well, which the commit has pinned.
	m.AllowExec = m.Kind == grant.KindGit && !c.NoExec
	if c.Private || m.Kind == grant.KindCloudStorage {
		m.Secret = SecretName(w.launch.Pod, target)
	}
	m, err := grant.Clean(m)
	if refusal := (*grant.Refusal)(nil); errors.As(err, &refusal) {
		w.problem(strings.TrimSuffix(field, "."), refusal.Code, "%s", refusal.Message)
		return
	}
	if refusal := w.unserved(info, m); refusal != nil {
		w.granted.Unserved = append(w.granted.Unserved, Unserved{Index: i, Kind: m.Kind, Refusal: *refusal})
		return
	}
	w.granted.Mounts = append(w.granted.Mounts, m)
	if m.Secret != "" {
		w.granted.Secrets = append(w.granted.Secrets, SecretNeeded{Index: i, Target: target, Kind: m.Kind, Name: m.Secret})
	}
}

// narrow is the most that everybody permits. A shared checkout is read-only
// whatever anybody says.
func narrow(info grant.KindInfo, content, launch grant.Mode) grant.Mode {
	if info.ReadOnly || mode(content) != grant.ReadWrite || mode(launch) == grant.ReadOnly {
		return grant.ReadOnly
	}
	return grant.ReadWrite
}

func mode(m grant.Mode) grant.Mode {
	return grant.Mode(strings.ToLower(strings.TrimSpace(string(m))))
}

// unserved is what the deployment's agents would answer to a mount that none of
// them makes, and nil for any other.
func (w *wanted) unserved(info grant.KindInfo, m grant.Mount) *grant.Refusal {
	var code grant.Code
	what := fmt.Sprintf("no agent of this deployment serves the kind %q: turn %s on", info.Kind, info.Switch)
	switch {
	case slices.Contains(w.launch.Serves, m.Kind) && (m.Secret == "" || w.launch.Credentials):
		return nil
	case slices.Contains(w.launch.Serves, m.Kind):
		code = grant.CodeSecretRefused
		what = "no agent of this deployment may read Secrets: turn nodeMountGateway.credentials on"
	case info.Delivery == grant.DeliveryProcess:
		code = grant.CodeProcessUnsupported
	default:
		code = grant.CodeUnsupportedKind
	}
	return &grant.Refusal{Key: m.Target, Code: code, Message: what}
}
