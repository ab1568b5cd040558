package agent_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/mnt/mnttest"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/procs"
)

const codePrefix = "NODE_MOUNT_GATEWAY_"

// tellPass says what a pass did and when there is to be another.
func (w *world) tellPass(again time.Duration, err error) []string {
	lines := w.tellNews()
	switch {
	case errors.Is(err, errDead):
		return append(lines, "the agent dies")
	case err != nil:
		return append(lines, "error: "+w.paths(err.Error()))
	case again > 0:
		return append(lines, "again after "+again.Round(time.Millisecond).String())
	}
	return append(lines, "done")
}

// tellNews says what the agent has mounted, unmounted and answered since.
func (w *world) tellNews() []string {
	lines := w.tellMounting()
	for _, uid := range w.api.take() {
		lines = append(lines, w.tellAnswer(uid)...)
	}
	return lines
}

// tellMounting lists what the mount table was asked. The grants of a pass are made
// in parallel, so between two steps that have an order they are sorted by target.
// An unmount that is tried again and again is told once.
func (w *world) tellMounting() []string {
	all := w.table.Log()
	lines := slices.Clone(all[w.told:])
	w.told = len(all)
	for i := range lines {
		lines[i] = w.paths(lines[i])
	}
	for begin := 0; begin < len(lines); {
		end := begin
		for end < len(lines) && grantOf(lines[end]) != "" {
			end++
		}
		slices.SortStableFunc(lines[begin:end], func(a, b string) int { return cmp.Compare(grantOf(a), grantOf(b)) })
		begin = end + 1
	}
	var told []string
	for i, l := range lines {
		switch {
		case i > 0 && l == lines[i-1]:
		case i+1 < len(lines) && l == lines[i+1]:
			told = append(told, l+", again and again")
		default:
			told = append(told, l)
		}
	}
	return told
}

// grantOf is the grant that a line of the log is about, "" where it is about a
// tree or a publication.
func grantOf(line string) string {
	words := strings.Fields(line)
	at := strings.TrimSuffix(words[1], ":")
	if words[0] == "bind" {
		at = words[3]
	}
	if strings.Count(at, "/") < 2 {
		return ""
	}
	return at
}

// tellAnswer says what the Pod's answer is.
func (w *world) tellAnswer(uid string) []string {
	st := w.api.Status(w.t, uid)
	if st == nil {
		return []string{"no answer"}
	}
	head := "answer " + string(st.State)
	p, _, err := w.api.Confirm(w.t.Context(), plan.Ref{UID: uid})
	switch {
	case err != nil:
	case p.Grant == nil:
		head += " although nothing is asked"
	case grant.Decode(*p.Grant).Hash != st.Hash:
		head += " to another set"
	}
	if len(st.Mounted) > 0 {
		head += ": " + strings.Join(st.Mounted, " ")
	}
	lines := []string{head}
	for _, key := range slices.Sorted(maps.Keys(st.Failed)) {
		lines = append(lines, fmt.Sprintf("  %s %s: %s", key, strings.TrimPrefix(string(st.Failed[key]), codePrefix), w.tellMessage(st.Messages[key])))
	}
	return lines
}

// tellMessage leaves out which process could not be looked into, and why: that is
// the finder's to say.
func (w *world) tellMessage(m string) string {
	doubt := procs.ErrCannotTell.Error()
	if before, _, ok := strings.Cut(m, doubt); ok {
		m = before + doubt
	}
	return w.paths(m)
}

// tellMounts lists the mounts on the claim, in trees and on volumes.
func (w *world) tellMounts() []string {
	mounts := w.table.Mounts()
	var lines []string
	for _, m := range mounts {
		if m.Point == "/" || m.Point == w.claim {
			continue
		}
		lines = append(lines, w.paths(m.Point)+" "+w.tellMount(m, mounts))
	}
	// By place; what stands on one place stays in its order, the topmost last.
	slices.SortStableFunc(lines, func(a, b string) int {
		return cmp.Compare(strings.Fields(a)[0], strings.Fields(b)[0])
	})
	return orNothing(lines)
}

// tellMount says what is mounted: a folder of which filesystem, with which flags.
func (w *world) tellMount(m mnt.Mount, mounts []mnt.Mount) string {
	what := m.FSType
	for _, first := range mounts { // a filesystem is called by where it was mounted first
		if first.Dev == m.Dev {
			what = w.paths(filepath.Join(first.Point, m.Root))
			break
		}
	}
	if m.FSType == "tmpfs" && what == w.paths(m.Point) {
		what = "tmpfs"
	}
	return "= " + what + " " + m.Flags.String()
}

// tellView lists what a container sees in its volume.
func (w *world) tellView(a *actor) []string {
	mounts := w.table.Mounts()
	var lines []string
	for _, m := range a.view.Mounts() {
		if name, ok := strings.CutPrefix(m.Point, mnttest.MountPath+"/"); ok {
			lines = append(lines, name+" "+w.tellMount(m, mounts))
		}
	}
	slices.Sort(lines)
	return orNothing(lines)
}

// tellFolders lists the folders in the Pod's tree that nothing is mounted on: the
// sandbox sees them, and they are empty.
func (w *world) tellFolders(uid string) []string {
	entries, err := os.ReadDir(w.tree(uid))
	if err != nil {
		return []string{"no tree"}
	}
	var lines []string
	for _, e := range entries {
		at := filepath.Join(w.tree(uid), e.Name())
		if !slices.ContainsFunc(w.table.Mounts(), func(m mnt.Mount) bool { return m.Point == at }) {
			lines = append(lines, e.Name()+" is an empty folder")
		}
	}
	return orNothing(lines)
}

// tellJournal is the Pod's record in short.
func (w *world) tellJournal(uid string) []string {
	b, err := os.ReadFile(filepath.Join(w.root, "journal", uid+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return []string{"no record"}
	}
	w.must(err)
	var j journal.Pod
	w.must(json.Unmarshal(b, &j))
	lines := []string{j.BootID}
	for name, base := range map[string]*journal.Base{"tree": j.Tree, "publication": j.Publication} {
		switch {
		case base == nil:
		case base.Record == nil:
			lines = append(lines, name+" wanted")
		default:
			lines = append(lines, name)
		}
	}
	for _, e := range j.Mounts {
		lines = append(lines, fmt.Sprintf("%s %s: %s %s %s", e.Target, e.State, e.Identity.Kind, e.Identity.Source, e.Identity.Mode))
	}
	for _, h := range j.Held {
		lines = append(lines, fmt.Sprintf("%s held: %s", h.Target, h.Why))
	}
	slices.Sort(lines)
	return lines
}

// tellMetrics lists the agent's own counters and gauges that are not 0.
func (w *world) tellMetrics() []string {
	families, err := w.metrics.Gatherer().Gather()
	w.must(err)
	var lines []string
	for _, f := range families {
		name, ok := strings.CutPrefix(f.GetName(), "datalayer_mount_gateway_")
		if !ok || name == "build_info" {
			continue
		}
		for _, m := range f.GetMetric() {
			n := m.GetCounter().GetValue() + m.GetGauge().GetValue()
			if n == 0 {
				continue
			}
			line := name
			for _, l := range m.GetLabel() {
				line += " " + strings.TrimPrefix(l.GetValue(), codePrefix)
			}
			lines = append(lines, fmt.Sprintf("%s %g", line, n))
		}
	}
	return orNothing(lines)
}

func orNothing(lines []string) []string {
	if len(lines) == 0 {
		return []string{"nothing"}
	}
	return lines
}
