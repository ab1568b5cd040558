package cli

import (
	"context"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/fleet"
	"github.com/datalayer/node-mounts/internal/install"
	"github.com/datalayer/node-mounts/internal/verify"
	"github.com/datalayer/node-mounts/operator"
)

// agentHalf are the checks between the two halves: those of verify, with the
// operator's half not expected yet.
func agentHalf(ctx context.Context, client kubernetes.Interface, cfg *rest.Config, s install.Serving) []install.Row {
	return verify.Judge(verify.Gather(ctx, verify.Cluster{
		API:    client,
		Agents: askedAgents{&fleet.Cluster{Client: client, Config: cfg, Namespace: s.AgentNamespace}},
		Settings: verify.Settings{
			Names: grant.NamesFor(s.Prefix), Volume: s.Volume, Namespace: s.Namespace, AgentNamespace: s.AgentNamespace,
			AgentOnly: true, Operator: verify.DefaultOperator, RuntimeAccount: verify.DefaultRuntimeAccount,
			Companions: []string{operator.DefaultCompanion}, SandboxedRuntimes: s.Sandboxed,
		},
	}))
}
