package system_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/mnt"
	"github.com/datalayer/node-mounts/internal/simnode"
	"github.com/datalayer/node-mounts/operator"
)

// in is where a container has its volume.
const in = simnode.DefaultMountPath + "/"

// pod is a Pod: in the API, on the node, and in its container's eyes.
type pod struct {
	*simnode.Pod
	n    *node
	name string
	ctr  *simnode.Container
}

// pooledPod is a Pod as a pool has it, before anything was granted to it.
func pooledPod(name, nodeName string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName:                      nodeName,
			AutomountServiceAccountToken:  ptr.To(false),
			TerminationGracePeriodSeconds: ptr.To(int64(60)),
			Volumes: []corev1.Volume{{
				Name: simnode.VolumeName,
				VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
					Medium: corev1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("1Mi")),
				}},
			}},
			Containers: []corev1.Container{{
				Name: "runtime", Image: "sandbox",
				VolumeMounts: []corev1.VolumeMount{{
					Name: simnode.VolumeName, MountPath: simnode.DefaultMountPath,
					MountPropagation: ptr.To(corev1.MountPropagationHostToContainer),
				}},
			}},
		},
	}
}

// create makes the Pod in the API. Nothing of it is on the node yet.
func (n *node) create(name string) *pod {
	n.t.Helper()
	p, err := n.c.admin.CoreV1().Pods(n.namespace).Create(n.t.Context(), pooledPod(name, n.name), metav1.CreateOptions{})
	must(n.t, err)
	return &pod{Pod: n.NewPod(string(p.UID)), n: n, name: name}
}

// run makes the Pod and does what kubelet does until its container runs.
func (n *node) run(name string) *pod {
	n.t.Helper()
	p := n.create(name)
	must(n.t, p.SetUpVolume(false))
	p.startContainer()
	return p
}

// startContainer starts the container, or starts it again, and reports it.
func (p *pod) startContainer() {
	p.n.t.Helper()
	var err error
	p.ctr, err = p.StartContainer(simnode.ContainerOptions{})
	must(p.n.t, err)
	p.report(corev1.PodRunning, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
}

// report writes the Pod's status, as kubelet does.
func (p *pod) report(phase corev1.PodPhase, state corev1.ContainerState) {
	p.n.t.Helper()
	eventually(p.n.t, "the status to be written", func() string {
		now, err := p.get()
		if err == nil {
			now.Status.Phase = phase
			now.Status.ContainerStatuses = []corev1.ContainerStatus{{
				Name: "runtime", Image: "sandbox", ContainerID: "containerd://" + p.ctr.ID(), State: state,
			}}
			_, err = p.n.c.admin.CoreV1().Pods(p.n.namespace).UpdateStatus(p.n.t.Context(), now, metav1.UpdateOptions{})
		}
		if apierrors.IsConflict(err) {
			return err.Error()
		}
		must(p.n.t, err)
		return ""
	})
}

// get reads the Pod; another one of its name is none.
func (p *pod) get() (*corev1.Pod, error) {
	now, err := p.n.c.admin.CoreV1().Pods(p.n.namespace).Get(p.n.t.Context(), p.name, metav1.GetOptions{})
	if err == nil && string(now.UID) != p.UID {
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), p.name)
	}
	return now, err
}

// ready is the Pod's answer as it is, nil for none.
func (p *pod) ready() *grant.Status {
	p.n.t.Helper()
	now, err := p.get()
	must(p.n.t, err)
	text, ok := now.Annotations[p.n.c.names.Ready]
	if !ok {
		return nil
	}
	st, err := grant.DecodeStatus(text)
	if err != nil {
		return nil
	}
	return &st
}

// annotate patches the Pod's annotations as anybody who may could.
func (p *pod) annotate(values map[string]*string) {
	p.n.t.Helper()
	var parts []string
	for k, v := range values {
		value := "null"
		if v != nil {
			value = fmt.Sprintf("%q", *v)
		}
		parts = append(parts, fmt.Sprintf("%q:%s", k, value))
	}
	body := `{"metadata":{"annotations":{` + strings.Join(parts, ",") + `}}}`
	_, err := p.n.c.admin.CoreV1().Pods(p.n.namespace).Patch(p.n.t.Context(), p.name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
	must(p.n.t, err)
}

func (p *pod) named() operator.Pod {
	return operator.Pod{Namespace: p.n.namespace, Name: p.name, UID: types.UID(p.UID)}
}

// ask writes the set and waits for nothing.
func (p *pod) ask(mounts ...grant.Mount) operator.Asked {
	p.n.t.Helper()
	asked, err := p.n.operator.Grant(p.n.t.Context(), p.named(), mounts...)
	must(p.n.t, err)
	return asked
}

// answered waits for the answer to the set.
func (p *pod) answered(asked operator.Asked) grant.Status {
	p.n.t.Helper()
	ctx, cancel := context.WithTimeout(p.n.t.Context(), patience)
	defer cancel()
	st, err := p.n.operator.Wait(ctx, asked)
	must(p.n.t, err)
	return st
}

// grant writes the set, waits for its answer, and wants nothing to have failed.
func (p *pod) grant(mounts ...grant.Mount) {
	p.n.t.Helper()
	p.mustBeReady(p.answered(p.ask(mounts...)), mounts)
	p.mustHave(mounts)
}

func (p *pod) mustBeReady(st grant.Status, mounts []grant.Mount) {
	p.n.t.Helper()
	if want := targets(mounts); st.State != grant.StateReady || !slices.Equal(st.Mounted, want) {
		p.n.t.Fatalf("answered %s %v %v %v, want %v", st.State, st.Mounted, st.Failed, st.Messages, want)
	}
}

func targets(mounts []grant.Mount) []string {
	out := make([]string, len(mounts))
	for i, m := range mounts {
		out[i] = m.Target
	}
	slices.Sort(out)
	return out
}

func home(source, target string) grant.Mount {
	return grant.Mount{Kind: grant.KindFiles, Source: source, Target: target, Mode: grant.ReadWrite, AllowExec: true}
}

func dataset(source, target string) grant.Mount {
	return grant.Mount{Kind: grant.KindSharedFolder, Source: source, Target: target, Mode: grant.ReadOnly}
}

func (p *pod) tree() string { return filepath.Join(p.n.Root, "pods", p.UID) }

// mustHave wants exactly these mounts, each once: in the tree, in the publication
// and in the container, in every mount namespace that shows them.
func (p *pod) mustHave(mounts []grant.Mount) {
	p.n.t.Helper()
	if wrong := p.differs(mounts); wrong != "" {
		p.n.t.Fatal(wrong)
	}
}

func (p *pod) differs(mounts []grant.Mount) string {
	host, err := p.n.Mounts()
	must(p.n.t, err)
	tables := map[string][]mnt.Mount{"the host": host}
	if a := p.n.agent; a != nil && a.Alive() {
		if table, ok := p.n.tableOf(a.PID); ok {
			tables["the agent"] = table
		}
	}
	want := targets(mounts)
	for who, table := range tables {
		// kubelet's tmpfs and the publication on it.
		if t, v := at(table, p.tree()), at(table, p.VolumePath()); t != 1 || v != 2 {
			return fmt.Sprintf("%s has %d trees and %d mounts on the volume", who, t, v)
		}
		for _, dir := range []string{p.tree(), p.VolumePath()} {
			if got := names(table, dir); !slices.Equal(got, want) {
				return fmt.Sprintf("%s has %v in %s, want %v", who, got, dir, want)
			}
		}
	}
	inside, err := p.ctr.Mounts()
	must(p.n.t, err)
	if got := names(inside, simnode.DefaultMountPath); !slices.Equal(got, want) {
		return fmt.Sprintf("the container has %v, want %v", got, want)
	}
	// An empty folder that no mount stands on is no more than a name, and yet one
	// that was not asked for.
	folders, err := p.ctr.ReadDir(simnode.DefaultMountPath)
	must(p.n.t, err)
	slices.Sort(folders)
	if !slices.Equal(folders, want) {
		return fmt.Sprintf("the container sees the folders %v, want %v", folders, want)
	}
	return ""
}

// names are the names of the mounts right beneath dir, sorted; one that is there
// twice is named twice.
func names(table []mnt.Mount, dir string) []string {
	out := []string{}
	for _, m := range table {
		if filepath.Dir(m.Point) == dir {
			out = append(out, filepath.Base(m.Point))
		}
	}
	slices.Sort(out)
	return out
}

// ids are the mount ids of the container's grants, by target.
func (p *pod) ids() map[string]int {
	p.n.t.Helper()
	inside, err := p.ctr.Mounts()
	must(p.n.t, err)
	ids := make(map[string]int)
	for _, m := range inside {
		if filepath.Dir(m.Point) == simnode.DefaultMountPath {
			ids[filepath.Base(m.Point)] = m.ID
		}
	}
	return ids
}

// delete deletes the Pod as kubectl does and plays kubelet to the end. The agent
// runs.
func (p *pod) delete() {
	p.n.t.Helper()
	p.terminate(60)
	must(p.n.t, p.ctr.Stop())
	p.tornDown()
	p.remove()
	p.forgotten()
}

// terminate asks for the Pod's end.
func (p *pod) terminate(grace int64) {
	p.n.t.Helper()
	must(p.n.t, p.n.c.admin.CoreV1().Pods(p.n.namespace).Delete(p.n.t.Context(), p.name,
		metav1.DeleteOptions{GracePeriodSeconds: &grace, Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID(p.UID))}}))
}

// remove takes the Pod out of the API, as kubelet does when all of it has gone.
func (p *pod) remove() {
	p.n.t.Helper()
	p.terminate(0)
	eventually(p.n.t, "the Pod to go", func() string {
		_, err := p.get()
		if apierrors.IsNotFound(err) {
			return ""
		}
		return fmt.Sprint(err)
	})
}

// tornDown plays kubelet's teardown of the volume until there is none. A mount in
// it costs an attempt, and nothing else.
//
// Where kubelet and the agent take off the last two mounts of an empty volume at
// the same instant, each may take the other's: umount has no way to name one.
// kubelet then removes an empty directory. With a grant in it, it never may.
func (p *pod) tornDown() time.Duration {
	p.n.t.Helper()
	began := time.Now()
	eventually(p.n.t, "the volume to go", func() string {
		host, err := p.n.Mounts()
		must(p.n.t, err)
		grants := names(host, p.VolumePath())
		how, err := p.TearDownVolume()
		switch {
		case how == "disk" && len(grants) > 0:
			p.n.t.Fatalf("kubelet deletes recursively what is in the volume, with %v: %v", grants, err)
		case errors.Is(err, unix.EBUSY):
			return err.Error()
		case err != nil:
			p.n.t.Fatal(err)
		case how != "gone":
			return "it was there until now"
		}
		return ""
	})
	return time.Since(began)
}

// known tells whether the agent has anything of the Pod left: its tree or its
// record.
func (p *pod) known() bool {
	_, tree := os.Lstat(p.tree())
	_, record := os.Lstat(filepath.Join(p.n.Root, "journal", p.UID+".json"))
	return tree == nil || record == nil
}

// forgotten waits until the agent has released the Pod.
func (p *pod) forgotten() {
	p.n.t.Helper()
	eventually(p.n.t, "the Pod to be forgotten", func() string {
		for _, m := range p.n.ours() {
			if strings.Contains(m.Point, p.UID) && m.Point != p.VolumePath() {
				return m.Point + " stands"
			}
		}
		if p.known() {
			return "its tree or its record is there"
		}
		return ""
	})
}
