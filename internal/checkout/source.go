package checkout

import (
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

type transport uint8

const (
	overHTTPS transport = iota
	overSSH
)

// remote is where a repository is.
type remote struct {
	transport transport
	url       string // as git is given it
	host      string // lower case, no brackets, no final dot
	port      uint16
}

var fullSHA = regexp.MustCompile(`\A[0-9a-f]{40}\z`)

// parseRemote takes a URL apart that grant has validated. It checks again what the
// pin depends on: a host that git reads otherwise than we do is one we did not check.
func parseRemote(text string) (remote, error) {
	r := remote{transport: overSSH, port: 22}
	var prefix, rest string
	switch {
	case strings.ContainsAny(text, "?#\\ \t\r\n\x00"):
		return remote{}, fail(Invalid, "the address has a character that no repository's address has")
	case strings.HasPrefix(text, "https://"):
		prefix, rest = "https://", text[len("https://"):]
		r.transport, r.port = overHTTPS, 443
	case strings.HasPrefix(text, "ssh://git@"):
		prefix, rest = "ssh://git@", text[len("ssh://git@"):]
	case strings.HasPrefix(text, "git@") && !strings.Contains(text, "://"):
		return scpRemote(r, text[len("git@"):])
	default:
		return remote{}, fail(Invalid, "the address is not https://, ssh://git@ or git@host:path")
	}
	authority, path, found := strings.Cut(rest, "/")
	if !found || path == "" || strings.Contains(authority, "@") {
		return remote{}, fail(Invalid, "the address names no repository, or holds a credential")
	}
	host := authority
	if i := strings.LastIndexByte(authority, ':'); i > strings.LastIndexByte(authority, ']') {
		port, err := strconv.ParseUint(authority[i+1:], 10, 16)
		if err != nil || port == 0 {
			return remote{}, fail(Invalid, "the address has a port that is none")
		}
		host, r.port = authority[:i], uint16(port)
	}
	if err := r.setHost(host); err != nil {
		return remote{}, err
	}
	r.url = prefix + r.bracketed()
	if r.port != map[transport]uint16{overHTTPS: 443, overSSH: 22}[r.transport] {
		r.url += ":" + strconv.Itoa(int(r.port))
	}
	r.url += "/" + path
	return r, nil
}

func scpRemote(r remote, rest string) (remote, error) {
	from := strings.IndexByte(rest, ']') + 1
	i := strings.IndexByte(rest[from:], ':')
	if i < 0 || rest[from+i+1:] == "" {
		return remote{}, fail(Invalid, "the address is not of the form git@host:path")
	}
	if err := r.setHost(rest[:from+i]); err != nil {
		return remote{}, err
	}
	r.url = "git@" + r.bracketed() + ":" + rest[from+i+1:]
	return r, nil
}

// setHost takes a name or an address. curl and getaddrinfo read "127.1", "0x7f.1"
// and "2130706433" as addresses, without asking the pin: a host whose last label is
// a number must be an address in its one canonical form.
func (r *remote) setHost(host string) error {
	bare, bracketed := strings.CutPrefix(host, "[")
	if bracketed {
		bare = strings.TrimSuffix(bare, "]")
	}
	bare = strings.ToLower(strings.TrimSuffix(bare, "."))
	if a, err := netip.ParseAddr(bare); err == nil {
		if a.Is6() != bracketed || a.Zone() != "" {
			return fail(Invalid, "the address has a host that is not written as one")
		}
		r.host = a.String()
		return nil
	}
	label := bare[strings.LastIndexByte(bare, '.')+1:]
	number := label == "" || label[0] >= '0' && label[0] <= '9'
	if bracketed || number || strings.HasPrefix(bare, "-") || strings.ContainsAny(bare, ":,/@%[]*!'\"") {
		return fail(Invalid, "the address has a host that is neither a name nor an address in its usual form")
	}
	r.host = bare
	return nil
}

// literal is the host's address where the host is one.
func (r remote) literal() (netip.Addr, bool) {
	a, err := netip.ParseAddr(r.host)
	return a, err == nil
}

func (r remote) bracketed() string {
	if strings.Contains(r.host, ":") {
		return "[" + r.host + "]"
	}
	return r.host
}

func (r remote) hostPort() string { return net.JoinHostPort(r.host, strconv.Itoa(int(r.port))) }
