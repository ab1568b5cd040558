package agentcmd

import (
	"strings"
	"testing"
)

const bootIDFile = "sys/kernel/random/boot_id"

// The lines are of Linux 6.18, with the names changed where the name says so.
func TestABootIsTheKernelsAndTheFirstProcesss(t *testing.T) {
	const rest = " S 0 1 1 0 -1 4194560 33034 2371946 56 1432 174 406 8413 2530 20 0 1 0 1317 23670784 3382 18446744073709551615 1 1 0 0 0 0 671173123 4096 1260 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
	for _, c := range []struct{ name, stat string }{
		{"systemd", "1 (systemd)" + rest},
		{"a name with a blank", "1 (my init)" + rest},
		{"a name like the end of one", "1 (a) S 0 1 1 (b))" + rest},
		{"no name at all", "1 ()" + rest},
	} {
		t.Run(c.name, func(t *testing.T) {
			proc := t.TempDir()
			write(t, proc, map[string]string{bootIDFile: "5f6c-11\n", "1/stat": c.stat})
			if id, err := BootID(proc); err != nil || id != "5f6c-11+1317" {
				t.Errorf("BootID = %q, %v", id, err)
			}
		})
	}
}

func TestANodeThatIsAContainerBootsWithoutTheKernel(t *testing.T) {
	const before = "1 (systemd) S 0 1 1 0 -1 4194560 1 1 0 0 1 1 1 1 20 0 1 0 91841 23670784 3382 18446744073709551615\n"
	proc := t.TempDir()
	write(t, proc, map[string]string{bootIDFile: "5f6c\n", "1/stat": before})
	first, err := BootID(proc)
	if err != nil {
		t.Fatal(err)
	}
	// What a process does changes its line, and not when it started.
	write(t, proc, map[string]string{"1/stat": strings.Replace(before, "1 1 1 1 20", "8 9 8 9 20", 1)})
	if id, err := BootID(proc); err != nil || id != first {
		t.Errorf("BootID = %q, %v; it was %q in the same boot", id, err, first)
	}
	write(t, proc, map[string]string{"1/stat": strings.Replace(before, "91841", "95122", 1)})
	if id, err := BootID(proc); err != nil || id == first {
		t.Errorf("BootID = %q, %v, also after the container has been started again", id, err)
	}
	write(t, proc, map[string]string{"1/stat": before, bootIDFile: "77aa\n"})
	if id, err := BootID(proc); err != nil || id == first {
		t.Errorf("BootID = %q, %v, also with another kernel", id, err)
	}
}

func TestWithoutKnowingTheBootThereIsNoIdentity(t *testing.T) {
	const stat = "1 (init) S 0 1 1 0 -1 4194560 1 1 0 0 1 1 1 1 20 0 1 0 7 23670784 3382\n"
	for name, files := range map[string]map[string]string{
		"nothing":                      {},
		"no boot id":                   {"1/stat": stat},
		"an empty boot id":             {"1/stat": stat, bootIDFile: "\n"},
		"no first process":             {bootIDFile: "5f6c\n"},
		"a line that is cut off":       {bootIDFile: "5f6c\n", "1/stat": stat[:40]},
		"a line without a name":        {bootIDFile: "5f6c\n", "1/stat": strings.ReplaceAll(stat, "(init)", "init")},
		"a start that is no number":    {bootIDFile: "5f6c\n", "1/stat": strings.Replace(stat, " 7 ", " x ", 1)},
		"an empty line of the process": {bootIDFile: "5f6c\n", "1/stat": ""},
	} {
		t.Run(name, func(t *testing.T) {
			proc := t.TempDir()
			write(t, proc, files)
			if id, err := BootID(proc); err == nil {
				t.Errorf("BootID = %q", id)
			}
		})
	}
}

func TestThisNodesBootHasAnIdentityThatStays(t *testing.T) {
	first, err := BootID(procDir)
	second, again := BootID(procDir)
	if err != nil || again != nil || first != second || !strings.Contains(first, "+") {
		t.Errorf("BootID = %q, %v, then %q, %v", first, err, second, again)
	}
}
