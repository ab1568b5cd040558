package system_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/datalayer/node-mounts/grant"
)

// twoWriters add to the same Pod at the same time, each unaware of the other, and
// the agent answers in between.
func twoWriters(t *testing.T, c *cluster) {
	const each = 15
	n := c.node(t)
	var all []grant.Mount
	for _, who := range []string{"a", "b"} {
		for i := range each {
			rel := fmt.Sprintf("home/%s/%02d", who, i)
			n.folder(rel)
			all = append(all, home(rel, fmt.Sprintf("%s%02d", who, i)))
		}
	}
	n.claim = n.checksums()
	p := n.run("sandbox")
	n.startAgent(agentOptions{})
	var wg sync.WaitGroup
	for _, mine := range [][]grant.Mount{all[:each], all[each:]} {
		wg.Go(func() {
			for _, m := range mine {
				if _, err := n.operator.Add(t.Context(), p.named(), m); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	asked, err := n.operator.Asked(t.Context(), p.named())
	must(t, err)
	p.mustBeReady(p.answered(asked), all)
	p.mustHave(all)
	p.delete()
}
