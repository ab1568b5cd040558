package cli

import (
	"testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/nodeview"
)

func TestWhatIsBeingFetchedSaysHowFarItIs(t *testing.T) {
	fetching := nodeview.Mount{State: nodeview.StateFetching, Progress: &nodeview.Progress{Phase: "fetching", Bytes: 3 << 19}}
	notReady := string(grant.CodeNotReady)
	for name, c := range map[string]struct {
		target, want target
		mount        nodeview.Mount
	}{
		"not answered yet":  {target{State: targetPending}, target{State: targetFetching, Reason: "fetching, 1.5 MiB so far"}, fetching},
		"answered: not yet": {target{State: targetFailed, Code: notReady, Reason: "wait"}, target{State: targetFetching, Code: notReady, Reason: "fetching, 1.5 MiB so far"}, fetching},
		"failed otherwise":  {target{State: targetFailed, Code: "X"}, target{State: targetFailed, Code: "X"}, fetching},
		"ending":            {target{State: stateEnding}, target{State: stateEnding}, fetching},
		"mounted by now":    {target{State: targetPending}, target{State: targetPending}, nodeview.Mount{State: "mounted"}},
		"not begun":         {target{State: targetPending}, target{State: targetFetching, Reason: "beginning, 0 B so far"}, nodeview.Mount{State: nodeview.StateFetching, Progress: &nodeview.Progress{}}},
		"just less than 1":  {target{State: targetPending}, target{State: targetFetching, Reason: "writing, 1023 B so far"}, nodeview.Mount{State: nodeview.StateFetching, Progress: &nodeview.Progress{Phase: "writing", Bytes: 1023}}},
	} {
		if c.target.fetched(c.mount); c.target != c.want {
			t.Errorf("%s: %+v, want %+v", name, c.target, c.want)
		}
	}
}
