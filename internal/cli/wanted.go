package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/operator"
)

// wanted is what a command that waits has asked for, and judges the answer by. Where
// it names targets, what is said of others is no concern of its: somebody else's
// folder that is held would otherwise fail whoever grants beside it.
type wanted struct {
	asked   operator.Asked
	timeout time.Duration
	// mounted are targets that are to be mounted, gone those that are not to be there
	// any more. Without either the set is what is wanted: all of it, and nothing else.
	mounted, gone []string
}

// targets are those that the command is about, none where that is the whole set.
func (w wanted) targets() []string { return slices.Concat(w.mounted, w.gone) }

// takes tells whether the command only takes away.
func (w wanted) takes() bool {
	set := grant.Decode(w.asked.Annotation)
	return len(w.gone) > 0 || len(w.mounted) == 0 && set.Whole == nil && len(set.Mounts)+len(set.Refused) == 0
}

// flaw is one thing that is not as it is wanted. Code is empty where the answer does
// not say it, but shows it.
type flaw struct {
	key  string
	code grant.Code
	what string
}

// flaws compares an answer with what is wanted. The state that it sums itself up to
// is not relied on: anything that may patch the Pod can write one.
func (w wanted) flaws(st grant.Status) []flaw {
	set := grant.Decode(w.asked.Annotation)
	mounted, gone := w.mounted, w.gone
	keys := append(w.targets(), grant.WholeSet)
	if whole := len(w.targets()) == 0; whole {
		mounted = set.Targets()
		for _, t := range st.Mounted {
			if !slices.Contains(mounted, t) {
				gone = append(gone, t)
			}
		}
		keys = nil
		for key := range st.Failed {
			keys = append(keys, key)
		}
	}
	found := map[string]flaw{}
	for _, key := range keys {
		code, failed := st.Failed[key]
		again := code == grant.CodeHeld && stands(st, key) && slices.Contains(w.mounted, key) // what is held is the mount before
		if failed && !again {
			found[key] = flaw{key, code, string(code)}
		}
	}
	add := func(key, what string) {
		if _, told := found[key]; !told {
			found[key] = flaw{key: key, what: what}
		}
	}
	for _, t := range mounted {
		if !stands(st, t) && !shortened(st) {
			add(t, "not among what is mounted")
		}
	}
	for _, t := range gone {
		if stands(st, t) {
			add(t, "still mounted")
		}
	}
	out := make([]flaw, 0, len(found))
	for _, f := range found {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b flaw) int { return strings.Compare(a.key, b.key) })
	return out
}

func stands(st grant.Status, target string) bool { return slices.Contains(st.Mounted, target) }

// shortened tells whether an answer had no room for all that is mounted: it says so
// in a message of the whole set that has not failed.
func shortened(st grant.Status) bool {
	_, failed := st.Failed[grant.WholeSet]
	return st.Messages[grant.WholeSet] != "" && !failed
}

// verdict is the error of an answer by which something is not as it is wanted.
func (s *session) verdict(w wanted, st grant.Status) error {
	var what, hints []string
	advise := func(text string) {
		if text != "" && !slices.Contains(hints, text) {
			hints = append(hints, text)
		}
	}
	flaws := w.flaws(st)
	for _, f := range flaws {
		what = append(what, f.key+": "+f.what)
		advise(remedy(f.code))
		if strings.HasPrefix(f.key, "#") {
			advise(s.nameless(w.asked.Pod))
		}
		if f.code == "" {
			advise("`node-mounts status " + s.mine(w.asked.Pod) + "` shows what is asked for and what is answered.")
		}
	}
	if len(flaws) == 0 {
		return nil
	}
	return advice.With(
		fmt.Errorf("the Pod %s/%s is %s (%s)", w.asked.Namespace, w.asked.Name, st.State, strings.Join(what, ", ")),
		strings.Join(hints, " "),
	)
}

// nameless says how an entry goes that has no valid target, and so no name to revoke
// it by.
func (s *session) nameless(pod operator.Pod) string {
	return "An entry without a valid target cannot be revoked alone: `node-mounts grant " + s.mine(pod) + " -f FILE --replace` writes the set anew."
}
