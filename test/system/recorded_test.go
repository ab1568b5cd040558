package system_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/beneath"
	"github.com/datalayer/node-mounts/internal/journal"
)

// unrecorded begins a line of the trace about a step that the journal on disk does
// not name at the instant the step is made.
const unrecorded = "unrecorded: "

// written reads the journal as the next agent would, right before a step, and
// writes down where it does not say that the step may have been made. The mount
// table names most of what a killed agent left, and an empty folder in the tree, or
// what a mount is of, it does not: so an outcome alone does not show each writing.
type written struct {
	root string
	w    *tracer
}

func (v written) must(step, uid string, says func(p journal.Pod) bool) {
	var p journal.Pod
	text, err := os.ReadFile(filepath.Join(v.root, "journal", uid+".json"))
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err == nil && says(p) {
		return
	}
	v.w.mu.Lock()
	defer v.w.mu.Unlock()
	if _, err := fmt.Fprintf(v.w.file, "%s%s of %s (%v)\n", unrecorded, step, uid, err); err != nil {
		panic(err)
	}
}

func (v written) tree(on *beneath.Dir) {
	v.must("tree", filepath.Base(on.Path()), func(p journal.Pod) bool { return p.Tree != nil })
}

func (v written) publication(tree *beneath.Dir) {
	v.must("publication", filepath.Base(tree.Path()), func(p journal.Pod) bool { return p.Publication != nil })
}

func (v written) grant(target *beneath.Dir) {
	name := filepath.Base(target.Path())
	v.must("grant "+name, filepath.Base(filepath.Dir(target.Path())), func(p journal.Pod) bool {
		e := p.Find(name)
		return e != nil && e.State == journal.Granting
	})
}

// unmount is told of every unmount; it looks at those of grants in a tree.
func (v written) unmount(dir *beneath.Dir, name string) {
	if filepath.Dir(dir.Path()) != filepath.Join(v.root, "pods") {
		return
	}
	v.must("revocation of "+name, filepath.Base(dir.Path()), func(p journal.Pod) bool {
		e := p.Find(name)
		// What could not be proven after it was mounted is undone as it is.
		return e != nil && e.State != journal.Mounted
	})
}

// newWritten is for the agent with this configuration.
func newWritten(cfg *agent.Config, w *tracer) written { return written{cfg.Root, w} }

// mustHaveRecorded fails where an agent made a step that was not in the journal.
func (n *node) mustHaveRecorded() {
	n.t.Helper()
	for _, a := range n.agents {
		text, err := os.ReadFile(a.trace)
		must(n.t, err)
		lines := slices.Collect(strings.Lines(string(text)))
		for _, line := range lines {
			if what, is := strings.CutPrefix(line, unrecorded); is {
				n.t.Errorf("before it was made, the journal did not have the %s", strings.TrimSpace(what))
			}
		}
	}
}
