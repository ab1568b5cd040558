package main

import (
	"bytes"
	"os"
	"testing"
)

func TestALargeFileIsStoredInParts(t *testing.T) {
	s, m := whole(t)
	content := pattern(210 << 20)
	must(t, os.WriteFile(m.path("large"), content, 0o644))
	if !bytes.Equal(s.object("large"), content) {
		t.Error("the object is not what was written")
	}
	must(t, os.Rename(m.path("large"), m.path("moved")))
	if !bytes.Equal(s.object("moved"), content) || s.has("large") {
		t.Error("the object was not moved whole")
	}
	var counts map[string]int
	s.control("GET", "/stats", &counts)
	if counts["multipart"] < 3 || counts["get"] != 0 {
		t.Errorf("the server was asked %v", counts)
	}
	if peak := peak(m.command.Process.Pid); peak > 256<<20 {
		t.Errorf("it took %d MiB of memory", peak>>20)
	}
}
