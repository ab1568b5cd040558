package e2e_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// shown is what status says of a Pod, as a program reads it.
type shown struct {
	State     string
	Mounted   int
	Published *bool
	Leaked    *int
	Targets   []struct{ Target, Source, State, Flags, Code string }
}

func (w *world) status(t *testing.T, name string) shown {
	t.Helper()
	var s shown
	text := w.ok(t, 0, "status", name, "-n", runtimes, "-o", "json")
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return s
}

// byHand is a day of somebody who has the command line alone.
func byHand(t *testing.T, w *world) {
	p := w.run(t, pooled(t, "by-hand", nil))
	hand := func(status int, args ...string) string {
		t.Helper()
		return w.ok(t, status, slices.Concat(args[:1], []string{p.Name, "-n", runtimes}, args[1:])...)
	}
	hand(0, "grant", "--source", "home/users/eve", "--target", "eve", "--wait")
	hand(0, "grant", "--kind", "shared-folder", "--source", "datasets/mnist", "--target", "mnist", "--mode", "ro", "--no-exec")
	hand(0, "wait")
	w.insideOnce(t, p, "eve", "mnist")

	s := w.status(t, p.Name)
	if s.State != "ready" || s.Mounted != 2 || s.Published == nil || !*s.Published || s.Leaked == nil || *s.Leaked != 0 {
		t.Errorf("status: %+v", s)
	}
	flags := map[string]string{}
	for _, target := range s.Targets {
		flags[target.Target] = target.Flags
	}
	if flags["eve"] != "rw,nosuid,nodev" || flags["mnist"] != "ro,nosuid,nodev,noexec" {
		t.Errorf("status shows the flags %v", flags)
	}
	table := hand(0, "status")
	head, rest, _ := strings.Cut(table, "\n")
	first, _, _ := strings.Cut(rest, "\n")
	cells := map[string]string{}
	for i, name := range strings.Fields(head) {
		if fields := strings.Fields(first); i < len(fields) {
			cells[name] = fields[i]
		}
	}
	if cells["NAME"] != p.Name || cells["PUBLISHED"] != "yes" || cells["LEAKED"] != "0" || cells["MOUNTED"] != "2" {
		t.Errorf("status as a table:\n%s", table)
	}
	if nodes := w.ok(t, 0, "status", "--nodes"); !strings.Contains(nodes, w.Name()) || !strings.Contains(nodes, "ready") {
		t.Errorf("status --nodes:\n%s", nodes)
	}

	// What does not exist fails alone, and everybody says so.
	hand(1, "grant", "--kind", "shared-folder", "--source", "datasets/none", "--target", "none", "--wait")
	hand(1, "wait")
	if s := w.status(t, p.Name); s.State != "degraded" || s.Mounted != 2 {
		t.Errorf("with a folder that is missing, status: %+v", s)
	}
	w.insideOnce(t, p, "eve", "mnist")
	debugged(t, w, p.Name, string(p.UID))
	hand(0, "revoke", "none", "--wait")
	hand(0, "wait")
	hand(0, "revoke", "--all", "--wait")
	w.insideOnce(t, p)
	w.remove(t, p)
	w.leftNothing(t, p)
}

// debugged fails unless the bundle tells what the agent sees of this Pod.
func debugged(t *testing.T, w *world, name, uid string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "bundle")
	if out := w.ok(t, 0, "debug", name, "-n", runtimes, "-o", dir); strings.Contains(out, "left out") {
		t.Errorf("debug: %s", out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "agent-view.json"))
	must(t, err)
	var view struct {
		Pods []struct {
			UID    string
			Mounts []struct{ Target, State string }
		}
	}
	must(t, json.Unmarshal(text, &view))
	if len(view.Pods) != 1 || view.Pods[0].UID != uid || len(view.Pods[0].Mounts) < 2 {
		t.Errorf("the agent's view in the bundle is not of this Pod:\n%s", text)
	}
	log, err := os.ReadFile(filepath.Join(dir, "agent.log"))
	if err != nil || len(log) == 0 {
		t.Errorf("the agent's log in the bundle: %d bytes, %v", len(log), err)
	}
}
