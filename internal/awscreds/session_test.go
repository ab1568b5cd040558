package awscreds_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/internal/awscreds"
	"github.com/datalayer/node-mounts/internal/secret"
)

func data(values map[string]string) secret.Data {
	out := map[string][]byte{}
	for k, v := range values {
		out[k] = []byte(v)
	}
	return secret.NewData(out)
}

func with(key, value string) map[string]string {
	v := keys("ADA", time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	v[key] = value
	return v
}

func TestASecretIsReadWithWhatKubectlAndIssuersMakeOfIt(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, text := range []string{
		"2026-03-01T12:00:00Z", "2026-03-01T12:00:00Z\n", "2026-03-01T13:00:00+01:00", "2026-03-01T12:00:00+00:00", "2026-03-01T12:00:00.000Z",
	} {
		s, err := awscreds.Parse(data(with("expiration", text)), "s")
		if err != nil || !s.Expiration.Equal(at) {
			t.Errorf("%q: %v %v", text, s.Expiration, err)
		}
	}
	s, err := awscreds.Parse(data(map[string]string{
		"access-key-id": "A\n", "secret-access-key": "s/+=\n", "region": " eu-central-1\n", "endpoint-url": "https://s3.example.org\n", "expiration": "", "other": "\x00",
	}), "s")
	if err != nil || !s.Expiration.IsZero() || s.Region != "eu-central-1" || s.EndpointURL != "https://s3.example.org" {
		t.Errorf("%q %q %v %v", s.Region, s.EndpointURL, s.Expiration, err)
	}
}

func TestAWrongSecretIsRefusedWithoutShowingIt(t *testing.T) {
	for what, c := range map[string]struct{ key, value, says string }{
		"no id":             {"access-key-id", "", "add that key"},
		"an id of spaces":   {"access-key-id", " \n", "add that key"},
		"no key":            {"secret-access-key", "", "add that key"},
		"two lines":         {"secret-access-key", canary + "\nx", "white space"},
		"a header":          {"access-key-id", canary + "\r\nX: y", "white space"},
		"a NUL":             {"session-token", canary + "\x00", "control character"},
		"no text":           {"session-token", canary + "\xff", "no text"},
		"a book":            {"session-token", canary + strings.Repeat("x", 32<<10), "longer"},
		"a day":             {"expiration", "2026-03-01", "RFC 3339"},
		"a number":          {"expiration", "1772366400", "RFC 3339"},
		"something else":    {"expiration", canary, "RFC 3339"},
		"no time":           {"expiration", "0001-01-01T00:00:00Z", "RFC 3339"},
		"a flag":            {"region", "-" + canary, "name of a region"},
		"a path":            {"region", canary + "/x", "name of a region"},
		"letters of others": {"region", canary + "é", "name of a region"},
	} {
		_, err := awscreds.Parse(data(with(c.key, c.value)), "the-secret")
		refused, ok := errors.AsType[*secret.RefusedError](err)
		if !ok || !strings.Contains(refused.Reason, c.says) || !strings.Contains(refused.Reason, c.key) || !strings.Contains(refused.Reason, "the-secret") {
			t.Errorf("%s: %v", what, err)
		}
		if strings.Contains(fmt.Sprintf("%+v", err), canary) {
			t.Errorf("%s: shown: %v", what, err)
		}
	}
}

func TestNoPrintOfASessionShowsIt(t *testing.T) {
	values := with("region", canary)
	values["endpoint-url"] = "https://" + canary + ".example.org"
	s, err := awscreds.Parse(data(values), "s")
	if err != nil {
		t.Fatal(err)
	}
	holder := struct{ S awscreds.Session }{s}
	asJSON, err := json.Marshal(holder)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "session", s, "pointer", &s, "holder", holder)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "session", s, "pointer", &s, "holder", holder)
	texts := []string{string(asJSON), log.String()}
	for _, verb := range strings.Fields("%v %+v %#v %s %q %x %X %d") {
		texts = append(texts, fmt.Sprintf(verb, s), fmt.Sprintf(verb, &s), fmt.Sprintf(verb, holder))
	}
	for _, text := range texts {
		if strings.Contains(text, canary) || strings.Contains(text, fmt.Sprintf("%x", canary)) || !strings.Contains(text, "redacted") {
			t.Errorf("printed: %s", text)
		}
	}
}
