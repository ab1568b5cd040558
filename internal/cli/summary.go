package cli

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/grant"
)

// What a summary calls the state of a Pod, where it is not the answer's.
const (
	stateNone    = "none"    // nothing is asked
	statePending = "pending" // asked, and not answered yet
	// The Pod gets nothing any more, whatever it asks for, and what it had goes.
	stateEnding   = "ending"   // it is being deleted
	stateFinished = "finished" // its containers have ended for good
)

// What a summary calls the answer.
const (
	answerCurrent = "current"
	answerStale   = "stale" // to another set than the Pod asks for
	answerNone    = "none"
	answerGarbled = "unreadable"
)

// States of one target.
const (
	targetMounted  = "mounted"
	targetFailed   = "failed"
	targetDead     = "dead"     // it stands, and its storage does not answer
	targetHeld     = "held"     // taken away, and a process may still have it
	targetPending  = "pending"  // not answered yet
	targetFetching = "fetching" // its content is being made, as its agent sees it
	targetUnknown  = "unknown"  // the answer does not say
)

// summary is what is to be said of one Pod.
type summary struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       string    `json:"uid"`
	Node      string    `json:"node,omitempty"`
	Phase     string    `json:"phase,omitempty"`
	Created   time.Time `json:"created"`

	State  string `json:"state"`
	Answer string `json:"answer"`
	Hash   string `json:"hash,omitempty"`
	// Asked counts the entries of the set, Mounted, Failed and Held the targets. One
	// that was revoked, is held, and was granted again is both mounted and held.
	Asked   int `json:"asked"`
	Mounted int `json:"mounted"`
	Failed  int `json:"failed"`
	Held    int `json:"held"`
	// Published and Leaked are what the Pod's agent sees, and absent where it was not
	// asked or did not answer.
	Published *bool    `json:"published,omitempty"`
	Leaked    *int     `json:"leaked,omitempty"`
	Targets   []target `json:"targets"`
}

// target is what is to be said of one folder. Kind, Source and what follows are
// those of the grant, and empty where nothing valid is granted under this name.
type target struct {
	Target    string  `json:"target"`
	Kind      *string `json:"kind,omitempty"`
	Source    string  `json:"source,omitempty"`
	Mode      string  `json:"mode,omitempty"`
	AllowExec *bool   `json:"allow_exec,omitempty"`
	Revision  string  `json:"revision,omitempty"`
	Secret    string  `json:"secret,omitempty"`
	State     string  `json:"state"`
	Flags     string  `json:"flags,omitempty"` // of the mount, as its agent sees it
	Code      string  `json:"code,omitempty"`
	Reason    string  `json:"reason,omitempty"`
}

// summarize says what a Pod asks for and what was answered to that. An answer to
// another set counts for nothing.
func summarize(p *corev1.Pod, names grant.Names) summary {
	s := summary{
		Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName,
		Phase: string(p.Status.Phase), Created: p.CreationTimestamp.UTC(), State: stateNone, Answer: answerNone,
	}
	var set grant.Set
	text, asked := p.Annotations[names.Mounts]
	if asked {
		set = grant.Decode(text)
		s.State, s.Hash, s.Asked = statePending, set.Hash, len(set.Mounts)+len(set.Refused)
	}
	var answer *grant.Status
	if ready, ok := p.Annotations[names.Ready]; ok {
		st, err := grant.DecodeStatus(ready)
		switch {
		case err != nil:
			s.Answer = answerGarbled
		case st.Hash != set.Hash:
			s.Answer = answerStale
		default:
			answer, s.Answer, s.State = &st, answerCurrent, string(st.State)
		}
	}
	s.Targets = targets(set, answer)
	if over := noMore(p); over != "" {
		s.State = over
		for i := range s.Targets {
			if s.Targets[i].State == targetPending {
				s.Targets[i].State = over
			}
		}
	}
	s.count()
	return s
}

// noMore is the state of a Pod that gets no mounts any more, "" of others.
func noMore(p *corev1.Pod) string {
	switch {
	case p.DeletionTimestamp != nil:
		return stateEnding
	case p.Status.Phase == corev1.PodSucceeded, p.Status.Phase == corev1.PodFailed:
		return stateFinished
	}
	return ""
}

// count counts the targets. What is said of the whole set is no target: what it costs
// is counted with those that are.
func (s *summary) count() {
	for _, t := range s.Targets {
		if t.Target == grant.WholeSet {
			continue
		}
		switch t.State {
		case targetMounted:
			s.Mounted++
		case targetDead, targetFailed:
			s.Failed++
		}
		if t.Code == string(grant.CodeHeld) {
			s.Held++
		}
	}
}

// targets are the folders of a set and of the answer to it, nil where there is
// none yet, sorted; what concerns the whole set comes first.
func targets(set grant.Set, answer *grant.Status) []target {
	rows := []target{}
	for _, m := range set.Mounts {
		kind, exec := string(m.Kind), m.AllowExec
		rows = append(rows, judged(target{
			Target: m.Target, Kind: &kind, Source: m.Source, Mode: string(m.Mode), AllowExec: &exec,
			Revision: m.Revision, Secret: m.Secret,
		}, answer))
	}
	for _, r := range set.Refused {
		// The reason is known before the answer. The source is not shown: what is
		// wrong with it may be that it holds a password.
		rows = append(rows, judged(target{Target: r.Key, Code: string(r.Code), Reason: r.Message}, answer))
	}
	if r := set.Whole; r != nil {
		rows = append(rows, judged(target{Target: grant.WholeSet, Code: string(r.Code), Reason: r.Message}, answer))
	}
	if answer != nil {
		also := slices.Clone(answer.Mounted)
		for key := range answer.Failed {
			also = append(also, key)
		}
		for _, key := range also {
			if !slices.ContainsFunc(rows, func(t target) bool { return t.Target == key }) {
				rows = append(rows, judged(target{Target: key}, answer))
			}
		}
	}
	slices.SortFunc(rows, func(a, b target) int { return strings.Compare(a.Target, b.Target) })
	return rows
}

// judged adds what the answer says of the target.
func judged(t target, answer *grant.Status) target {
	if answer == nil {
		t.State = targetPending
		return t
	}
	code, failed := answer.Failed[t.Target]
	if failed {
		t.Code, t.Reason = string(code), cmp.Or(answer.Messages[t.Target], t.Reason)
	}
	stands := slices.Contains(answer.Mounted, t.Target)
	_, whole := answer.Failed[grant.WholeSet]
	switch {
	case failed && code == grant.CodeHeld && stands:
		t.State = targetMounted // again: what is held is the mount before
	case failed && code == grant.CodeHeld:
		t.State = targetHeld
	case failed && stands:
		t.State = targetDead
	case failed, t.Code != "":
		t.State = targetFailed
	case stands:
		t.State = targetMounted
	case whole:
		t.State = targetFailed
	default:
		t.State = targetUnknown
	}
	return t
}

// pageSize is how many Pods are asked for at a time, as kubectl does.
const pageSize = 500

// summaries are the Pods that have a grant, an answer, or the gateway's label, by
// namespace and name. Annotations cannot be selected by, so all Pods are read.
func (s *session) summaries(ctx context.Context) ([]summary, error) {
	found := []summary{}
	options := metav1.ListOptions{Limit: pageSize}
	for {
		list, err := s.api.Pods(s.namespace).List(ctx, options)
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			p := &list.Items[i]
			_, asked := p.Annotations[s.names.Mounts]
			_, answered := p.Annotations[s.names.Ready]
			_, pooled := p.Labels[s.names.Label]
			if asked || answered || pooled {
				found = append(found, summarize(p, s.names))
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	slices.SortFunc(found, func(a, b summary) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return found, nil
}
