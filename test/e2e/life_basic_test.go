package e2e_test

import (
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestTheLifeOfAPodWithFolders installs once and tells one story after the other.
func TestTheLifeOfAPodWithFolders(t *testing.T) {
	w := newWorld(t, setup{node: withCommands})
	must(t, os.MkdirAll(w.claim("datasets/mnist"), 0o755))
	must(t, os.WriteFile(w.claim("datasets/mnist/tool"), []byte("#!/bin/sh\necho ran\n"), 0o755))
	must(t, os.Chown(w.claim("datasets/mnist"), 2000, 3000))
	for _, story := range []struct {
		name string
		tell func(*testing.T, *world)
	}{
		{"a folder comes and goes in a running Pod", comesAndGoes},
		{"verify finds nothing to complain about and proves it", verified},
		{"the chart's own test passes, and fails without an agent", testedByHelm},
		{"Helm takes an upgrade back under a running Pod", rolledBack},
		{"the command line grants, shows and revokes", byHand},
		{"a container that crashes has its folders again", crashes},
		{"what is saved after the deletion is on the claim", savesAtTheEnd},
		{"without an agent a deleted Pod stays and loses nothing", deadAgent},
		{"kubelet and containerd restart", componentsRestartUnderGrants},
		{"kubelet's walk for fsGroup meets no folder of a user", fsGroupWalk},
	} {
		t.Run(story.name, func(t *testing.T) { story.tell(t, w) })
	}
}

// comesAndGoes is the main job, from the grant to the end of the Pod.
func comesAndGoes(t *testing.T, w *world) {
	bare := w.run(t, pooled(t, "bare", nil))
	without := w.remove(t, bare)

	p := w.run(t, pooled(t, "sandbox", nil))
	w.mustGrant(t, p, home("ada"), dataset("mnist"))

	w.in(t, p, "sh", "-c", "echo kept >/mnt/datalayer/ada/note")
	if got := w.in(t, p, "stat", "-c", "%u:%g %a", "/mnt/datalayer/ada"); strings.TrimSpace(got) != "1000:100 775" {
		t.Errorf("a new home folder is %s, want 1000:100 775", got)
	}
	if got := w.in(t, p, "stat", "-c", "%u:%g %a", "/mnt/datalayer/mnist"); strings.TrimSpace(got) != "2000:3000 755" {
		t.Errorf("the data set is %s, and was 2000:3000 755 on the claim", got)
	}
	if got := w.in(t, p, "id", "-u"); strings.TrimSpace(got) != "1000" {
		t.Errorf("user code runs as %s, want 1000", got)
	}
	w.insideOnce(t, p, "ada", "mnist")
	mounts := w.in(t, p, "cat", "/proc/self/mountinfo")
	for target, flags := range map[string]string{"ada": "rw,nosuid,nodev", "mnist": "ro,nosuid,nodev,noexec"} {
		if !strings.Contains(mounts, " /mnt/datalayer/"+target+" "+flags) {
			t.Errorf("%s is not mounted %s:\n%s", target, flags, mounts)
		}
	}
	w.refused(t, p, "sh", "-c", "echo x >/mnt/datalayer/mnist/new")
	w.refused(t, p, "sh", "-c", "/mnt/datalayer/mnist/tool")
	w.refused(t, p, "mkdir", "/mnt/datalayer/beside")

	w.mustGrant(t, p)
	if got := w.in(t, p, "ls", "-A", "/mnt/datalayer"); strings.TrimSpace(got) != "" {
		t.Errorf("after the revocation there are: %s", got)
	}
	note, err := os.ReadFile(w.claim("home/users/ada/note"))
	if err != nil || string(note) != "kept\n" {
		t.Errorf("on the claim: %q, %v", note, err)
	}
	owner := &syscall.Stat_t{}
	must(t, syscall.Stat(w.claim("home/users/ada/note"), owner))
	if owner.Uid != 1000 || owner.Gid != 100 {
		t.Errorf("on the claim the file is of %d:%d, want 1000:100", owner.Uid, owner.Gid)
	}

	w.mustGrant(t, p, home("ada"), dataset("mnist"))
	with := w.remove(t, p)
	w.leftNothing(t, p)
	w.wentInTime(t, p)
	t.Logf("a Pod was gone %s after its deletion, and %s with two grants", without.Round(time.Millisecond), with.Round(time.Millisecond))
}

// row is one of verify's or its probe's.
type row struct{ Check, Node, Status, Detail, Hint string }

// verify runs verify, which has to end with this status, and returns its rows.
func (w *world) verify(t *testing.T, status int, more ...string) []row {
	t.Helper()
	var said map[string]json.RawMessage
	out := w.ok(t, status, append([]string{"verify", "--agent-only", "-o", "json"}, more...)...)
	// What a probe does is told before, on the other stream.
	if err := json.Unmarshal([]byte(out[max(0, strings.Index(out, "{")):]), &said); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	var all []row
	for _, list := range []string{"results", "probe"} {
		var rows []row
		if text, there := said[list]; there {
			must(t, json.Unmarshal(text, &rows))
		}
		all = append(all, rows...)
	}
	if len(all) == 0 {
		t.Fatalf("no rows in %s", out)
	}
	return all
}

// verified has a Pod with folders on the node: without one there is little to look
// at.
func verified(t *testing.T, w *world) {
	p := w.run(t, pooled(t, "looked-at", nil))
	w.mustGrant(t, p, home("ada"), dataset("mnist"))
	rows := w.verify(t, 0, "--probe")
	for _, r := range rows {
		// No kind that is served here needs a keeper.
		without := strings.Contains(strings.ToLower(r.Check), "keeper") && r.Status == "skip"
		if r.Status != "ok" && !without {
			t.Errorf("%+v", r)
		}
	}
	t.Logf("%d rows", len(rows))
	w.remove(t, p)
	w.leftNothing(t, p)
}
