package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/fleet"
	"github.com/datalayer/node-mounts/internal/kube/absence"
	"github.com/datalayer/node-mounts/operator"
)

const (
	// probeFolder on the claim has one folder for each node, which stays, empty: the
	// probe reaches the claim through its Pod alone, and a Pod cannot remove the
	// folder that it was granted.
	probeFolder = ".node-mounts-probe"
	// The two targets are the same folder.
	writableTarget, readOnlyTarget = "probe", "probe-ro"

	// probeInterval is between two looks.
	probeInterval = 500 * time.Millisecond
	// What is run inside. $1 is a file or folder.
	writeScript  = `printf %s "$2" >"$1" && cat "$1"`
	readScript   = `cat "$1"`
	spoilScript  = `printf x >"$1"`
	removeScript = `rm -f "$1"`
	ownerScript  = `ls -ldn "$1"`
	tableScript  = `cat /proc/self/mountinfo`
	endScript    = `kill -TERM 1`
	// waitsForTERM is a process 1 that a signal ends: the kernel drops those that it
	// has no handler for.
	waitsForTERM = `trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done`
)

// probed is one node's probe under way.
type probed struct {
	Probe
	node     string
	operator *operator.Client
	pod      *corev1.Pod
	written  bool
}

func (on *probed) name() operator.Pod {
	return operator.Pod{Namespace: on.pod.Namespace, Name: on.pod.Name}
}

// folder is a target as the container sees it, file a file in it that no other probe
// writes.
func (on *probed) folder(target string) string { return on.MountPath + "/" + target }

func (on *probed) file(target string) string { return on.folder(target) + "/canary-" + on.pod.Name }

func (on *probed) shell(ctx context.Context, script string, args ...string) (string, error) {
	command := append([]string{"sh", "-c", script, "probe"}, args...)
	return on.Exec.Run(ctx, on.pod.Namespace, on.pod.Name, operator.DefaultRuntime, command...)
}

// runPod makes a Pod as a pool does. A scheduler places it, so that the node's
// resources count; it tolerates what an agent does.
func runPod(ctx context.Context, on *probed) (string, error) {
	template, err := operator.PodTemplate(operator.Runtime{
		Image: on.Image, Command: []string{"sh", "-c", waitsForTERM}, Names: on.Names, Volume: on.Volume, MountPath: on.MountPath,
		OpenMetadata: true, Grace: 5 * time.Second,
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Labels:      map[string]string{fleet.NameLabel: fleet.Name, fleet.ComponentLabel: "probe"},
	})
	if err != nil {
		return "", err
	}
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.GenerateName, pod.Namespace = "node-mounts-probe-", on.Namespace
	pod.Spec.Containers[0].ImagePullPolicy = on.PullPolicy
	// One that was left behind by a program that was killed does not run for ever.
	pod.Spec.ActiveDeadlineSeconds = ptr.To(max(int64(on.Bound/time.Second)*int64(len(ProbeSteps())), 1))
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{on.node}}},
		}}},
	}}
	// Not ctx: of a creation that is given up the Pod may be made all the same, and
	// nobody would know which to take away.
	making, cancel := context.WithTimeout(context.WithoutCancel(ctx), on.Bound)
	defer cancel()
	if on.pod, err = on.API.CoreV1().Pods(on.Namespace).Create(making, pod, metav1.CreateOptions{}); err != nil {
		on.pod = nil
		return "", fmt.Errorf("make the Pod: %w", err)
	}
	return on.pod.Namespace + "/" + on.pod.Name, on.ready(ctx, 0)
}

// ready waits until the container runs and has been started again so many times.
func (on *probed) ready(ctx context.Context, restarts int32) error {
	why := "nothing is known of it yet"
	err := wait.PollUntilContextCancel(ctx, probeInterval, true, func(ctx context.Context) (bool, error) {
		p, err := absence.Pod(ctx, on.API.CoreV1(), on.pod.Namespace, on.pod.Name)
		switch {
		case absence.PodSaid(err, on.pod.Name), err == nil && p.UID != on.pod.UID:
			return false, errors.New("somebody has deleted the Pod")
		case err != nil:
			// What was seen of the Pod is more than that there was no time to look again.
			if ctx.Err() == nil && !absence.Unsent(err) {
				why = err.Error()
			}
			return false, nil
		case p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded:
			return false, fmt.Errorf("the Pod has ended: %s", cmp.Or(p.Status.Message, p.Status.Reason, string(p.Status.Phase)))
		}
		if err := neverRuns(p); err != nil {
			return false, err
		}
		why = waitingFor(p)
		return slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return s.State.Running != nil && s.Ready && s.RestartCount >= restarts
		}), nil
	})
	if wait.Interrupted(err) {
		return fmt.Errorf("the Pod does not run: %s", why)
	}
	return err
}

// neverRuns says why waiting for the Pod is of no use, nil where it may be.
func neverRuns(p *corev1.Pod) error {
	for _, s := range p.Status.ContainerStatuses {
		w := s.State.Waiting
		switch {
		case w == nil:
		case PrivateMounts(w.Message):
			return advice.With(fmt.Errorf("the Pod does not run: %s", waitingFor(p)), ShareMounts)
		case NeverPulled(w.Reason):
			return fmt.Errorf("the Pod does not run: %s", waitingFor(p))
		}
	}
	return nil
}

// waitingFor says why a Pod does not run yet.
func waitingFor(p *corev1.Pod) string {
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Waiting != nil {
			return strings.TrimSuffix(s.State.Waiting.Reason+": "+s.State.Waiting.Message, ": ")
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Status == corev1.ConditionFalse && c.Message != "" {
			return c.Message
		}
	}
	return "its phase is " + cmp.Or(string(p.Status.Phase), "unknown")
}

func grantFolder(ctx context.Context, on *probed) (string, error) {
	source := probeFolder + "/" + on.node
	asked, err := on.operator.Grant(ctx, on.name(),
		grant.Mount{Kind: grant.KindFiles, Source: source, Target: writableTarget, Mode: grant.ReadWrite, AllowExec: true},
		grant.Mount{Kind: grant.KindFiles, Source: source, Target: readOnlyTarget, Mode: grant.ReadOnly})
	if err != nil {
		return "", err
	}
	return "", on.answered(ctx, asked)
}

func writeFile(ctx context.Context, on *probed) (string, error) {
	on.written = true
	for _, target := range []string{writableTarget, readOnlyTarget} {
		script := readScript
		if target == writableTarget {
			script = writeScript
		}
		out, err := on.shell(ctx, script, on.file(target), on.pod.Name)
		if err != nil {
			return "", fmt.Errorf("%s: %w", on.file(target), err)
		}
		if out != on.pod.Name {
			return "", fmt.Errorf("%s: read %.80q, wrote %q", on.file(target), out, on.pod.Name)
		}
	}
	return "", nil
}

// checkFlags looks at the mounts from inside. Storage that gives its files an owner
// of its own (a squashing export) is writable all the same, which was shown before.
func checkFlags(ctx context.Context, on *probed) (string, error) {
	table, err := on.shell(ctx, tableScript)
	if err != nil {
		return "", err
	}
	for target, needs := range map[string][]string{writableTarget: {"nosuid", "nodev", "rw"}, readOnlyTarget: {"nosuid", "nodev", "ro", "noexec"}} {
		flags := flagsOf(table, on.folder(target))
		if flags == nil {
			return "", fmt.Errorf("%s is no mount inside", on.folder(target))
		}
		for _, flag := range needs {
			if !slices.Contains(flags, flag) {
				return "", fmt.Errorf("%s is mounted %s, without %s", on.folder(target), strings.Join(flags, ","), flag)
			}
		}
	}
	out, err := on.shell(ctx, ownerScript, on.folder(writableTarget))
	if err != nil {
		return "", err
	}
	if fields := strings.Fields(out); len(fields) < 4 || fields[2] != fmt.Sprint(operator.DefaultUser) {
		return fmt.Sprintf("the folder is not the sandbox's (uid %d): %s", operator.DefaultUser, oneLine(errors.New(out))), errDoubt
	}
	return "", nil
}

// flagsOf are the flags of the topmost mount at a place: the sixth field of its last
// line in mountinfo (proc_pid_mountinfo(5)).
func flagsOf(mountinfo, place string) []string {
	var flags []string
	for line := range strings.Lines(mountinfo) {
		if fields := strings.Fields(line); len(fields) > 5 && fields[4] == place {
			flags = strings.Split(fields[5], ",")
		}
	}
	return flags
}

func refuseWrite(ctx context.Context, on *probed) (string, error) {
	_, err := on.shell(ctx, spoilScript, on.file(readOnlyTarget))
	var exit *ExitError
	switch {
	case err == nil:
		return "", fmt.Errorf("%s could be written", on.file(readOnlyTarget))
	case !errors.As(err, &exit):
		return "", err
	case !strings.Contains(strings.ToLower(exit.Stderr), "read-only file system"): // EROFS, as every libc says it
		return "", fmt.Errorf("it is refused for another reason: %w", err)
	}
	return "", nil
}

// restart ends process 1 from inside, and looks for the folder in the container that
// comes after.
func restart(ctx context.Context, on *probed) (string, error) {
	// The command may be ended with its container, so how it ends says nothing.
	_, execErr := on.shell(ctx, endScript)
	if err := on.ready(ctx, 1); err != nil {
		return "", errors.Join(err, execErr)
	}
	out, err := on.shell(ctx, readScript, on.file(writableTarget))
	if err == nil && out != on.pod.Name {
		err = fmt.Errorf("%s: read %.80q", on.file(writableTarget), out)
	}
	return "", err
}

func revoke(ctx context.Context, on *probed) (string, error) {
	if err := on.empty(ctx); err != nil {
		return "", err
	}
	asked, err := on.operator.Grant(ctx, on.name()) // an empty set is answered, a removed annotation is not
	if err != nil {
		return "", err
	}
	if err := on.answered(ctx, asked); err != nil {
		return "", err
	}
	table, err := on.shell(ctx, tableScript)
	if err != nil {
		return "", err
	}
	for _, target := range []string{writableTarget, readOnlyTarget} {
		if flagsOf(table, on.folder(target)) != nil {
			return "", fmt.Errorf("%s is still mounted inside", on.folder(target))
		}
	}
	return "", nil
}

// answered waits for the answer, and says why it is not that all is well.
func (on *probed) answered(ctx context.Context, asked operator.Asked) error {
	answer, err := on.operator.Wait(ctx, asked)
	if err != nil || answer.State == grant.StateReady {
		return err
	}
	var why []string
	for target, code := range answer.Failed {
		why = append(why, strings.TrimSuffix(fmt.Sprintf("%s: %s: %s", target, code, answer.Messages[target]), ": "))
	}
	slices.Sort(why)
	return fmt.Errorf("the agent answers %s: %s", answer.State, strings.Join(why, "; "))
}

// empty takes the probe's file away, while there is a way to it.
func (on *probed) empty(ctx context.Context) error {
	if !on.written {
		return nil
	}
	if _, err := on.shell(ctx, removeScript, on.file(writableTarget)); err != nil {
		return fmt.Errorf("take %s away: %w", on.file(writableTarget), err)
	}
	on.written = false
	return nil
}

// tidy takes the file away after a step that failed. Where that fails too, the file
// stays on the claim: some bytes, under the probe's own folder.
func (on *probed) tidy(ctx context.Context) {
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if on.pod != nil {
		_ = on.empty(ctx) // the step that failed is what is told
	}
}

// deletePod deletes the Pod and waits until it is gone: a mount that was left behind
// would keep it.
func deletePod(ctx context.Context, on *probed) (string, error) {
	err := on.API.CoreV1().Pods(on.pod.Namespace).Delete(ctx, on.pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(on.pod.UID))})
	if err != nil && !absence.PodSaid(err, on.pod.Name) && !apierrors.IsConflict(err) {
		return "", fmt.Errorf("delete the Pod %s/%s: %w", on.pod.Namespace, on.pod.Name, err)
	}
	seen := "is still there"
	err = wait.PollUntilContextCancel(ctx, probeInterval, true, func(ctx context.Context) (bool, error) {
		p, err := absence.Pod(ctx, on.API.CoreV1(), on.pod.Namespace, on.pod.Name)
		gone := absence.PodSaid(err, on.pod.Name)
		switch {
		case err == nil:
			seen = "is still there"
		case !gone && ctx.Err() == nil && !absence.Unsent(err):
			seen = "cannot be looked for: " + err.Error()
		}
		return gone || err == nil && p.UID != on.pod.UID, nil
	})
	if err != nil {
		return "", fmt.Errorf("the Pod %s/%s %s", on.pod.Namespace, on.pod.Name, seen)
	}
	return "", nil
}
