package procs

import (
	"os"
	"os/exec"
	"slices"
	"testing"
)

func TestAProcessOfNobodysIsFoundByTheMountItStandsIn(t *testing.T) {
	dir := t.TempDir()
	fd, err := os.Open(dir)
	check(t, err)
	defer fd.Close()
	id, err := linkMountID(int(fd.Fd()), ".")
	check(t, err)
	cmd := exec.Command("sleep", "600")
	cmd.Dir = dir
	check(t, cmd.Start())
	stands := func() bool {
		ps, err := New("/proc").Others(t.Context(), map[int]bool{id: true})
		if err != nil {
			t.Log(err) // of another process
		}
		return slices.ContainsFunc(ps, func(p Process) bool { return p.PID == cmd.Process.Pid && p.Start != 0 })
	}
	if !stands() {
		t.Error("the process that stands in the mount is not found")
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if stands() {
		t.Error("it is found after its end")
	}
}
