package operator

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/datalayer/node-mounts/grant"
)

// anyCommit stands in where a rule is asked about another field.
const anyCommit = "0000000000000000000000000000000000000000"

// refusal is what the rules of grants say of a mount, nil where they accept it.
// They stop at the first field that is wrong, so each is asked about by itself.
func refusal(m grant.Mount) *grant.Refusal {
	if m.Target == "" {
		m.Target = "t"
	}
	if m.Kind == grant.KindGit && m.Revision == "" {
		m.Revision = anyCommit
	}
	var refused *grant.Refusal
	if _, err := grant.Clean(m); errors.As(err, &refused) {
		return refused
	}
	return nil
}

// accepts notes what the rules have against a mount as a problem of the field.
func (w *wanted) accepts(field string, m grant.Mount) bool {
	if refused := refusal(m); refused != nil {
		w.problem(field, refused.Code, "%s", refused.Message)
		return false
	}
	return true
}

// target is the content's own, or made of its name, and nobody else's.
func (w *wanted) target(field string, i int, c Content) string {
	field, target := field+"target", strings.TrimSpace(c.Target)
	if target == "" {
		field = strings.TrimSuffix(field, "target") + "name"
		var problem string
		if target, problem = targetOf(c.Name); problem != "" {
			w.problem(field, grant.CodeInvalidTarget, "%s", problem)
			return ""
		}
	}
	if !w.accepts(field, grant.Mount{Source: "s", Target: target}) {
		return ""
	}
	if who, taken := w.taken[target]; taken {
		w.problem(field, grant.CodeInvalidTarget, "the target %q is that of %s: give one of them another", target, who)
		return target
	}
	w.taken[target] = fmt.Sprintf("contents[%d]", i)
	return target
}

// targetOf makes a target of a name: what no target may have becomes a hyphen. A
// name with letters of other scripts is refused, because it would lose them, and
// two names might become one.
func targetOf(name string) (target, problem string) {
	name = strings.TrimSpace(name)
	if name == "" {
		return "", "there is neither a name nor a target: give it one of them"
	}
	var b strings.Builder
	for _, r := range name {
		switch {
		case r == '/' || r == '\\' || r == utf8.RuneError || r > unicode.MaxASCII || unicode.IsControl(r):
			return "", "the name cannot become a target, because of a slash, a control character or a letter that is not ASCII: give it a target"
		case r == '.' || r == '_' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z':
			b.WriteRune(r)
		default:
			b.WriteByte('-')
		}
	}
	target = strings.TrimRight(strings.TrimLeft(b.String(), ".-"), "-")
	if target == "" {
		return "", "the name has no letter or digit that a target could have: give it a target"
	}
	return target, ""
}

// source is the kind and the source of a content, and whether its type is known.
func (w *wanted) source(field string, c Content) (grant.Mount, bool) {
	switch c.Type {
	case ContentGit:
		return w.repository(field, c), true
	case ContentNFS:
		return w.folder(field, c), true
	case ContentS3:
		return w.bucket(field, c), true
	}
	w.problem(field+"type", grant.CodeUnsupportedKind, `the type is none of "git", "nfs" and "s3"`)
	return grant.Mount{}, false
}

func (w *wanted) repository(field string, c Content) grant.Mount {
	m := grant.Mount{Kind: grant.KindGit, Source: c.URL}
	if w.required(field+"url", c.URL) {
		w.accepts(field+"url", m)
	}
	if w.required(field+"revision", c.Revision) {
		w.accepts(field+"revision", grant.Mount{Kind: grant.KindGit, Source: "https://h/r", Revision: c.Revision})
	}
	m.Revision = c.Revision
	return m
}

// folder is one of the shared claim, or an export of a server of its own.
func (w *wanted) folder(field string, c Content) grant.Mount {
	server, path := strings.TrimSpace(c.Server), strings.TrimSpace(c.Path)
	if server == "" {
		if path != "" {
			w.problem(field+"server", grant.CodeInvalidSource, "a path is that of a server's export: name the server, or write a sub-path of the shared claim")
			return grant.Mount{}
		}
		m := grant.Mount{Kind: grant.KindSharedFolder, Source: c.SubPath}
		if w.required(field+"subPath", c.SubPath) {
			w.accepts(field+"subPath", m)
		}
		return m
	}
	if c.SubPath != "" {
		w.problem(field+"subPath", grant.CodeInvalidSource, "a sub-path is one of the shared claim, and the content names a server: write the whole path")
	}
	// Only an IPv6 address has colons. Without brackets a server of "h:/a" would
	// choose the export, and its path would not.
	host := server
	if strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		host = "[" + host + "]"
	}
	if strings.Contains(host, "/") || refusal(grant.Mount{Kind: grant.KindNFS, Source: host + ":/"}) != nil {
		w.problem(field+"server", grant.CodeInvalidSource, "the server is no host: use a DNS name or an address")
		host = "h"
	}
	m := grant.Mount{Kind: grant.KindNFS, Source: host + ":" + path}
	if w.required(field+"path", path) {
		w.accepts(field+"path", m)
	}
	return m
}

// bucket joins the prefix onto the bucket. The slash at its end keeps white space
// before it: such a prefix is another one.
func (w *wanted) bucket(field string, c Content) grant.Mount {
	bucket, prefix := strings.TrimSpace(c.Bucket), strings.TrimSpace(c.Prefix)
	named := w.required(field+"bucket", bucket)
	switch {
	case !named:
	case strings.Contains(bucket, "/"):
		w.problem(field+"bucket", grant.CodeInvalidSource, "the bucket has a slash: write what follows as the prefix")
		named = false
	default:
		named = w.accepts(field+"bucket", grant.Mount{Kind: grant.KindCloudStorage, Source: bucket})
	}
	if !named {
		bucket = "b"
	}
	m := grant.Mount{Kind: grant.KindCloudStorage, Source: bucket + "/" + prefix + "/"}
	if prefix != "" {
		w.accepts(field+"prefix", m)
	}
	return m
}

func (w *wanted) required(field, text string) bool {
	if strings.TrimSpace(text) != "" {
		return true
	}
	w.problem(field, grant.CodeInvalidSource, "it is empty: a content of this type needs it")
	return false
}

// foreign finds fields that the content's type does not use.
func (w *wanted) foreign(field string, c Content) {
	for _, f := range []struct {
		of         ContentType
		name, text string
	}{
		{ContentGit, "url", c.URL},
		{ContentGit, "revision", c.Revision},
		{ContentNFS, "server", c.Server},
		{ContentNFS, "path", c.Path},
		{ContentNFS, "subPath", c.SubPath},
		{ContentS3, "bucket", c.Bucket},
		{ContentS3, "prefix", c.Prefix},
	} {
		if f.of != c.Type && f.text != "" {
			w.problem(field+f.name, grant.CodeInvalidGrant, "a content of type %q has none: remove it, or correct the type", c.Type)
		}
	}
}
