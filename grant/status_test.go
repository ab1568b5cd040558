package grant

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestAStatusIsWrittenSortedAndCompact(t *testing.T) {
	s := Status{
		Hash: "390f038b6f69688e", State: StateDegraded, Mounted: []string{"b", "a", "b"},
		Failed:   map[string]Code{"z": CodeMountFailed, "#2": CodeInvalidGrant},
		Messages: map[string]string{"z": "é <b>", "#2": "no"},
	}
	want := `{"failed":{"#2":"NODE_MOUNT_GATEWAY_INVALID_GRANT","z":"NODE_MOUNT_GATEWAY_MOUNT_FAILED"},` +
		`"hash":"390f038b6f69688e","messages":{"#2":"no","z":"\u00e9 <b>"},"mounted":["a","b"],"state":"degraded"}`
	if got := s.Encode(); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	if s.Mounted[0] != "b" {
		t.Error("Encode sorted the caller's list")
	}
	if got := (Status{State: StateReady}).Encode(); got != `{"failed":{},"hash":"","mounted":[],"state":"ready"}` {
		t.Errorf("an empty status: %s", got)
	}
}

func TestAStateThatDoesNotExistIsWrittenAsFailed(t *testing.T) {
	for _, state := range []State{"", "Ready", StateFailed} {
		if got := (Status{State: state}).Encode(); !strings.Contains(got, `"state":"failed"`) {
			t.Errorf("%q: %s", state, got)
		}
	}
}

func TestAStatusIsReadBackAsItWasWritten(t *testing.T) {
	for _, s := range []Status{
		{Hash: "h", State: StateReady, Mounted: []string{"a", "b"}},
		{State: StateFailed, Failed: map[string]Code{"": "", ",a": CodeHeld, `"`: CodeHeld}, Messages: map[string]string{",": ""}},
		{State: StateFailed, Failed: map[string]Code{WholeSet: CodeInvalidGrant}, Messages: map[string]string{WholeSet: "Ünïcode 𝄞 \x7f"}},
	} {
		got, err := DecodeStatus(s.Encode())
		if err != nil || !reflect.DeepEqual(got, s) {
			t.Errorf("%+v, %v\nwant %+v", got, err, s)
		}
	}
}

func TestAStatusOfAnotherWriterIsRead(t *testing.T) {
	got, err := DecodeStatus(` { "hash":"h", "state":"ready", "mounted":["b","a"], "failed":null, "messages":7, "later":[1] } `)
	want := Status{Hash: "h", State: StateReady, Mounted: []string{"a", "b"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = DecodeStatus(`{"state":"failed","Mounted":["a"],"failed":{"a":"SOME_LATER_CODE"}}`)
	want = Status{State: StateFailed, Failed: map[string]Code{"a": "SOME_LATER_CODE"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestAnAnswerThatCannotBeReadIsNoAnswer(t *testing.T) {
	for _, annotation := range []string{
		"", "null", "[]", "{}", `{"state":"READY"}`, `{"State":"ready"}`, `{"state":7}`, `{"state":"ready","state":"failed"}`,
		`{"state":"ready","hash":7}`, `{"state":"ready","mounted":{}}`, `{"state":"ready","mounted":[1]}`,
		`{"state":"ready","failed":[]}`, `{"state":"ready","failed":{"a":1}}`, `{"state":"ready"}x`, `{"state":"ready"`,
		`{"state":"ready"}` + strings.Repeat(" ", MaxAnnotationBytes), strings.Repeat(`{"failed":`, 20_000),
	} {
		_, err := DecodeStatus(annotation)
		var refusal *Refusal
		if !errors.As(err, &refusal) || refusal.Code != CodeInvalidGrant {
			t.Errorf("%.60q: %v", annotation, err)
		}
	}
}

func TestAMessageIsCutWithoutSplittingARune(t *testing.T) {
	s := Status{State: StateFailed, Hash: "h"}
	s.Messages = map[string]string{"a": strings.Repeat("x", 511) + "é", "b": strings.Repeat("𝄞", 1000), "c": "\xff", "d": strings.Repeat("y", 512)}
	got, err := DecodeStatus(s.Encode())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"a": strings.Repeat("x", 511), "b": strings.Repeat("𝄞", 128), "c": "\ufffd", "d": strings.Repeat("y", 512)}
	if !reflect.DeepEqual(got.Messages, want) {
		t.Errorf("%q", got.Messages)
	}
}

// crowd returns a status with n failures, n messages and n mounts.
func crowd(n, targetSize, messageSize int) Status {
	s := Status{Hash: "h", State: StateDegraded, Failed: map[string]Code{}, Messages: map[string]string{}}
	for i := range n {
		pad := strings.Repeat("p", max(targetSize-6, 0))
		failed, mounted := fmt.Sprintf("f%05d", i)+pad, fmt.Sprintf("m%05d", i)+pad
		s.Failed[failed] = CodeMountFailed
		s.Messages[failed] = strings.Repeat("x", messageSize)
		s.Mounted = append(s.Mounted, mounted)
	}
	return s
}

func decoded(t *testing.T, s Status) Status {
	t.Helper()
	text := s.Encode()
	if len(text) > 64<<10 {
		t.Fatalf("%d bytes", len(text))
	}
	if again := s.Encode(); again != text {
		t.Fatal("two encodings of one status differ")
	}
	got, err := DecodeStatus(text)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestMessagesMakeRoomBeforeListsDo(t *testing.T) {
	s := crowd(200, 20, 400)
	s.Failed["short"], s.Messages["short"] = CodeMountDead, "Brief."
	s.Messages[WholeSet] = strings.Repeat("w", 500)
	got := decoded(t, s)
	if len(got.Failed) != 201 || len(got.Mounted) != 200 {
		t.Errorf("%d failures, %d mounts", len(got.Failed), len(got.Mounted))
	}
	if got.Messages["short"] != "Brief." || got.Messages[WholeSet] != s.Messages[WholeSet] {
		t.Error("a short message, or that of the whole set, went before a longer one")
	}
	if n := len(got.Messages); n < 50 || n >= 202 {
		t.Errorf("%d messages are left", n)
	}
}

func TestMountsMakeRoomBeforeFailuresDo(t *testing.T) {
	got := decoded(t, crowd(600, 50, 10))
	if len(got.Failed) != 600 || len(got.Mounted) == 0 || len(got.Mounted) >= 600 {
		t.Errorf("%d failures, %d mounts", len(got.Failed), len(got.Mounted))
	}
	want := fmt.Sprintf("The answer is too long: 0 failures and %d mounts are not listed.", 600-len(got.Mounted))
	if got.Messages[WholeSet] != want {
		t.Errorf("%q, want %q", got.Messages[WholeSet], want)
	}
}

func TestEveryCodeStaysInAnAnswerThatIsTooLong(t *testing.T) {
	s := crowd(5000, 127, 512)
	for i, info := range Codes() {
		s.Failed[fmt.Sprintf("z%d", i)] = info.Code
	}
	s.Failed[WholeSet] = CodeNotReady
	got := decoded(t, s)
	seen := map[Code]bool{}
	for key, code := range got.Failed {
		seen[code] = true
		if s.Failed[key] != code {
			t.Errorf("%s is answered with %s", key, code)
		}
	}
	if len(seen) != len(Codes()) || got.Failed[WholeSet] != CodeNotReady {
		t.Errorf("%d codes are left: %v", len(seen), seen)
	}
	left := len(s.Failed) - len(got.Failed)
	if !strings.Contains(got.Messages[WholeSet], fmt.Sprintf(" %d failures ", left)) {
		t.Errorf("%d failures are missing, the note says %q", left, got.Messages[WholeSet])
	}
}

func TestAHugeStatusStaysBounded(t *testing.T) {
	huge := strings.Repeat("é\x00", 1<<19)
	for _, s := range []Status{
		{Hash: huge, State: State(huge)},
		{Mounted: []string{huge, "a"}, Failed: map[string]Code{huge: CodeHeld, "b": Code(huge)}},
		{Messages: map[string]string{huge: "a", "a": huge}},
		crowd(20_000, 127, 512),
	} {
		if text := s.Encode(); len(text) > 64<<10 || !utf8.ValidString(text) {
			t.Errorf("%d bytes: %.60s", len(text), text)
		}
	}
}
