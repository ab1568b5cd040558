package keeper

import (
	"encoding/json"
	"strings"
	"testing"
)

func FuzzDecodeRequest(f *testing.F) {
	ok := order{Use: "u", Args: [][]byte{[]byte("a")}, UID: 1, GID: 1, Files: 1}
	for _, r := range []request{
		{Protocol: 1, Op: opStart, Start: &ok}, {Protocol: 1, Op: opStop, ID: "x", Grace: -5}, {Protocol: 2, Op: opList}, {},
	} {
		b, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, 2)
	}
	f.Add([]byte(`{"protocol":1,"op":"start","start":{"args":["YQ=="],"uid":4294967295,"gid":1e3,"files":-1}}`), 0)
	f.Add([]byte(`{"PROTOCOL":1,"Op":"info","op":"list"}`), 0)
	f.Fuzz(func(t *testing.T, b []byte, descriptors int) {
		r, refused := decode(b, descriptors)
		if (r == nil) == (refused == nil) {
			t.Fatalf("%v and %v", r, refused)
		}
		if refused != nil {
			if refused.Code != codeRefused || len(refused.Message) > 300 {
				t.Fatalf("a refusal of %d bytes: %+v", len(refused.Message), refused)
			}
			return
		}
		if r.Op != opStart {
			if descriptors != 0 {
				t.Fatalf("%d descriptors with %s", descriptors, r.Op)
			}
			return
		}
		o := r.Start
		size := 0
		for _, s := range append(o.Args, o.Env...) {
			size += len(s)
			if strings.Contains(string(s), "\x00") {
				t.Fatal("a NUL")
			}
		}
		if descriptors != 1+o.Files || o.Files > MaxFiles || o.UID < 1 || o.GID < 1 || o.UID > 1<<31 || o.GID > 1<<31 || len(o.Args) == 0 ||
			size > maxStrings || len(o.Note) > MaxNote || o.Memory < 0 || strings.ContainsAny(o.Use, "\n\r\x1b") || strings.Contains(o.CacheName, "/") ||
			strings.HasPrefix(o.CacheName, ".") {
			t.Fatalf("accepted: %+v with %d descriptors", o, descriptors)
		}
	})
}

func TestAListOfAnyLengthIsDivided(t *testing.T) {
	if got := chunks(nil); len(got) != 1 || len(got[0]) != 0 {
		t.Errorf("%v", got)
	}
	worst := Child{Use: strings.Repeat("<", MaxUse), Note: make([]byte, MaxNote), Ended: &Exit{Words: strings.Repeat("\x01", MaxWords)}}
	count := 0
	for _, part := range chunks([]Child{worst, worst, worst, worst, worst}) {
		count += len(part)
		b, err := json.Marshal(answer{Info: Info{Version: strings.Repeat("v", 1000)}, Children: part, More: true})
		if err != nil || len(b) > maxMessage || len(part) == 0 {
			t.Errorf("a part of %d children has %d bytes, %v", len(part), len(b), err)
		}
	}
	if count != 5 {
		t.Errorf("%d children", count)
	}
}
