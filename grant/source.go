package grant

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"
)

// Limits of sources, in bytes. The first two are the kernel's PATH_MAX and
// NAME_MAX: a longer path could only fail later, with ENAMETOOLONG.
const (
	maxPath    = 4096
	maxSegment = 255
	maxRemote  = 2048
)

const (
	problemWalks  = `has a "." or ".." segment: write the path without them`
	problemHost   = "does not name a host: use a DNS name, an IPv4 address, or an IPv6 address in brackets"
	problemSpaced = "has white space or a control character: remove it"
)

// relativeSource reads a path beneath the claim. openat2 with RESOLVE_BENEATH
// accepts "a/../b", which names another folder than the one somebody reviewed:
// ".." is refused here, by its text.
func relativeSource(text string) (cleaned, problem string) {
	if strings.ContainsAny(text, "\\\x00") {
		return "", `has a backslash or a NUL: separate folders with "/"`
	}
	cleaned, problem = joinSegments(text)
	switch {
	case problem != "":
		return "", problem
	case cleaned == "":
		return "", "names no folder: write a path beneath the claim"
	case len(cleaned) > maxPath:
		return "", "is longer than 4096 bytes: use a shorter path"
	}
	return cleaned, ""
}

// joinSegments drops empty segments, and with them slashes at both ends.
func joinSegments(text string) (joined, problem string) {
	var b strings.Builder
	for segment := range strings.SplitSeq(text, "/") {
		switch {
		case segment == "":
			continue
		case segment == "." || segment == "..":
			return "", problemWalks
		case len(segment) > maxSegment:
			return "", "has a segment longer than 255 bytes: use shorter names"
		}
		if b.Len() > 0 {
			b.WriteByte('/')
		}
		b.WriteString(segment)
	}
	return b.String(), ""
}

// bucketSource reads bucket[/prefix]. Bucket names differ between object stores,
// so only what could be mistaken for something else is refused.
func bucketSource(text string) (cleaned, problem string) {
	cleaned, problem = relativeSource(text)
	if problem != "" {
		return "", problem
	}
	bucket, _, _ := strings.Cut(cleaned, "/")
	if !within(bucket, maxSegment, isName) || bucket[0] == '-' {
		return "", "does not start with a bucket name: use letters, digits, '.', '_' and '-'"
	}
	return cleaned, ""
}

// bridgeSource reads the uid of a bridge, which becomes part of a URL.
func bridgeSource(text string) (cleaned, problem string) {
	cleaned, problem = relativeSource(text)
	if problem != "" {
		return "", problem
	}
	if !within(cleaned, maxSegment, isName) || cleaned[0] == '-' {
		return "", "is not the uid of a bridge: use one segment of letters, digits, '.', '_' and '-'"
	}
	return cleaned, ""
}

// nfsSource reads host:/export. Inside the export empty segments are dropped, as
// in a path beneath the claim ("h:/a//b/" is "h:/a/b"); one that begins with "//"
// is refused. The kernel takes mount options as a list separated by commas, so a
// comma in the export could add one.
func nfsSource(text string) (cleaned, problem string) {
	if len(text) > maxRemote {
		return "", "is longer than 2048 bytes: use a shorter export"
	}
	host, export, found := cutHost(text)
	// "nfs://server/export" would otherwise name an export of a host called nfs.
	if !found || !strings.HasPrefix(export, "/") || strings.HasPrefix(export, "//") {
		return "", "is not of the form host:/export"
	}
	if !validHost(host) {
		return "", problemHost
	}
	if strings.ContainsFunc(export, isSpaceOrControl) {
		return "", problemSpaced
	}
	if strings.ContainsAny(export, ",\\") {
		return "", "has a comma or a backslash in its export: remove it, mount options are not part of a source"
	}
	joined, problem := joinSegments(export)
	if problem != "" {
		return "", problem
	}
	return host + ":/" + joined, ""
}

// gitSource reads the URL of a repository. Only transports that cannot reach the
// node's own files or run a command of the URL's choice are left; nothing in it
// can be taken for a flag by git or ssh.
func gitSource(text string) (cleaned, problem string) {
	if len(text) > maxRemote {
		return "", "is longer than 2048 bytes: use a shorter URL"
	}
	if strings.ContainsFunc(text, isSpaceOrControl) {
		return "", problemSpaced
	}
	if strings.ContainsAny(text, `?#\`) {
		return "", "has a query, a fragment or a backslash: write the URL without it"
	}
	if rest, ok := strings.CutPrefix(text, "https://"); ok {
		return text, urlProblem(rest)
	}
	if rest, ok := strings.CutPrefix(text, "ssh://git@"); ok {
		return text, urlProblem(rest)
	}
	if rest, ok := strings.CutPrefix(text, "git@"); ok && !strings.Contains(text, "://") {
		host, path, found := cutHost(rest)
		if !found || !validHost(host) {
			return "", problemHost
		}
		return text, repositoryProblem(strings.TrimPrefix(path, "/"))
	}
	return "", "is not an https://, ssh://git@ or git@host:path address without other credentials"
}

// urlProblem checks host[:port]/path. git and servers decode per-cent escapes at
// different places, so the path must be harmless before and after decoding.
func urlProblem(rest string) string {
	authority, path, _ := strings.Cut(rest, "/")
	if strings.Contains(authority, "@") {
		return "has credentials in its address: name a Secret instead"
	}
	host := authority
	if i := strings.LastIndexByte(authority, ':'); i > strings.LastIndexByte(authority, ']') {
		port, err := strconv.ParseUint(authority[i+1:], 10, 16)
		if err != nil || port == 0 {
			return "has a port that is not a number from 1 to 65535"
		}
		host = authority[:i]
	}
	if !validHost(host) {
		return problemHost
	}
	if problem := repositoryProblem(path); problem != "" {
		return problem
	}
	decoded, err := url.PathUnescape(path)
	if err != nil {
		return "has a per-cent sign that starts no escape: write it as %25"
	}
	if strings.ContainsFunc(decoded, unicode.IsControl) || strings.Contains(decoded, `\`) {
		return "hides a control character or a backslash in an escape: remove it"
	}
	return repositoryProblem(decoded)
}

// repositoryProblem checks the path of a repository; one slash may end it.
func repositoryProblem(path string) string {
	for segment := range strings.SplitSeq(strings.TrimSuffix(path, "/"), "/") {
		switch {
		case segment == "":
			return "names no repository, or has an empty path segment"
		case segment == "." || segment == "..":
			return problemWalks
		case segment[0] == '-':
			return `has a path segment that starts with "-"`
		}
	}
	return ""
}

// cutHost splits host:rest, where an IPv6 host is in brackets.
func cutHost(text string) (host, rest string, found bool) {
	end := strings.IndexByte(text, ']') + 1
	if !strings.HasPrefix(text, "[") {
		end = 0
	}
	i := strings.IndexByte(text[end:], ':')
	if i < 0 {
		return "", "", false
	}
	return text[:end+i], text[end+i+1:], true
}

func validHost(host string) bool {
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, closed := strings.CutSuffix(inner, "]")
		address, err := netip.ParseAddr(inner)
		return closed && err == nil && address.Is6() && address.Zone() == ""
	}
	if len(host) > 253 {
		return false
	}
	// A name may end in the root's dot.
	for label := range strings.SplitSeq(strings.TrimSuffix(host, "."), ".") {
		ok := within(label, 63, func(c byte) bool { return isAlnum(c) || c == '-' || c == '_' })
		if !ok || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
	}
	return true
}

func isSpaceOrControl(r rune) bool { return isSpace(r) || unicode.IsControl(r) }
