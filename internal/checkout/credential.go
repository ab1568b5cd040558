package checkout

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"slices"
	"strings"
)

// defaultUsername is what GitHub, GitLab and Gitea take beside a token.
const defaultUsername = "x-access-token"

// Credential is what a tenant's Secret holds. No way of printing it shows it.
type Credential struct {
	Token      string // https; Password counts when it is empty
	Username   string // https; "x-access-token" when it is empty
	Password   string
	SSHKey     []byte // ssh: a private key in PEM or OpenSSH form, without passphrase
	KnownHosts []byte // ssh: lines of known_hosts for the server
}

// String hides the content.
func (c Credential) String() string { return redacted }

// GoString hides the content from %#v.
func (c Credential) GoString() string { return redacted }

// Format hides the content from every verb.
func (c Credential) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LogValue hides the content from slog.
func (c Credential) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalJSON hides the content.
func (c Credential) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText hides the content from YAML and the like.
func (c Credential) MarshalText() ([]byte, error) { return []byte(redacted), nil }

func (c *Credential) username() string {
	if c.Username != "" {
		return c.Username
	}
	return defaultUsername
}

func (c *Credential) password() string {
	if c.Token != "" {
		return c.Token
	}
	return c.Password
}

// What a Secret may hold is more than any server takes: of a longer one git falls
// silent, and so would the server.
const (
	maxUsername = 1 << 10
	maxPassword = 16 << 10
	maxKey      = 64 << 10
)

// usable says why a credential cannot serve a transport.
func (c *Credential) usable(t transport) error {
	switch {
	case t == overSSH && c == nil:
		return fail(AuthRefused, "an ssh address needs a Secret with ssh-privatekey and known_hosts")
	case c == nil:
		return nil
	case t == overSSH && (len(c.SSHKey) == 0 || len(c.KnownHosts) == 0):
		return fail(AuthRefused, "the Secret has no ssh-privatekey or no known_hosts, which an ssh address needs")
	case t == overHTTPS && c.password() == "":
		return fail(AuthRefused, "the Secret has no token and no password, which an https address needs")
	case len(c.Username) > maxUsername || len(c.Token) > maxPassword || len(c.Password) > maxPassword ||
		len(c.SSHKey) > maxKey || len(c.KnownHosts) > maxKey:
		return fail(AuthRefused, fmt.Sprintf("a value of the Secret is too long: no server takes a username of more than %d bytes, a token or password of more than %d, an ssh-privatekey or known_hosts of more than %d",
			maxUsername, maxPassword, maxKey))
	case t == overHTTPS && strings.Contains(c.username(), ":"):
		return fail(AuthRefused, "the Secret's username has a colon, which https cannot send: remove it")
	case t == overHTTPS && strings.ContainsAny(c.username()+c.password(), "\n\r\x00"):
		return fail(AuthRefused, "the Secret's username, token or password has a line break or a NUL: remove it")
	}
	return nil
}

// secrets are the texts that must not be in any output: as they are, and in the
// forms that https and its errors carry them in. Longest first, so that none hides
// a part of another.
func (c *Credential) secrets() []string {
	if c == nil {
		return nil
	}
	var all []string
	for _, s := range []string{c.Token, c.Password, c.Username} {
		// A password of one or two letters would take every such letter out of the
		// message and show by the gaps what it is.
		if len(s) < 3 {
			continue
		}
		all = append(all, s, url.QueryEscape(s), url.PathEscape(s),
			base64.StdEncoding.EncodeToString([]byte(c.username()+":"+s)))
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	return slices.Compact(all)
}

// digest tells credentials apart without keeping them. salt is of this process, so
// that a digest says nothing to anybody else.
func (c *Credential) digest(salt []byte) string {
	if c == nil {
		return ""
	}
	h := sha256.New()
	h.Write(salt)
	for _, part := range [][]byte{[]byte(c.username()), []byte(c.password()), c.SSHKey, c.KnownHosts} {
		_, _ = fmt.Fprintf(h, "%d:", len(part))
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil))
}
