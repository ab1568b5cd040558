package thread

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/bug"
)

func TestACallHasAThreadThatEndsWithIt(t *testing.T) {
	said := errors.New("said")
	var tids sync.Map
	var calls sync.WaitGroup
	for range 64 {
		calls.Go(func() {
			err := Own(func() error {
				if _, again := tids.LoadOrStore(unix.Gettid(), true); again {
					t.Error("a thread was used twice")
				}
				return said
			})
			if !errors.Is(err, said) {
				t.Errorf("got %v", err)
			}
		})
	}
	calls.Wait()
	tids.Range(func(tid, _ any) bool {
		if tid == os.Getpid() {
			t.Error("it was the first thread")
		}
		until := time.Now().Add(10 * time.Second)
		for {
			_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid))
			if errors.Is(err, os.ErrNotExist) {
				return true
			}
			if time.Now().After(until) {
				t.Errorf("thread %d is still there: %v", tid, err)
				return true
			}
			runtime.Gosched()
		}
	})
}

func TestAPanicIsTheCallsError(t *testing.T) {
	err := Own(func() error { panic("oh") })
	if _, ok := errors.AsType[*bug.Error](err); !ok {
		t.Errorf("got %v", err)
	}
}
