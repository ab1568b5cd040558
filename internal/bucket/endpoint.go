package bucket

import (
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/datalayer/node-mounts/internal/netaddr"
)

// Endpoints are the rules for the endpoint that a Secret names. Those of the zero
// value are the strictest.
type Endpoints struct {
	// Insecure lets them be http:// too.
	Insecure bool
	// Allow are hosts, as "host" or "host:port", that may be named whatever Deny and
	// the rules below say of their address. Lower case; IPv6 without brackets where
	// there is no port.
	Allow []string
	// Deny are addresses that may not be named, beside loopback, link-local ones and
	// those of metadata services: the API server's, the nodes'.
	Deny []netip.Prefix
}

const maxEndpoint = 2048

// endpoint is a URL that has been looked at.
type endpoint struct {
	scheme, host, port, path string // host in lower case, IPv6 without brackets
}

func (e endpoint) String() string {
	host := e.host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if e.port != "" {
		host += ":" + e.port
	}
	return e.scheme + "://" + host + e.path
}

// amazon tells whether it is one of AWS, where SDKs know how buckets are addressed.
func (e endpoint) amazon() bool {
	return slices.ContainsFunc([]string{"amazonaws.com", "amazonaws.com.cn", "api.aws"}, func(domain string) bool {
		return strings.HasSuffix(e.host, "."+domain)
	})
}

// parseEndpoint takes a URL apart. What it returns is made of what was looked at
// alone, so that no reader of URLs can see another host in it. problem is the second
// half of a sentence and never repeats the text.
func parseEndpoint(text string) (e endpoint, problem string) {
	if len(text) > maxEndpoint {
		return e, "is longer than 2048 bytes: use a shorter URL"
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Opaque != "":
		return e, "is no URL: write it as https://s3.example.org"
	case u.Scheme != "https" && u.Scheme != "http":
		return e, "is no https:// URL: write it as https://s3.example.org"
	case u.User != nil:
		return e, "has credentials in it: leave them out, they are keys of the Secret"
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.Contains(text, "#"):
		return e, "has a query or a fragment: write the URL without it"
	}
	e = endpoint{scheme: u.Scheme, host: strings.TrimSuffix(strings.ToLower(u.Hostname()), "."), port: u.Port()}
	if strings.HasSuffix(u.Host, ":") {
		return e, "has a colon and no port: leave it out"
	}
	if e.port != "" {
		if n, err := strconv.ParseUint(e.port, 10, 16); err != nil || n == 0 {
			return e, "has a port that is not a number from 1 to 65535"
		}
	}
	if !plainHost(e.host) {
		return e, "does not name a host: use a DNS name, an IPv4 address, or an IPv6 address in brackets"
	}
	for segment := range strings.SplitSeq(strings.Trim(u.EscapedPath(), "/"), "/") {
		if segment == "" && strings.Trim(u.Path, "/") == "" {
			break
		}
		if segment == "" || segment == "." || segment == ".." || !within(segment, "-._~") {
			return e, "has a path that is not plain: use letters, digits, '.', '_', '~' and '-'"
		}
		e.path += "/" + segment
	}
	return e, ""
}

func within(text, others string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(others, r)
	})
}

// plainHost tells whether it is an address as everybody writes it, or a name. What
// ends in a number is an address to some readers ("127.1", "0x7f000001") and a name
// to others: it is neither here.
func plainHost(host string) bool {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Zone() == ""
	}
	if host == "" || len(host) > 253 {
		return false
	}
	labels := strings.Split(host, ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 || !within(label, "-_") || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
	}
	last := labels[len(labels)-1]
	return strings.Trim(last, "0123456789") != "" && !strings.HasPrefix(last, "0x")
}

// check says what speaks against the endpoint of a Secret, "" for nothing.
func (r Endpoints) check(e endpoint) (problem string) {
	if e.scheme != "https" && !r.Insecure {
		return "is not https, and this node allows nothing else"
	}
	port := e.port
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[e.scheme]
	}
	for _, allowed := range r.Allow {
		if allowed == e.host || allowed == e.host+":"+port || allowed == "["+e.host+"]:"+port {
			return ""
		}
	}
	const problemAddress = "names an address or a host that buckets are not read from on this node (loopback, link-local, metadata, the API server, or one the administrator denies): use another endpoint, or ask for it to be allowed"
	if a, err := netip.ParseAddr(e.host); err == nil {
		if netaddr.Special(a) != netaddr.Usual || netaddr.Within(r.Deny, a) {
			return problemAddress
		}
		return ""
	}
	if reserved(e.host) {
		return problemAddress
	}
	return ""
}

// reserved are names that lead where no bucket is, in every cluster and cloud.
func reserved(host string) bool {
	if slices.Contains([]string{
		"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback",
		"metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc",
	}, host) {
		return true
	}
	return strings.HasSuffix(host, ".localhost") || strings.HasPrefix(host, "kubernetes.default.svc.")
}
