package grant

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
)

func FuzzDecode(f *testing.F) {
	f.Add(`{"hash":"h","mounts":[{"source":"/a /","target":"t"},{"kind":"git","source":"git@h:o/r","target":"../x"}]}`)
	f.Add(`[{"source":"\ud834\udd1e","target":"t","mode":" RO ","allow_exec":false},{"source":"\ud800","target":"u"},7]`)
	f.Add(`[{"kind":"nfs","source":"h:/a//b/","target":"n"},{"kind":"cloud-storage","source":"b/ p /","target":"c","secret":"s"}]`)
	f.Add(`[{"kind":"git","source":"https://h/o%2e","revision":"3f2a9c0d5b7e41868d0c1f2b3a4d5e6f708192a3","target":"g"}]`)
	f.Add(`{"hash":" ","mounts":[{"uid":"\n","kind":"local-bridge","source":" a ","target":"_"}],"x":[[[]]]}`)
	codes := map[Code]bool{}
	for _, info := range Codes() {
		codes[info.Code] = true
	}
	f.Fuzz(func(t *testing.T, annotation string) {
		set := Decode(annotation)
		if set.Whole != nil && (len(set.Mounts)+len(set.Refused) > 0 || set.Whole.Key != WholeSet || !codes[set.Whole.Code]) {
			t.Fatalf("refused whole, and not: %+v", set)
		}
		if len(set.Mounts)+len(set.Refused) > MaxEntries || len(set.Hash) > 128 {
			t.Fatalf("not bounded: %d mounts, %d refusals, hash %q", len(set.Mounts), len(set.Refused), set.Hash)
		}
		for _, r := range set.Refused {
			if r.Key == "" || len(r.Key) > 127 || !codes[r.Code] || r.Message == "" || len(r.Message) > 700 {
				t.Fatalf("refusal %+v", r)
			}
		}
		checkDecoded(t, set)
	})
}

// checkDecoded holds the mounts of a set to what is promised of them.
func checkDecoded(t *testing.T, set Set) {
	t.Helper()
	for i, m := range set.Mounts {
		if i > 0 && set.Mounts[i-1].Target >= m.Target {
			t.Fatalf("not sorted, or twice: %q, %q", set.Mounts[i-1].Target, m.Target)
		}
		if cleaned, err := Clean(m); err != nil || cleaned != m {
			t.Fatalf("%+v is cleaned to %+v, %v", m, cleaned, err)
		}
	}
	written, err := Encode(set.Mounts)
	if err != nil {
		var refusal *Refusal
		if !errors.As(err, &refusal) || refusal.Key != WholeSet || refusal.Code != CodeInvalidGrant {
			t.Fatalf("a decoded set cannot be written: %v", err)
		}
		return // larger as ASCII than it was
	}
	if !json.Valid([]byte(written)) || len(written) > MaxAnnotationBytes {
		t.Fatalf("written as %q", written)
	}
	again := Decode(written)
	if again.Whole != nil || len(again.Refused) > 0 || again.Hash != Hash(set.Mounts) {
		t.Fatalf("%s\nis read as %+v", written, again)
	}
	sameMounts(t, again.Mounts, set.Mounts)
}

func FuzzStatus(f *testing.F) {
	f.Add(`{"failed":{"t":"NODE_MOUNT_GATEWAY_HELD"},"hash":"h","messages":{"t":"m"},"mounted":["a"],"state":"degraded"}`)
	f.Add(`{"state":"failed","failed":{"*":"","":"x"},"messages":{"\ud800":"\u0000"},"hash":" h "}`)
	f.Add(`{"state":"ready","mounted":["b","a","a"],"messages":null}`)
	f.Fuzz(func(t *testing.T, annotation string) {
		s, err := DecodeStatus(annotation)
		if err != nil {
			var refusal *Refusal
			if !errors.As(err, &refusal) || refusal.Code != CodeInvalidGrant {
				t.Fatalf("without a code: %v", err)
			}
			return
		}
		text := s.Encode()
		if len(text) > 64<<10 || !json.Valid([]byte(text)) {
			t.Fatalf("%d bytes: %.200q", len(text), text)
		}
		once, err := DecodeStatus(text)
		if err != nil || once.State != s.State || once.Hash != saneHash(s.Hash) {
			t.Fatalf("%.200s\nis read as %+v, %v", text, once, err)
		}
		// A byte of a JSON text grows to six at most, so all of this had room.
		if len(annotation) < 10<<10 && (len(once.Failed) != len(s.Failed) || len(once.Messages) != len(s.Messages)) {
			t.Fatalf("lost on the way:\n%+v\n%+v", s, once)
		}
		if len(annotation) < 10<<10 {
			twice, err := DecodeStatus(once.Encode())
			if err != nil || !reflect.DeepEqual(once, twice) {
				t.Fatalf("not stable: %+v, %+v, %v", once, twice, err)
			}
		}
	})
}
