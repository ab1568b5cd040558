package servertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// guarded is a folder with programs in the place of those in assets, which note
// their pid and become them; and a process that ends them when this one is
// killed. Without it a test that is interrupted leaves an API server running: they
// are in process groups of their own, which no Ctrl-C reaches.
func guarded(t testing.TB, assets string, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	pids := filepath.Join(dir, "pids")
	if err := os.WriteFile(pids, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		script := fmt.Sprintf("#!/bin/sh\necho $$ >>%s\nexec %s \"$@\"\n", quote(pids), quote(filepath.Join(assets, name)))
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// A line says that all has ended well. The end of the input without one says
	// that nobody is left to say it.
	cmd := exec.Command("/bin/sh", "-c", `read -r _ || kill -9 $(cat "$1")`, "watchdog", pids)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := fmt.Fprintln(in, "ended"); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the watchdog: %v", err)
		}
	})
	return dir
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
