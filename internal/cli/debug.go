package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/bundle"
	"github.com/datalayer/node-mounts/internal/fleet"
)

// debugging are the flags of debug.
type debugging struct {
	cluster
	asking
	file    string
	version string
}

func newDebug(version string) *cobra.Command {
	d := debugging{version: version}
	cmd := &cobra.Command{
		Use:   "debug POD",
		Short: "Collect what is known about a Pod's mounts into one file, without secrets",
		Long: `debug collects what somebody needs who is to find out why a Pod's folders are not
there: the Pod, its events, what its node's agent sees and logs, its keeper, the node, the
DaemonSet and the versions. A README.txt in it says what is there.

It reads no Secret. The values of environment variables, commands, arguments,
probes, hooks and foreign annotations are left out, other Pods' names and folders
too, and what looks like a secret is taken out of everything else. What kubelet
tells of the containers loses every word of those values, and all that a probe or
a hook printed. What may not be read is listed with the reason, and is no error.`,
		Example: `  node-mounts debug sandbox -n datalayer-runtimes
  node-mounts debug sandbox -o report.tar.gz`,
		Args: takes(1, 1, "a POD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := d.asking.check(); err != nil {
				return err
			}
			return d.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0])
		},
	}
	d.cluster.bind(cmd)
	d.asking.bind(cmd)
	cmd.Flags().StringVarP(&d.file, "output", "o", "", "file (.tar.gz) or folder to write; without it node-mounts-debug-POD-TIME.tar.gz here")
	takesFile(cmd, "output")
	cmd.ValidArgsFunction = d.completePod(anyPod, nil)
	return cmd
}

func (d *debugging) run(ctx context.Context, out, errOut io.Writer, arg string) error {
	s, ref, err := d.open(arg)
	if err != nil {
		return err
	}
	p, err := s.read(ctx, ref)
	if err != nil {
		return err
	}
	now := time.Now()
	name := "node-mounts-debug-" + p.Name + "-" + now.UTC().Format("20060102T150405Z")
	if d.file == "" {
		d.file = name + ".tar.gz"
	}
	redact := redactorFor(p)
	c := collector{session: s, pod: p, agents: s.agents(d.asking), strict: redact, into: bundle.New(name, now, redact)}
	c.collect(ctx, d.version)
	if err := c.into.Write(d.file); err != nil {
		err = fmt.Errorf("write the bundle: %w", err)
		if errors.Is(err, fs.ErrExist) {
			return advice.With(err, "-o chooses another name")
		}
		return err
	}
	for _, m := range c.into.Missing() {
		fmt.Fprintln(errOut, advice.Plain("left out: "+m))
	}
	fmt.Fprintf(out, "%s: %d files. Its README.txt says what is in it.\n", d.file, c.into.Len())
	return nil
}

// collector collects about one Pod.
type collector struct {
	*session
	pod    *corev1.Pod
	agents fleet.Agents
	// strict is for what kubelet says of the Pod's containers.
	strict *bundle.Redactor
	into   *bundle.Bundle
}

func (c *collector) collect(ctx context.Context, version string) {
	c.into.Document("pod.json", "the Pod", saidStrictly(reducedPod(c.pod, c.names), c.strict))
	c.events(ctx)
	agent := c.agent(ctx)
	c.node(ctx)
	c.daemonSets(ctx)
	c.versions(version, agent)
}

func (c *collector) events(ctx context.Context) {
	const name = "events.json"
	list, err := c.api.Events(c.pod.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.kind": "Pod", "involvedObject.name": c.pod.Name}.String(), Limit: pageSize,
	})
	if err != nil {
		c.into.Miss(name, err)
		return
	}
	events := []map[string]any{}
	for _, e := range list.Items {
		if e.InvolvedObject.UID != "" && e.InvolvedObject.UID != c.pod.UID {
			continue // of an earlier Pod of this name
		}
		events = append(events, map[string]any{
			"type": e.Type, "reason": e.Reason, "message": eventText(e.Reason, e.Message, c.strict), "count": e.Count, "first": e.FirstTimestamp, "last": e.LastTimestamp,
			"time": e.EventTime, "from": cmp.Or(e.ReportingController, e.Source.Component),
		})
	}
	c.into.Document(name, "events of the Pod", events)
}

// agent collects about the agent of the Pod's node, and what the Pod's status is with
// what it sees. It returns the agent, nil where there is none.
func (c *collector) agent(ctx context.Context) *fleet.Answer {
	sum := summarize(c.pod, c.names)
	defer func() { c.into.Document("status.json", "what the Pod asks for and what became of it", sum) }()
	if c.pod.Spec.NodeName == "" {
		c.into.Miss("agent.json", errors.New("the Pod is on no node yet"))
		return nil
	}
	seen := look(ctx, c.agents, []string{c.pod.Spec.NodeName})
	for _, u := range seen.unknown {
		c.into.Miss("agent-view.json", errors.New(u))
	}
	seen.add(&sum)
	a, found := seen.nodes[c.pod.Spec.NodeName]
	if !found || a.Pod == "" {
		return nil
	}
	if a.View != nil {
		c.into.Document("agent-view.json", "what the agent of the Pod's node sees", viewFor(*a.View, string(c.pod.UID)))
	}
	c.agentPod(ctx, a)
	return &a
}

const (
	logLines = 5000
	logBytes = 8 << 20
)

func (c *collector) agentPod(ctx context.Context, a fleet.Answer) {
	p, err := c.api.Pods(a.Namespace).Get(ctx, a.Pod, metav1.GetOptions{})
	if err != nil {
		c.into.Miss("agent.json", err)
	} else {
		c.into.Document("agent.json", "the agent's Pod", saidStrictly(reducedPod(p, c.names), redactorFor(p)))
	}
	at := fleet.Place{Namespace: a.Namespace, Pod: a.Pod, Container: fleet.Container}
	c.log(ctx, at, "agent.log", "the end of the agent's log: what is about this Pod or about none", false)
	if p != nil && restarted(*p) {
		c.log(ctx, at, "agent-before.log", "the same of the agent's container before its last restart", true)
	}
	c.keeper(ctx, a)
}

func restarted(p corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.RestartCount > 0 })
}

// keeper collects about the keeper of the agent's node, where there is one.
func (c *collector) keeper(ctx context.Context, a fleet.Answer) {
	list, err := c.api.Pods(a.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: fleet.KeeperSelector, FieldSelector: fields.OneTermEqualSelector("spec.nodeName", a.Node).String(), Limit: pageSize,
	})
	if err != nil {
		c.into.Miss("keeper.json", err)
		return
	}
	if len(list.Items) == 0 {
		return
	}
	p := slices.MaxFunc(list.Items, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	c.into.Document("keeper.json", "the keeper's Pod", saidStrictly(reducedPod(&p, c.names), redactorFor(&p)))
	at := fleet.Place{Namespace: p.Namespace, Pod: p.Name, Container: fleet.KeeperContainer}
	c.log(ctx, at, "keeper.log", "the end of the keeper's log: what is about this Pod or about none", false)
	if restarted(p) {
		c.log(ctx, at, "keeper-before.log", "the same of the keeper's container before its last restart", true)
	}
}

// log adds the end of a container's log: what is about this Pod or about none.
func (c *collector) log(ctx context.Context, at fleet.Place, name, about string, before bool) {
	lines, most := int64(logLines), int64(logBytes)
	in, err := c.api.Pods(at.Namespace).GetLogs(at.Pod, &corev1.PodLogOptions{
		Container: at.Container, Previous: before, TailLines: &lines, LimitBytes: &most,
	}).Stream(ctx)
	if err != nil {
		c.into.Miss(name, err)
		return
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, logBytes))
	if err != nil {
		c.into.Miss(name, err)
		return
	}
	var kept []string
	for l := range strings.Lines(string(text)) {
		if l = strings.TrimSuffix(l, "\n"); concerns(l, c.pod) {
			kept = append(kept, l)
		}
	}
	c.into.Lines(name, about, kept)
}

func (c *collector) node(ctx context.Context) {
	if c.pod.Spec.NodeName == "" {
		return
	}
	n, err := c.api.Nodes().Get(ctx, c.pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		c.into.Miss("node.json", err)
		return
	}
	c.into.Document("node.json", "the Pod's node", map[string]any{
		"name": n.Name, "created": n.CreationTimestamp, "unschedulable": n.Spec.Unschedulable, "taints": n.Spec.Taints,
		"conditions": n.Status.Conditions, "nodeInfo": n.Status.NodeInfo,
	})
}

func (c *collector) daemonSets(ctx context.Context) {
	const name = "daemonsets.json"
	list, err := c.client.AppsV1().DaemonSets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: fleet.Selector})
	if err != nil {
		c.into.Miss(name, err)
		return
	}
	sets := []map[string]any{}
	for _, d := range list.Items {
		sets = append(sets, map[string]any{
			"namespace": d.Namespace, "name": d.Name, "labels": d.Labels, "generation": d.Generation, "updateStrategy": d.Spec.UpdateStrategy,
			"spec": reducedSpec(d.Spec.Template.Spec), "status": d.Status,
		})
	}
	c.into.Document(name, "the agents' DaemonSet", sets)
}

func (c *collector) versions(version string, agent *fleet.Answer) {
	v := map[string]string{"command": version, "platform": runtime.GOOS + "/" + runtime.GOARCH}
	server, err := c.client.Discovery().ServerVersion()
	if err != nil {
		c.into.Miss("versions.json, the API server's", err)
	} else {
		v["kubernetes"] = server.GitVersion
	}
	if agent != nil && agent.View != nil {
		v["agent"], v["kernel"] = agent.View.Version, agent.View.Facts.Kernel
	}
	c.into.Document("versions.json", "versions", v)
}
