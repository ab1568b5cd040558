package grant

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// refusals returns "key code" of each refusal of a set, in order.
func refusals(set Set) string {
	var all []string
	for _, r := range set.Refused {
		all = append(all, r.Key+" "+strings.TrimPrefix(string(r.Code), "NODE_MOUNT_GATEWAY_"))
	}
	return strings.Join(all, ", ")
}

func targets(set Set) string {
	var all []string
	for _, m := range set.Mounts {
		all = append(all, m.Target)
	}
	return strings.Join(all, " ")
}

func TestABadEntryCostsNoOtherEntry(t *testing.T) {
	set := Decode(`{"hash":"h1","mounts":[
		{"source":"a","target":"good"}, 7, null, "x", [{"source":"a","target":"inner"}],
		{"source":"a"}, {"source":"a","target":5}, {"source":"..","target":"bad"},
		{"kind":"smb","source":"a","target":"smb"}, {"source":"b","target":"also"}]}`)
	if set.Whole != nil || set.Hash != "h1" || targets(set) != "also good" {
		t.Errorf("%+v", set)
	}
	want := "#1 INVALID_GRANT, #2 INVALID_GRANT, #3 INVALID_GRANT, #4 INVALID_GRANT, " +
		"#5 INVALID_TARGET, #6 INVALID_TARGET, bad INVALID_SOURCE, smb UNSUPPORTED_KIND"
	if got := refusals(set); got != want {
		t.Errorf("refused %s\n   want %s", got, want)
	}
}

func TestAFieldOfTheWrongTypeIsRefusedWithItsCode(t *testing.T) {
	for field, code := range map[string]string{
		`"source":1`:                                          "INVALID_SOURCE",
		`"source":null`:                                       "INVALID_SOURCE",
		`"SOURCE":"a"`:                                        "INVALID_SOURCE",
		`"source":"\ud800"`:                                   "INVALID_SOURCE",
		`"source":"a\udc00"`:                                  "INVALID_SOURCE",
		`"source":"\ud800\u0041"`:                             "INVALID_SOURCE",
		`"source":"\ud834\\udd1e"`:                            "INVALID_SOURCE",
		"\"source\":\"a\xff\"":                                "INVALID_SOURCE",
		`"source":"a","source":"b"`:                           "INVALID_SOURCE",
		`"source":"a","kind":{}`:                              "UNSUPPORTED_KIND",
		`"source":"a","kind":null`:                            "UNSUPPORTED_KIND",
		`"source":"a","mode":""`:                              "INVALID_GRANT",
		`"source":"a","mode":null`:                            "INVALID_GRANT",
		`"source":"a","mode":true`:                            "INVALID_GRANT",
		`"source":"a","mode":"r o"`:                           "INVALID_GRANT",
		`"mode":"ro","source":"a","mode":"rw"`:                "INVALID_GRANT",
		`"allow_exec":false,"source":"a","allow_exec":true`:   "INVALID_GRANT",
		`"source":"a","allow_exec":0`:                         "INVALID_GRANT",
		`"source":"a","revision":[]`:                          "INVALID_SOURCE",
		`"source":"a","secret":["s"]`:                         "SECRET_REFUSED",
		`"source":"a","secret":null`:                          "SECRET_REFUSED",
		`"source":"a","secret":"s","\u0073ecret":"companion"`: "SECRET_REFUSED",
	} {
		set := Decode(`[{"target":"t",` + field + `}]`)
		if got := refusals(set); got != "t "+code || len(set.Mounts) > 0 {
			t.Errorf("%s: refused %q, mounted %q, want %s", field, got, targets(set), code)
		}
	}
}

func TestWhatIsAbsentOrUnknownIsNoReasonToRefuse(t *testing.T) {
	plain := Mount{Source: "a", Target: "t", Mode: ReadWrite, AllowExec: true}
	for entry, want := range map[string]Mount{
		`{"source":"a","target":"t"}`:                                 plain,
		`{"source":"a","target":"t","uid":{}}`:                        plain,
		`{"source":"a","target":"t","uid":"\ud800"}`:                  plain,
		`{"source":"a","target":"t","later":[[{}]],"\ud800":"x"}`:     plain,
		`{"source":"a","target":"t","Mode":"ro","allowExec":0}`:       plain,
		`{"later":1,"later":2,"\u0073ource":"\u0061","target":"t"}`:   plain,
		`{"source":"\ud834\udd1e","target":"t"}`:                      {Source: "𝄞", Target: "t", Mode: ReadWrite, AllowExec: true},
		`{"source":"\ufffd","target":"t","mode":"ro"}`:                {Source: "\ufffd", Target: "t", Mode: ReadOnly, AllowExec: true},
		`{"source":"a","target":"t","mode":" rO","allow_exec":false}`: {Source: "a", Target: "t", Mode: ReadOnly},
	} {
		set := Decode("[" + entry + "]")
		if len(set.Refused) > 0 || set.Whole != nil {
			t.Errorf("%s: refused: %+v", entry, set)
			continue
		}
		sameMounts(t, set.Mounts, []Mount{want})
	}
}

func TestTheFirstOfEqualTargetsCountsAlsoWhenRefused(t *testing.T) {
	set := Decode(`[{"source":"..","target":"t"},{"source":"a","target":" t "},{"source":"/","target":"t"},
		{"source":"b","target":"u"},{"source":"..","target":"u"},{"source":"a","target":"/"},{"source":"a","target":"/"}]`)
	if targets(set) != "u" || set.Mounts[0].Source != "b" {
		t.Errorf("mounts %+v", set.Mounts)
	}
	if got, want := refusals(set), "t INVALID_SOURCE, #5 INVALID_TARGET, #6 INVALID_TARGET"; got != want {
		t.Errorf("refused %s, want %s", got, want)
	}
}

func TestAnUnreadableAnnotationIsRefusedWholeAndAsksForNothing(t *testing.T) {
	for _, annotation := range []string{
		"", " ", "null", "7", `"x"`, "true", "{}", `{"hash":"h"}`, `{"hash":"h","mounts":null}`, `{"hash":"h","mounts":{}}`,
		`{"hash":"h","mounts":"[]"}`, `{"Mounts":[]}`, `{"mounts":[]`, `[]]`, `[] []`, `{"mounts":[]}x`, `[{"source":"a","target":"t"}`,
		`{"mounts":[],"mounts":[]}`, `{"hash":"a","hash":"b","mounts":[]}`, "\x00", "[]\x00", "\ufeff[]", "[\xff]", "{mounts:[]}", "[NaN]",
		strings.Repeat("[", 200_000), strings.Repeat(`{"mounts":`, 20_000), strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000),
	} {
		set := Decode(annotation)
		if set.Whole == nil || set.Whole.Key != WholeSet || set.Whole.Code != CodeInvalidGrant || set.Whole.Message == "" {
			t.Errorf("%.40q: %+v", annotation, set.Whole)
		}
		if set.Hash != "" || len(set.Mounts)+len(set.Refused) > 0 {
			t.Errorf("%.40q: %+v", annotation, set)
		}
	}
}

func TestAnEmptySetIsReadable(t *testing.T) {
	for _, annotation := range []string{"[]", " [ ] ", `{"mounts":[]}`, `{"mounts":[],"hash":"","more":1}`} {
		set := Decode(annotation)
		if set.Whole != nil || set.Hash != "4f53cda18c2baa0c" || len(set.Mounts)+len(set.Refused) > 0 {
			t.Errorf("%s: %+v", annotation, set)
		}
	}
}

func TestTheWritersOwnHashIsAnsweredWhereItCanBe(t *testing.T) {
	const computed = "390f038b6f69688e" // of the mount below, with or without the refused entry
	long := strings.Repeat("h", 128)
	for hash, want := range map[string]string{
		`"mine"`: "mine", `" mine\n"`: "mine", `"` + long + `"`: long, `"two words"`: "two words",
		`"` + long + `h"`: computed, `""`: computed, `null`: computed, `7`: computed, `"é"`: computed, `"a\nb"`: computed,
	} {
		for _, more := range []string{"", `,{"source":"..","target":"bad"}`} {
			set := Decode(`{"hash":` + hash + `,"mounts":[{"source":"home/users/01H-eric","target":"eric"}` + more + `]}`)
			if set.Hash != want || targets(set) != "eric" {
				t.Errorf("hash %s: answered %q, want %q", hash, set.Hash, want)
			}
		}
	}
}

func TestTheHashSaysWhetherWhiteSpaceBelongsToASource(t *testing.T) {
	written, err := Encode([]Mount{valid(KindFiles, "/home/u /")})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(written, `"source":"home/u "`) {
		t.Fatal(written)
	}
	if got := Decode(written).Mounts[0].Source; got != "home/u " {
		t.Errorf("written by Encode: %q", got)
	}
	careless := strings.Replace(written, `"hash":"`, `"hash":"0`, 1)
	if got := Decode(careless).Mounts[0].Source; got != "home/u" {
		t.Errorf("with a hash of something else: %q", got)
	}
	bare := written[strings.Index(written, "[") : len(written)-1]
	if got := Decode(bare).Mounts[0].Source; got != "home/u" {
		t.Errorf("without a hash: %q", got)
	}
	trimmed := fmt.Sprintf(`{"hash":%q,"mounts":%s}`, Decode(bare).Hash, bare)
	if got := Decode(trimmed).Mounts[0].Source; got != "home/u" {
		t.Errorf("with the hash of the trimmed source: %q", got)
	}
}

// entries returns the text of n entries with different targets.
func entriesText(n int, entry string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, entry, i)
	}
	return b.String()
}

func TestASetOfTooManyEntriesIsRefusedWholeAndKeepsItsHash(t *testing.T) {
	full := entriesText(MaxEntries, `{"source":"a","target":"t%d"}`)
	if set := Decode(`{"hash":"h","mounts":[` + full + `]}`); set.Whole != nil || len(set.Mounts) != MaxEntries {
		t.Errorf("%d entries: %+v, %d mounts", MaxEntries, set.Whole, len(set.Mounts))
	}
	for _, list := range []string{full + "," + full, full + ",1", entriesText(10_000, `{"target":"t%d"}`), strings.Repeat("1,", 100_000) + "1"} {
		for annotation, hash := range map[string]string{`{"mounts":[` + list + `],"hash":" h "}`: "h", "[" + list + "]": ""} {
			set := Decode(annotation)
			if set.Whole == nil || set.Whole.Code != CodeTooManyMounts || set.Whole.Key != WholeSet || set.Hash != hash {
				t.Errorf("%.60s: hash %q, %+v", annotation, set.Hash, set.Whole)
			}
			if len(set.Mounts)+len(set.Refused) > 0 {
				t.Errorf("%.60s: entries of a refused set are reported", annotation)
			}
		}
	}
}

// allocated returns the bytes that f allocates, freed ones included.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestAnAnnotationThatIsTooLargeIsNotEvenParsed(t *testing.T) {
	huge := `{"hash":"h","mounts":[` + entriesText(200_000, `{"source":"a","target":"t%d"}`) + `]}`
	fits := "[]" + strings.Repeat(" ", MaxAnnotationBytes-2)
	var set Set
	if got := allocated(func() { set = Decode(huge) }); got > 16<<10 {
		t.Errorf("%d bytes allocated for %d", got, len(huge))
	}
	if set.Whole == nil || set.Whole.Code != CodeInvalidGrant || set.Hash != "" {
		t.Errorf("%+v", set)
	}
	if set := Decode(fits); set.Whole != nil {
		t.Errorf("an annotation of the largest size: %+v", set.Whole)
	}
	if set := Decode(fits + " "); set.Whole == nil {
		t.Error("one byte more was read")
	}
}

func TestHostileAnnotationsCostBoundedMemory(t *testing.T) {
	pad := func(head, fill, tail string) string {
		return head + strings.Repeat(fill, (MaxAnnotationBytes-len(head)-len(tail))/len(fill)) + tail
	}
	for name, annotation := range map[string]string{
		"numbers":         pad("[", "1,", "1]"),
		"empty objects":   pad("[", "{},", "{}]"),
		"deep arrays":     strings.Repeat("[", 9_999) + strings.Repeat("]", 9_999),
		"deep in a field": `[{"source":` + strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000) + `,"target":"t"}]`,
		"one huge source": pad(`[{"target":"t","source":"`, "a", `"}]`),
		"huge escapes":    pad(`[{"target":"t","source":"`, `\u0001`, `"}]`),
		"huge slashes":    pad(`[{"target":"t","source":"a`, "/", `b"}]`),
		"repeated key":    pad(`[{"target":"t",`, `"source":"a",`, `"source":"a"}]`),
		"many keys":       pad(`[{"target":"t",`, `"x":1,`, `"source":"a"}]`),
		"many top keys":   pad(`{`, `"x":1,`, `"mounts":[]}`),
		"one target":      "[" + strings.TrimSuffix(strings.Repeat(`{"source":"a","target":"t"},`, MaxEntries), ",") + "]",
		"spaced sources":  `{"hash":"h","mounts":[` + entriesText(MaxEntries, `{"source":" a","target":"t%d"}`) + `]}`,
		"long sources":    `{"hash":"h","mounts":[` + entriesText(MaxEntries, `{"source":"`+strings.Repeat("é/", 70)+` ","target":"t%d"}`) + `]}`,
	} {
		if len(annotation) > MaxAnnotationBytes {
			t.Fatalf("%s: %d bytes are refused before they are parsed", name, len(annotation))
		}
		var set Set
		// 96 times the largest annotation, freed memory included.
		if got := allocated(func() { set = Decode(annotation) }); got > 96*MaxAnnotationBytes {
			t.Errorf("%s: %d bytes allocated for %d", name, got, len(annotation))
		} else {
			t.Logf("%s: %d KiB allocated for %d KiB", name, got>>10, len(annotation)>>10)
		}
		for _, r := range set.Refused {
			if len(r.Message) > 512 || len(r.Key) > 127 || r.Code == "" {
				t.Errorf("%s: %+v", name, r)
			}
		}
	}
}

func TestWhiteSpaceNeverBelongsToAnAddress(t *testing.T) {
	written, err := Encode([]Mount{valid(KindFiles, "/home/u /"), {Kind: KindNFS, Source: "h:/e", Target: "n"}})
	if err != nil {
		t.Fatal(err)
	}
	set := Decode(strings.Replace(written, `"h:/e"`, `" h:/e\n"`, 1))
	if len(set.Mounts) != 2 || set.Mounts[0].Source != "h:/e" || set.Mounts[1].Source != "home/u " {
		t.Errorf("%+v", set)
	}
}
