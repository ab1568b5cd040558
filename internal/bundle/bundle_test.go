package bundle

import (
	"archive/tar"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestWhatLooksLikeASecretIsTakenOut(t *testing.T) {
	r := NewRedactor(nil, nil)
	for text, want := range map[string]string{
		"clone https://ada:CANARY@example.org/repo now":    "clone https://(removed)@example.org/repo now",
		"https://CANARY@example.org":                       "https://(removed)@example.org",
		"https://ada:CAN@ARY@example.org/x":                "https://(removed)@example.org/x",
		"get https://s3.example.org/b?X-Amz=CANARY&b=1 ok": "get https://s3.example.org/b?(removed) ok",
		`url="https://x.org/a?k=CANARY"`:                   `url="https://x.org/a?(removed)"`,
		"Authorization: Bearer CANARY123456":               "Authorization: (removed)",
		"authorization Bearer CANARY.123456":               "authorization Bearer (removed)",
		"password=CANARY rest":                             "password=(removed) rest",
		"DB_PASSWORD: CANARY":                              "DB_PASSWORD: (removed)",
		`{"token":"CANARY","x":1}`:                         `{"token":"(removed)","x":1}`,
		"run --api-token CANARY -v":                        "run --api-token (removed) -v",
		"AWS_SECRET_ACCESS_KEY=CANARY":                     "AWS_SECRET_ACCESS_KEY=(removed)",
		"id AKIACANARY123456789 used":                      "id (removed) used",
		"jwt eyJCANARYaaa.eyJCANARYbbb.CANARY_x":           "jwt (removed)",
		"ghp_CANARYCANARYCANARY":                           "(removed)",
		"-----BEGIN RSA PRIVATE KEY-----\nCANARY\n":        "(removed)",
		"mounted home/users/ada as ada, rw,nosuid,nodev":   "mounted home/users/ada as ada, rw,nosuid,nodev",
		"code NODE_MOUNT_GATEWAY_SECRET_REFUSED":           "code NODE_MOUNT_GATEWAY_SECRET_REFUSED",
		"10.0.0.1:/export at /mnt/a@b":                     "10.0.0.1:/export at /mnt/a@b",
	} {
		if got := r.Text(text); got != want || strings.Contains(got, "CANARY") {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestKnownValuesAreTakenOutUnlessTheyArePartOfANameOrAWord(t *testing.T) {
	r := NewRedactor([]string{"hunter2hunter2", "hunter2", "abc", "sandbox", ""}, []string{"my-sandbox"})
	if got := r.Text("hunter2hunter2 hunter2 abc sandbox"); got != "(removed) (removed) abc sandbox" {
		t.Errorf("%q", got)
	}
}

func TestADocumentStaysJSONAndKeepsWhatIsNoSecret(t *testing.T) {
	r := NewRedactor([]string{`quo"ted\`}, nil)
	b, err := r.Document(map[string]any{
		"password": "CANARY", "secret": "name-of-a-secret", "secretName": "x", "n": 1,
		"deep": []any{map[string]any{"Session-Key": "CANARY", "url": `https://a:CANARY@h/?q=CANARY"x`, "text": `see quo"ted\ and <b>`}},
	})
	var got map[string]any
	if err := errors.Join(err, json.Unmarshal(b, &got)); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	if strings.Contains(string(b), "CANARY") || got["secret"] != "name-of-a-secret" || got["secretName"] != "x" || got["n"] != 1.0 ||
		!strings.Contains(string(b), "see (removed) and <b>") {
		t.Errorf("%s", b)
	}
	if line := r.Line(`{"msg":"password=CANARY","token":"CANARY"}`); line != `{"msg":"password=(removed)","token":"(removed)"}` {
		t.Errorf("%s", line)
	}
	if line := r.Line(`panic: token=CANARY`); line != `panic: token=(removed)` {
		t.Errorf("%s", line)
	}
}

func sample() *Bundle {
	b := New("debug-x", time.Unix(1e9, 0), NewRedactor(nil, nil))
	b.Document("pod.json", "the Pod", map[string]string{"name": "x"})
	b.Lines("agent.log", "the log", []string{"one", "token=CANARY"})
	b.Miss("node.json", errors.New("forbidden: https://a:CANARY@host\nsecond line"))
	b.Document("broken.json", "what is none", func() {})
	return b
}

func TestABundleSaysWhatIsInItAndWhatCouldNotBeRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.tar.gz")
	if err := sample().Write(path); err != nil {
		t.Fatal(err)
	}
	got := unpack(t, path)
	if len(got) != 3 || got["debug-x/agent.log"] != "one\ntoken=(removed)\n" || !strings.Contains(got["debug-x/pod.json"], `"name": "x"`) {
		t.Errorf("%v", got)
	}
	readme := got["debug-x/README.txt"]
	for _, want := range []string{"pod.json ", "the log", "node.json: forbidden: https://(removed)@host; second line", "broken.json: json: "} {
		if !strings.Contains(readme, want) {
			t.Errorf("%q is not in %s", want, readme)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if err := sample().Write(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over an old one: %v", err)
	}
	if len(unpack(t, path)) != 3 {
		t.Error("the old one is damaged")
	}
}

func TestABundleMayBeAFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "x")
	if err := sample().Write(dir); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "agent.log")); err != nil || string(b) != "one\ntoken=(removed)\n" {
		t.Errorf("%q, %v", b, err)
	}
	if err := sample().Write(dir); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over an old one: %v", err)
	}
}

func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[head.Name] = string(b)
	}
}

func TestAValueIsFoundInBase64WhereverItBegins(t *testing.T) {
	r := NewRedactor([]string{"hunter2>?>x"}, nil)
	for _, before := range []string{"", "a", "ab", "ada:"} {
		for _, as := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
			text := as.EncodeToString([]byte(before + "hunter2>?>x\n"))
			if got := r.Text("key " + text); !strings.Contains(got, Removed) || len(got) > len("key "+before+Removed)+8 {
				t.Errorf("%q of %q", got, text)
			}
		}
	}
}

func TestStrictTakesOutEachWordOfAValueThatIsNoneOfAName(t *testing.T) {
	r := NewRedactor([]string{"abc", "start --pin 4711 sandbox", "é9", "removed"}, []string{"my-sandbox"})
	if got, want := r.Strict(`exec "abc" in my-sandbox: pin=4711 é9 abcd`), `exec "(removed)" in my-sandbox: (removed)=(removed) (removed) abcd`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
