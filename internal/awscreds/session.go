package awscreds

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"
	"unicode"

	"github.com/datalayer/node-mounts/internal/secret"
)

// Keys of a Secret. The first two must be there.
const (
	KeyAccessKeyID     = "access-key-id"
	KeySecretAccessKey = "secret-access-key"
	KeySessionToken    = "session-token"
	KeyExpiration      = "expiration"
	KeyRegion          = "region"
	KeyEndpointURL     = "endpoint-url"
)

// maxValue bounds one value. Session tokens have 2 KiB where few policies are in
// them, and some issuers' several times that.
const maxValue = 32 << 10

const redacted = "[redacted]"

// Session is what a Secret holds. No way of printing it shows it.
type Session struct {
	// Expiration is the zero time for keys that do not expire.
	Expiration time.Time
	// Region and EndpointURL are "" where the Secret has none. The URL has not been
	// looked at yet.
	Region, EndpointURL string

	keys secret.Data
}

// Format hides the content from every verb.
func (Session) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// String hides the content.
func (Session) String() string { return redacted }

// GoString hides the content from %#v.
func (Session) GoString() string { return redacted }

// LogValue hides the content from slog.
func (Session) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText hides the content from JSON, YAML and the like.
func (Session) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// expired tells whether the session can no longer be used.
func (s Session) expired(now time.Time) bool {
	return !s.Expiration.IsZero() && !now.Before(s.Expiration)
}

// ExpiredError says that a Secret holds a session that has expired.
type ExpiredError struct {
	Secret string
	At     time.Time
}

func (e *ExpiredError) Error() string {
	return fmt.Sprintf("the session in the Secret %q expired at %s: put a new one there", e.Secret, e.At.UTC().Format(time.RFC3339))
}

// required are the keys without which a Secret is refused by whoever reads it.
func required() []string { return []string{KeyAccessKeyID, KeySecretAccessKey} }

// Parse reads the session in a Secret called name. White space around a value is
// dropped: a file that a value was made from ends in a line break. A session that has
// expired is none that is refused here. The error is a *secret.RefusedError, which
// says which key is wrong and never what is in it.
func Parse(data secret.Data, name string) (Session, error) {
	values := map[string]string{}
	for _, key := range append(required(), KeySessionToken, KeyExpiration, KeyRegion, KeyEndpointURL) {
		b, _ := data.Value(key)
		value := strings.TrimSpace(string(b))
		if problem := valueProblem(value); problem != "" {
			return Session{}, refuse("the %q of the Secret %q %s", key, name, problem)
		}
		values[key] = value
	}
	for _, key := range required() {
		if values[key] == "" {
			return Session{}, refuse("the Secret %q has no %q: add that key", name, key)
		}
	}
	s := Session{Region: values[KeyRegion], EndpointURL: values[KeyEndpointURL]}
	if at := values[KeyExpiration]; at != "" {
		var err error
		if s.Expiration, err = time.Parse(time.RFC3339, at); err != nil || s.Expiration.IsZero() {
			return Session{}, refuse(`the %q of the Secret %q is no time of RFC 3339: write it as 2026-01-31T09:30:00Z`, KeyExpiration, name)
		}
	}
	if !isRegion(s.Region) {
		return Session{}, refuse("the %q of the Secret %q is no name of a region: use letters, digits, '.', '_' and '-'", KeyRegion, name)
	}
	keys := map[string][]byte{}
	for _, key := range append(required(), KeySessionToken) {
		keys[key] = []byte(values[key])
	}
	s.keys = secret.NewData(keys)
	return s, nil
}

func refuse(format string, args ...any) error {
	return &secret.RefusedError{Reason: fmt.Sprintf(format, args...)}
}

// valueProblem is what no value has. They become parts of headers, arguments and
// JSON, where a control character would begin something else.
func valueProblem(value string) string {
	switch {
	case len(value) > maxValue:
		return fmt.Sprintf("is longer than %d bytes: it is no value of that kind", maxValue)
	case strings.ContainsFunc(value, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) || r == unicode.ReplacementChar }):
		return "has white space, a control character or no text in it: write the value alone"
	}
	return ""
}

func isRegion(name string) bool {
	if len(name) > 64 || strings.HasPrefix(name, "-") {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("._-", r)
	})
}

// answer is the session as SDKs read it, with an expiration that is not after until.
func (s Session) answer(until time.Time) ([]byte, error) {
	if !s.Expiration.IsZero() && s.Expiration.Before(until) {
		until = s.Expiration
	}
	value := func(key string) string {
		b, _ := s.keys.Value(key)
		return string(b)
	}
	return json.Marshal(struct {
		AccessKeyID     string `json:"AccessKeyId"`
		SecretAccessKey string
		Token           string `json:",omitempty"`
		Expiration      string
	}{value(KeyAccessKeyID), value(KeySecretAccessKey), value(KeySessionToken), until.UTC().Format(time.RFC3339)})
}
