package spelling_test

import (
	"testing"

	"github.com/datalayer/node-mounts/internal/spelling"
)

func TestTheNearestNameIsTheOneWithTheFewestChanges(t *testing.T) {
	known := []string{"HELD", "MOUNT_DEAD", "MOUNT_FAILED"}
	for _, c := range []struct {
		typed string
		most  int
		want  string
	}{
		{"MOUNT_DEAD", 0, "MOUNT_DEAD"},
		{"MONT_DEAD", 1, "MOUNT_DEAD"},
		{"MOUNT_FIALED", 2, "MOUNT_FAILED"},
		{"MOUNT_FIALED", 1, ""},
		{"HEEELD", 2, "HELD"},
		{"", 3, ""},
		{"", 4, "HELD"},
	} {
		if got := spelling.Nearest(c.typed, known, c.most); got != c.want {
			t.Errorf("%q with at most %d changes: %q, want %q", c.typed, c.most, got, c.want)
		}
	}
}
