package agentcmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent"
	"github.com/datalayer/node-mounts/internal/deadline"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/journal"
	"github.com/datalayer/node-mounts/internal/kube"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/obs"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/procs"
	"github.com/datalayer/node-mounts/internal/secret"
)

const procDir = "/proc"

// stopTimeout is how long requests under way may take when the agent stops.
const stopTimeout = 5 * time.Second

// startTimeout is how long the agent may take to find out what stands on the
// node. It reads one table and asks each standing mount's storage with a bound.
const startTimeout = 2 * time.Minute

// node is the running agent with what its endpoints tell.
type node struct {
	settings   settings
	version    string
	log        *slog.Logger
	controller *kube.Controller
	gateway    *agent.Agent
	budget     *deadline.Budget
	began      time.Time
	started    atomic.Bool // the agent knows what stands on the node
	describing sync.Mutex  // of the node, one at a time
	serves     []grant.Kind
	secrets    bool // Secrets that grants name are read
	keeper     delivery.Keeper
}

// run assembles the agent and runs it until ctx ends, which is no error. Every
// mount is left standing: the next agent adopts them.
func run(ctx context.Context, version string, s settings, log *slog.Logger, edits ...Edit) error {
	kube.RouteLogs(log)
	client, err := kube.Connect(s.kubeconfig, "node-mounts-agent/"+version)
	switch {
	case errors.Is(err, kube.ErrNoCluster):
		return refuse(err, "run it in a Pod with a service account, or set --kubeconfig or KUBECONFIG")
	case err != nil:
		return refuse(err, "check --kubeconfig, or the service account of the agent's Pod")
	}
	names := grant.NamesFor(s.prefix)
	controller, err := kube.New(kube.Config{
		Client: client, Node: s.node, Namespace: s.namespace, Names: names, Volume: s.volume, Log: log,
	})
	if err != nil {
		return err
	}
	boot, bootErr := BootID(procDir)
	pol, polErr := policy(s)
	if err := errors.Join(bootErr, polErr); err != nil {
		return refuse(err, "mount /proc in the agent's container")
	}
	recorder := obs.NewRecorder(version, obs.KernelRelease())
	group, ctx := errgroup.WithContext(ctx)
	budget := &deadline.Budget{}
	cfg := agent.Config{
		Policy: pol, Root: s.root, Kubelet: s.kubelet, BootID: boot,
		Claim: agent.Claim{Path: s.sharedRoot, Owner: s.owner, Bound: agent.DefaultBound},
		Table: &mnt.Kernel{}, Processes: procs.New(procDir), API: controller, Budget: budget,
		Metrics: recorder, Clock: clock.RealClock{}, Log: log, HostMounts: theNode(procDir).lister(),
		NFS:       s.exports(),
		Checkouts: s.checkouts(boot, log),
		Secrets:   &secret.Reader{Source: kube.Secrets{Client: client}},
	}
	if err := errors.Join(s.processes(ctx, &cfg, kube.NewKeeper(client, s.keeper, s.node, s.kubelet).Dial, log), s.tells(ctx, &cfg, version)); err != nil {
		return err
	}
	for _, edit := range edits {
		if err := edit(&cfg); err != nil {
			return err
		}
	}
	gateway, err := agent.New(ctx, cfg)
	switch {
	case errors.Is(err, journal.ErrLocked):
		return refuse(fmt.Errorf("an agent runs on this node already, or Pods of it are being recovered: %w", err),
			"end the other process, or give this one a folder of its own (--root)")
	case err != nil:
		return refuse(fmt.Errorf("open the agent's own folder: %w", err), "check --root: a host path that root may write to")
	}
	defer gateway.Close()
	n := &node{
		settings: s, version: version, log: log, controller: controller, gateway: gateway, budget: budget, began: time.Now(),
		serves: served(cfg.Policy), secrets: cfg.Policy.Credentials, keeper: cfg.Keeper,
	}
	if err := n.listen(ctx, group, recorder); err != nil {
		return err
	}
	log.Info("starting", "version", version, "node", s.node, "namespace", s.namespace, "kernel", obs.KernelRelease(),
		"annotation", names.Mounts, "shared_root", s.sharedRoot, "root", s.root, "kubelet_dir", s.kubelet)
	group.Go(func() error { return n.serve(ctx, group) })
	err = group.Wait()
	log.Info("stopped: every mount is left standing")
	return err
}

// tells sets up events, where they are on.
func (s settings) tells(ctx context.Context, cfg *agent.Config, version string) error {
	if !s.events {
		return nil
	}
	// A client of their own: its limit of requests must not hold up an answer.
	own, err := kube.Connect(s.kubeconfig, "node-mounts-agent/"+version)
	if err != nil {
		return err
	}
	cfg.Events = kube.NewEvents(ctx, own, s.node)
	return nil
}

func policy(s settings) (plan.Policy, error) {
	pol := agent.DefaultPolicy(s.node)
	pol.MaxPerPod, pol.MaxPerNode = s.maxPerPod, s.maxPerNode
	pol.VolumeName, pol.SandboxedRuntimes = s.volume, s.sandboxed
	pol.Serves[grant.KindNFS], pol.Serves[grant.KindGit], pol.Serves[grant.KindCloudStorage] = s.nfs, s.git.on, s.buckets.on
	pol.Credentials = s.credentials
	var err error
	pol.SELinux, err = selinux(procDir)
	return pol, err
}

// serve finds out what stands on the node, then reconciles and sweeps until ctx
// ends.
func (n *node) serve(ctx context.Context, group *errgroup.Group) error {
	uids, err := n.gateway.Start(ctx)
	if err != nil {
		return fmt.Errorf("find out what is mounted: %w", err)
	}
	n.started.Store(true)
	for _, uid := range uids {
		n.controller.Enqueue(uid) // looked at after the first list, as all others
	}
	group.Go(func() error { return untilEnd(ctx, n.gateway.Run(ctx)) })
	return untilEnd(ctx, n.controller.Run(ctx, n.gateway))
}

// untilEnd drops the error of something that ended because ctx did.
func untilEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// listen serves the endpoints until ctx ends, unless they are off.
func (n *node) listen(ctx context.Context, group *errgroup.Group, r *obs.Recorder) error {
	if n.settings.healthPort == 0 {
		return nil
	}
	addr := net.JoinHostPort("", strconv.Itoa(n.settings.healthPort))
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return refuse(fmt.Errorf("serve health and metrics: %w", err), "another process has the port: set --health-port, or 0 for none")
	}
	server := obs.NewServer(addr, obs.Handler(obs.Deps{
		Alive: n.alive, Ready: n.ready, Gateway: func() any { return n.view(ctx) }, Registry: r.Gatherer(),
	}))
	server.ErrorLog = slog.NewLogLogger(n.log.Handler(), slog.LevelDebug)
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve health and metrics: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if err := server.Shutdown(last); err != nil {
			return server.Close() // a request that takes longer is cut off
		}
		return nil
	})
	return nil
}

// alive is the liveness probe's answer: a restart helps where a loop stands
// still, and nowhere else. Starting is no standstill, for a while.
func (n *node) alive() error {
	if n.started.Load() {
		return n.gateway.Alive()
	}
	if took := time.Since(n.began); took > startTimeout {
		return fmt.Errorf("starting for %s", took.Round(time.Second))
	}
	return nil
}

// ready is the readiness probe's answer.
func (n *node) ready() error {
	switch {
	case !n.started.Load():
		return errors.New("starting: what is mounted on this node is not known yet")
	case n.gateway.Fault() != "":
		return errors.New(n.gateway.Fault())
	case !n.controller.Synced():
		return errors.New("the pods of this node have not been listed yet: check the agent's network, service account and RBAC")
	}
	return n.controller.Answerable()
}
