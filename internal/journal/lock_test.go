package journal_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/internal/journal"
)

// dirEnv makes the test binary a process that opens this journal and is killed.
const dirEnv = "JOURNAL_TEST_OPEN"

func TestMain(m *testing.M) {
	if dir := os.Getenv(dirEnv); dir != "" {
		s, err := journal.Open(dir)
		if err == nil {
			defer s.Close() // or it is garbage, and collected with its lock
		}
		fmt.Println(err)
		select {}
	}
	os.Exit(m.Run())
}

func TestOneProcessHasTheJournalAtATime(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	first, err := journal.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := journal.Open(dir); !errors.Is(err, journal.ErrLocked) {
		t.Errorf("a second time: %v, want ErrLocked", err)
	}
	if err := first.Save(&journal.Pod{UID: "a"}); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"the first word", "another"} {
		if err := first.Sign(word); err != nil {
			t.Fatal(err)
		}
	}
	// What is written once is not written with each look at the disk.
	lock, old := filepath.Join(dir, "lock"), time.Unix(1, 0)
	if err := errors.Join(os.Chtimes(lock, old, old), first.Sign("another")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(lock); err != nil || !info.ModTime().Equal(old) {
		t.Errorf("the same word was written again: %v, %v", info, err)
	}
	first.Close()
	second, err := journal.Open(dir)
	if err != nil {
		t.Fatalf("after it was closed: %v", err)
	}
	defer second.Close()
	if word, err := second.Signature(); err != nil || word != "another" {
		t.Errorf("signed %q, %v", word, err)
	}
	if pods, err := second.Load(); err != nil || len(pods) != 1 {
		t.Errorf("the lock is in the way of the records: %v, %v", pods, err)
	}
}

func TestAProcessThatIsKilledLeavesNoLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), dirEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var says string
	if _, err := fmt.Fscanln(out, &says); err != nil || says != "<nil>" {
		t.Errorf("it says %q, %v", says, err)
	}
	if _, err := journal.Open(dir); !errors.Is(err, journal.ErrLocked) {
		t.Errorf("while it runs: %v, want ErrLocked", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	s, err := journal.Open(dir)
	if err != nil {
		t.Fatalf("after its end: %v", err)
	}
	s.Close()
}
