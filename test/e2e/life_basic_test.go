package e2e_test

import (
	"os"
	"strings"
	"testing"
	"time"
)

// TestAFolderComesAndGoesInARunningPod is the main job, from the installation to
// the end of the Pod.
func TestAFolderComesAndGoesInARunningPod(t *testing.T) {
	w := newWorld(t, setup{})
	must(t, os.MkdirAll(w.claim("datasets/mnist"), 0o755))
	must(t, os.WriteFile(w.claim("datasets/mnist/tool"), []byte("#!/bin/sh\necho ran\n"), 0o755))

	bare := w.run(t, pooled(t, "bare", nil))
	without := w.remove(t, bare)

	p := w.run(t, pooled(t, "sandbox", nil))
	w.mustGrant(t, p, home("ada"), dataset("mnist"))

	w.in(t, p, "sh", "-c", "echo kept >/mnt/datalayer/ada/note")
	if got := w.in(t, p, "stat", "-c", "%u:%g %a", "/mnt/datalayer/ada"); strings.TrimSpace(got) != "1000:100 775" {
		t.Errorf("a new home folder is %s, want 1000:100 775", got)
	}
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

	w.mustGrant(t, p, home("ada"), dataset("mnist"))
	with := w.remove(t, p)
	w.leftNothing(t, p)
	log, err := w.KubeletLog()
	must(t, err)
	for line := range strings.Lines(log) {
		if strings.Contains(line, string(p.UID)) && strings.Contains(line, "busy") {
			t.Errorf("kubelet found the volume busy: %s", line)
		}
	}
	t.Logf("a Pod was gone %s after its deletion, and %s with two grants", without.Round(time.Millisecond), with.Round(time.Millisecond))
}
