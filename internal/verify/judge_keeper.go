package verify

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/nodeview"
)

// processes are the kinds a node serves whose filesystem is a process.
func processes(n nodeview.Node) []grant.Kind {
	var kinds []grant.Kind
	for _, k := range grant.Kinds() {
		if k.Delivery == grant.DeliveryProcess && slices.Contains(n.Serves, k.Kind) {
			kinds = append(kinds, k.Kind)
		}
	}
	return kinds
}

func keeperThere(f Facts) []Result {
	return perNode(f, func(n nodeview.Node) Result {
		kinds := processes(n)
		switch {
		case len(kinds) == 0:
			return Result{Status: Skip, Detail: "no kind is served that needs one"}
		case n.Keeper == nil:
			return Result{Status: Fail, Detail: fmt.Sprintf("the agent serves %s and tells of no keeper", kinds[0])}
		case !n.Keeper.There:
			return Result{Status: Fail, Detail: cmp.Or(n.Keeper.Reason, "the agent gives no reason")}
		}
		return Result{Status: OK, Detail: "runs " + plural(n.Keeper.Children, "process", "processes")}
	})
}

func keeperVersion(f Facts) []Result {
	return perNode(f, func(n nodeview.Node) Result {
		k := n.Keeper
		if k == nil || !k.There {
			return Result{Status: Skip, Detail: "no keeper tells of itself"}
		}
		both := fmt.Sprintf("keeper %s, agent %s", cmp.Or(k.Version, "unknown"), cmp.Or(n.Version, "unknown"))
		if k.Version == n.Version {
			return Result{Status: OK, Detail: both}
		}
		keeper, err := version.ParseSemantic(k.Version)
		agent, agentErr := version.ParseSemantic(n.Version)
		switch {
		case err != nil || agentErr != nil:
			return Result{Status: Skip, Detail: both + ": which one is older cannot be told"}
		case keeper.LessThan(agent):
			return Result{Status: Warn, Detail: both}
		}
		return Result{Status: OK, Detail: both}
	})
}
