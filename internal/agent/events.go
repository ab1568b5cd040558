package agent

import (
	"fmt"
	"slices"
	"strings"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/plan"
)

// Reasons of the events on a Pod, as `kubectl describe pod` shows them.
const (
	ReasonReady    = "NodeMountsReady"
	ReasonDegraded = "NodeMountsDegraded"
	ReasonFailed   = "NodeMountsFailed"
	ReasonHeld     = "NodeMountHeld"
	ReasonFetching = "NodeMountFetching"
	ReasonLost     = "NodeMountContentLost"
)

// Events tells people what happens to a Pod's mounts. Losing one loses nothing
// else. *kube.Events is one.
type Events interface {
	// Event is about one Pod. warning marks what somebody should look at.
	Event(p plan.Pod, warning bool, reason, message string)
}

// NoEvents tells nobody.
type NoEvents struct{}

// Event implements Events.
func (NoEvents) Event(plan.Pod, bool, string, string) {}

// tell makes an event of an answer that has been written.
func (a *Agent) tell(p plan.Pod, st grant.Status) {
	mounted := "nothing is mounted"
	if len(st.Mounted) > 0 {
		mounted = "mounted: " + strings.Join(st.Mounted, ", ")
	}
	if st.State == grant.StateReady {
		a.Events.Event(p, false, ReasonReady, mounted)
		return
	}
	reason := ReasonDegraded
	if st.State == grant.StateFailed {
		reason = ReasonFailed
	}
	var why []string
	for key, code := range st.Failed {
		name := key
		if key == grant.WholeSet {
			name = "the set"
		}
		why = append(why, fmt.Sprintf("%s: %s (%s)", name, st.Messages[key], code))
	}
	slices.Sort(why)
	a.Events.Event(p, true, reason, strings.Join(why, "; ")+"; "+mounted)
}
