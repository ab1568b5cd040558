package grant

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestEncodeCleansWhatItIsGiven(t *testing.T) {
	got, err := Encode([]Mount{
		{Kind: " files ", Source: " /home/users//01H-eric/ ", Target: " eric\n", Mode: " RW", AllowExec: true, UID: " u1 "},
		{Kind: "files", Source: "later", Target: "eric"},
	})
	want := `{"hash":"390f038b6f69688e","mounts":[{"allow_exec":true,"kind":"files","mode":"rw","source":"home/users/01H-eric","target":"eric","uid":"u1"}]}`
	if err != nil || got != want {
		t.Errorf("%v\n got %s\nwant %s", err, got, want)
	}
	if got, err = Encode(nil); err != nil || got != `{"hash":"4f53cda18c2baa0c","mounts":[]}` {
		t.Errorf("no mounts: %s, %v", got, err)
	}
}

func TestEncodeReturnsTheFirstRefusal(t *testing.T) {
	for want, mounts := range map[string][]Mount{
		"b NODE_MOUNT_GATEWAY_INVALID_SOURCE":  {{Source: "a", Target: "a"}, {Source: "..", Target: "b"}, {Target: "/"}},
		"#1 NODE_MOUNT_GATEWAY_INVALID_TARGET": {{Source: "a", Target: "a"}, {Target: "/"}, {Source: "..", Target: "b"}},
		"a NODE_MOUNT_GATEWAY_INVALID_SOURCE":  {{Source: "..", Target: "a"}, {Source: "a", Target: "a"}},
	} {
		_, err := Encode(mounts)
		var refusal *Refusal
		if !errors.As(err, &refusal) || refusal.Key+" "+string(refusal.Code) != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// many returns n mounts of different targets, each with a source of size bytes.
func many(n, size int, char string) []Mount {
	mounts := make([]Mount, n)
	for i := range mounts {
		mounts[i] = Mount{Source: strings.Repeat(char, size/len(char)), Target: fmt.Sprintf("t%04d", i)}
	}
	return mounts
}

func TestEncodeWritesNothingThatDecodeWouldNotRead(t *testing.T) {
	for want, mounts := range map[Code][]Mount{
		CodeTooManyMounts: many(MaxEntries+1, 1, "a"),
		CodeInvalidGrant:  many(MaxEntries, 255, "é"),
	} {
		_, err := Encode(mounts)
		var refusal *Refusal
		if !errors.As(err, &refusal) || refusal.Key != WholeSet || refusal.Code != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	written, err := Encode(many(MaxEntries, 120, "a"))
	if err != nil {
		t.Fatal(err)
	}
	if set := Decode(written); set.Whole != nil || len(set.Mounts) != MaxEntries {
		t.Errorf("%d mounts, %+v", len(set.Mounts), set.Whole)
	}
}

func TestEncodeDoesNotChangeItsArgument(t *testing.T) {
	mounts := []Mount{{Source: " b ", Target: "b"}, {Source: " a ", Target: "a"}}
	if _, err := Encode(mounts); err != nil {
		t.Fatal(err)
	}
	Hash(mounts)
	if mounts[0] != (Mount{Source: " b ", Target: "b"}) || mounts[1].Target != "a" {
		t.Errorf("%+v", mounts)
	}
}

func TestTheHashCoversWhatIsMountedAndNothingElse(t *testing.T) {
	base, err := Clean(valid(KindGit, "https://h/o/r"))
	if err != nil {
		t.Fatal(err)
	}
	hash := func(change func(*Mount)) string {
		m := base
		change(&m)
		return Hash([]Mount{m})
	}
	same := hash(func(*Mount) {})
	for name, change := range map[string]func(*Mount){
		"uid":  func(m *Mount) { m.UID = "u" },
		"kind": func(m *Mount) { m.Kind = KindFiles },
	} {
		if hash(change) != same {
			t.Errorf("%s changes the hash", name)
		}
	}
	for name, change := range map[string]func(*Mount){
		"source":     func(m *Mount) { m.Source += "x" },
		"target":     func(m *Mount) { m.Target += "x" },
		"mode":       func(m *Mount) { m.Mode = ReadOnly },
		"allow_exec": func(m *Mount) { m.AllowExec = false },
		"revision":   func(m *Mount) { m.Revision = strings.Repeat("0", 40) },
		"secret":     func(m *Mount) { m.Secret = "s" },
	} {
		if hash(change) == same {
			t.Errorf("%s does not change the hash", name)
		}
	}
}

func TestTextIsWrittenInASCIIAndReadBackUnchanged(t *testing.T) {
	for text, want := range map[string]string{
		"\b\f\n\r\t":           `"\b\f\n\r\t"`,
		"\x00\x1f\x7f\u0080":   `"\u0000\u001f\u007f\u0080"`,
		`<>&'/"\`:              `"<>&'/\"\\"`,
		"é\u2028\ufeff\uffff𝄞": `"\u00e9\u2028\ufeff\uffff\ud834\udd1e"`,
		"\U0010ffff":           `"\udbff\udfff"`,
	} {
		got := string(appendString(nil, text))
		if got != want {
			t.Errorf("%q written as %s, want %s", text, got, want)
		}
		var back string
		if err := json.Unmarshal([]byte(got), &back); err != nil || back != text {
			t.Errorf("%s read as %q, %v", got, back, err)
		}
		if !sound([]byte(got)) {
			t.Errorf("%s is not taken for text", got)
		}
	}
}
