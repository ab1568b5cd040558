package install

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/fleet"
	"github.com/datalayer/node-mounts/internal/kube/absence"
	"github.com/datalayer/node-mounts/internal/nodeview"
	"github.com/datalayer/node-mounts/internal/verify"
)

const (
	// probeName is what the probe's Pods are called and labelled. The agents' labels
	// would make their DaemonSet adopt them.
	probeName = "node-mounts-preflight"
	// runLabel tells one installation's probes from another's.
	runLabel = "node-mounts.datalayer.io/run"
	// answerFile is where kubelet reads a container's last words: they come back in the
	// Pod's status, without the right to read logs.
	answerFile = "/dev/termination-log"
	// cleanupBound is how long taking the Pods away may take, also after an interrupt.
	cleanupBound = 20 * time.Second
)

// probe looks at every node that will have an agent, with a Pod that lives as long
// as it takes to look, and takes them away again.
func (c Cluster) probe(ctx context.Context, r Request, t *todo, nodes []corev1.Node) (rows []Row, err error) {
	if t.unchanged {
		return []Row{{Check: rowNode, Status: verify.Skip, Detail: "the agents that run are what was asked for: they tell of their nodes themselves"}}, nil
	}
	nodes, rows = reachable(t.agent.Spec.Template.Spec, nodes)
	if len(nodes) == 0 {
		return rows, nil
	}
	if err := c.sweepProbes(ctx, r.Namespace); err != nil {
		return rows, err
	}
	run := rand.String(8)
	c.tell("preflight: probing %d nodes", len(nodes))
	ctx, stop := context.WithTimeout(ctx, r.Timeout)
	defer stop()
	made := map[string]string{} // node by Pod
	defer func() { err = errors.Join(err, c.removeProbes(ctx, r.Namespace, run)) }()
	pods := c.Client.CoreV1().Pods(r.Namespace)
	for i := range nodes {
		p, err := pods.Create(ctx, probePod(t.agent, nodes[i].Name, run, r.Timeout), metav1.CreateOptions{})
		if err != nil {
			return rows, advice.With(
				fmt.Errorf("making the Pod that probes %s: %w", nodes[i].Name, err),
				"the agent's Pods would be refused too; --skip-preflight installs all the same",
			)
		}
		made[p.Name] = nodes[i].Name
	}
	found, err := c.answers(ctx, r.Namespace, made)
	return append(rows, found...), err
}

// reachable are the nodes that an agent will run on and whose kubelet answers, and
// rows about those it does not.
func reachable(pod corev1.PodSpec, nodes []corev1.Node) (there []corev1.Node, rows []Row) {
	for i := range nodes {
		switch {
		case !fleet.Covers(pod, &nodes[i]):
		case !ready(&nodes[i]):
			rows = append(rows, rowOf(
				rowNode, nodes[i].Name, verify.Warn, "its kubelet does not answer: not looked at",
				"it gets its agent when it is back: repeat this command, or run `node-mounts verify` then",
			))
		default:
			there = append(there, nodes[i])
		}
	}
	if len(there)+len(rows) == 0 {
		rows = append(rows, rowOf(rowNode, "", verify.Fail, "no node is selected", "check nodeSelector, affinity and tolerations of the chart"))
	}
	return there, rows
}

// probePod is a Pod that looks at a node: the agent's image where the agent will be,
// with its rights and its claim. It has no token, no folder of the node, and the
// claim read-only: it sees the node through the first process, by hostPID.
// Privileged it stays: SELinux and AppArmor show an unprivileged container less than
// an agent will see.
func probePod(a *agentSet, node, run string, bound time.Duration) *corev1.Pod {
	from := a.Spec.Template.Spec
	agent := agentOf(from)
	spec := corev1.PodSpec{
		NodeName: node, RestartPolicy: corev1.RestartPolicyNever, HostPID: true,
		Tolerations:      append(slices.Clone(from.Tolerations), corev1.Toleration{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists}),
		ImagePullSecrets: from.ImagePullSecrets, SecurityContext: from.SecurityContext,
		AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		ActiveDeadlineSeconds:         new(int64(bound/time.Second) + 60), // should nobody be left to take it away
		TerminationGracePeriodSeconds: new(int64(0)),
	}
	probe := corev1.Container{
		Name: fleet.Container, Image: agent.Image, ImagePullPolicy: agent.ImagePullPolicy, SecurityContext: agent.SecurityContext,
		Command:                append([]string{"/bin/sh", "-c", `"$0" probe -o json "$@" >` + answerFile}, probeArgs(agent)...),
		TerminationMessagePath: answerFile, TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
	for _, e := range agent.Env {
		if e.ValueFrom == nil {
			probe.Env = append(probe.Env, e)
		}
	}
	for _, v := range from.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		spec.Volumes = append(spec.Volumes, v)
		for _, m := range agent.VolumeMounts {
			if m.Name == v.Name {
				m.ReadOnly = true
				probe.VolumeMounts = append(probe.VolumeMounts, m)
			}
		}
	}
	spec.Containers = []corev1.Container{probe}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: probeName + "-", Labels: map[string]string{fleet.NameLabel: probeName, runLabel: run}},
		Spec:       spec,
	}
}

func agentOf(spec corev1.PodSpec) corev1.Container {
	for _, c := range spec.Containers {
		if c.Name == fleet.Container {
			return c
		}
	}
	return spec.Containers[0] // a DaemonSet has one, or the API server refuses it
}

// probeArgs are the agent's program and those of its flags that a probe has too.
func probeArgs(agent corev1.Container) []string {
	out := []string{"node-mounts-agent"}
	if len(agent.Command) > 0 {
		out[0] = agent.Command[0]
	}
	for _, arg := range agent.Args {
		name, _, _ := strings.Cut(arg, "=")
		if slices.Contains([]string{"--shared-root", "--root", "--kubelet-dir"}, name) {
			out = append(out, arg)
		}
	}
	return out
}

// answers waits until every probe has ended, or never will. Those that have not when
// the time is over have failed.
func (c Cluster) answers(ctx context.Context, namespace string, made map[string]string) ([]Row, error) {
	w := probeWait{found: map[string]Row{}, pending: map[string]Row{}, failing: map[string]time.Time{}, patience: cmp.Or(c.PullPatience, defaultPullPatience)}
	told := map[string]bool{}
	look := func(ctx context.Context) (bool, error) {
		list, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: fleet.NameLabel + "=" + probeName})
		if err != nil {
			return false, transient(err)
		}
		w.see(list.Items, made, time.Now())
		for _, line := range w.lines(len(made)) {
			if !told[line] {
				c.tell("%s", line)
			}
			told[line] = true
		}
		return len(w.found) == len(made), nil
	}
	err := wait.PollUntilContextCancel(ctx, c.interval(), true, look)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("waiting for the probes: %w", err)
	}
	var rows []Row
	for pod, node := range made {
		row, ok := w.found[node]
		if !ok {
			why := c.explain(context.WithoutCancel(ctx), namespace, pod)
			row = rowOf(
				rowNode, node, verify.Fail, "the probe has not ended in time: "+why,
				cmp.Or(w.pending[node].Hint, "an agent would not start there either; --timeout waits longer"),
			)
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Compare(a.Node, b.Node) })
	return rows, nil
}

// probeWait is how far the probes are, by node.
type probeWait struct {
	found, pending map[string]Row
	// failing is since when the image cannot be pulled.
	failing  map[string]time.Time
	patience time.Duration
}

// see takes in what the probes are now. made is the node by Pod.
func (w probeWait) see(pods []corev1.Pod, made map[string]string, now time.Time) {
	there := map[string]*corev1.Pod{}
	for i := range pods {
		there[pods[i].Name] = &pods[i]
	}
	for pod, node := range made {
		if _, ended := w.found[node]; ended {
			continue
		}
		p := there[pod]
		if p == nil {
			w.found[node] = rowOf(rowNode, node, verify.Fail, "somebody has deleted the Pod "+pod+" that probes it", "repeat this command")
			continue
		}
		row, ended := judgeProbe(p, node)
		switch since := w.failing[node]; {
		case row.Detail == "" || ended: // it is being made, or has been judged
			delete(w.failing, node)
		case since.IsZero():
			w.failing[node] = now
		default:
			ended = now.Sub(since) >= w.patience
		}
		w.pending[node] = row
		if ended {
			w.found[node] = row
		}
	}
}

// lines tell of it, each worth saying once.
func (w probeWait) lines(all int) []string {
	lines := []string{fmt.Sprintf("preflight: %d of %d nodes looked at", len(w.found), all)}
	for node := range w.failing {
		lines = append(lines, "preflight: "+node+": "+w.pending[node].Detail)
	}
	slices.Sort(lines[1:])
	return lines
}

// transient lets a wait go on when the API server is away for a moment. What it
// refuses it will refuse again.
func transient(err error) error {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// judgeProbe says what became of a probe, and whether it has ended or never will. One
// whose image cannot be pulled has a row already, and is tried again by kubelet.
func judgeProbe(p *corev1.Pod, node string) (row Row, ended bool) {
	row = Row{Check: rowNode, Node: node, Status: verify.Fail}
	for _, s := range p.Status.ContainerStatuses {
		w := s.State.Waiting
		switch {
		case s.State.Terminated != nil:
			return judgeAnswer(row, *s.State.Terminated), true
		case w == nil:
		case verify.PrivateMounts(w.Message):
			row.Detail, row.Hint = w.Reason+": "+w.Message, verify.ShareMounts
			return row, true
		case verify.NeverPulled(w.Reason), w.Reason == "ErrImagePull", w.Reason == "ImagePullBackOff":
			row.Detail = w.Reason + ": " + w.Message
			row.Hint = "make the image reachable from the nodes: image.repository, image.tag and imagePullSecrets of the chart"
			return row, verify.NeverPulled(w.Reason)
		}
	}
	if p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
		row.Detail = strings.TrimPrefix(p.Status.Reason+": "+p.Status.Message, ": ")
		row.Hint = "the agent's Pod would be refused too"
		return row, true
	}
	return row, false
}

func judgeAnswer(row Row, end corev1.ContainerStateTerminated) Row {
	var doc nodeview.Probe
	if json.Unmarshal([]byte(end.Message), &doc) != nil || doc.Kernel == "" {
		row.Detail = fmt.Sprintf("the probe ended with %d and no answer: %s", end.ExitCode, cmp.Or(strings.TrimSpace(end.Message), end.Reason))
		row.Hint = "is the image one of Node Mounts, and as new as this command?"
		if verify.PrivateMounts(end.Message) {
			row.Hint = verify.ShareMounts
		}
		return row
	}
	row.Detail = fmt.Sprintf("kernel %s, kubelet's folder %s", doc.Kernel, doc.KubeletPropagation)
	if len(doc.Faults) > 0 {
		row.Detail += ": " + strings.Join(doc.Faults, "; ")
		row.Hint = remedy(doc.Facts)
		return row
	}
	row.Status = verify.OK
	return row
}

// remedy is what to do about a node, the first thing first.
func remedy(f nodeview.Facts) string {
	switch {
	case !f.MountSetattr:
		return "give the node a kernel of 5.12 or newer, or keep the agent away from it with nodeSelector"
	case !f.KubeletFound:
		return "--set kubeletDir=PATH with kubelet's --root-dir"
	case f.KubeletPropagation != nodeview.Shared || f.RootPropagation != nodeview.Shared:
		return verify.ShareMounts
	}
	return "each fault says what to do"
}

// sweepProbes takes away the ended probes of an installation that was killed.
func (c Cluster) sweepProbes(ctx context.Context, namespace string) error {
	list, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: fleet.NameLabel + "=" + probeName})
	if err != nil {
		return fmt.Errorf("looking for earlier probes: %w", err)
	}
	var errs []error
	for _, p := range list.Items {
		if p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
			errs = append(errs, c.removeProbe(ctx, namespace, p.Name))
		}
	}
	return errors.Join(errs...)
}

// removeProbes takes away all that one installation has made, also those that it was
// interrupted in making. It works when the context has ended, too.
func (c Cluster) removeProbes(ctx context.Context, namespace, run string) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cleanupBound)
	defer stop()
	list, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: runLabel + "=" + run})
	if err != nil {
		return fmt.Errorf("looking for the probes to take away: %w", err)
	}
	var errs []error
	for _, p := range list.Items {
		errs = append(errs, c.removeProbe(ctx, namespace, p.Name))
	}
	return errors.Join(errs...)
}

func (c Cluster) removeProbe(ctx context.Context, namespace, name string) error {
	err := c.Client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
	if err != nil && !absence.PodSaid(err, name) {
		return fmt.Errorf("taking away the probe %s/%s: %w", namespace, name, err)
	}
	return nil
}
