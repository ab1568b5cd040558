package kube

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/plan"
)

const (
	testNode   = "node-a"
	testVolume = "node-mount-gateway"
	testPath   = "/mnt/datalayer"
)

func testNames() grant.Names { return grant.NamesFor("") }

// runtimePod is a Pod as the API returns it: a sandbox that runs, with the
// gateway volume, and with everything a real one carries besides.
func runtimePod(name, uid string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "runtimes", UID: typesUID(uid), ResourceVersion: "7",
			Labels:        map[string]string{"app": "runtime"},
			Annotations:   map[string]string{testNames().Mounts: `{"hash":"h","mounts":[]}`, "other": "value"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
		},
		Spec: corev1.PodSpec{
			NodeName: testNode,
			Volumes: []corev1.Volume{
				{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: testVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
			},
			InitContainers: []corev1.Container{{Name: "block-cloud-metadata", Image: "busybox"}},
			Containers: []corev1.Container{{
				Name: "runtime", Image: "jupyter",
				Env: []corev1.EnvVar{{Name: "PASSWORD", Value: "not for the agent"}},
				VolumeMounts: []corev1.VolumeMount{
					{Name: "scratch", MountPath: "/scratch"},
					{Name: testVolume, MountPath: testPath, MountPropagation: ptr.To(corev1.MountPropagationHostToContainer)},
				},
			}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning,
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "runtime", ContainerID: "containerd://c0ffee",
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)}},
			}},
		},
	}
}

// runtimeFacts are the facts of runtimePod.
func runtimeFacts(name, uid string) plan.Pod {
	return plan.Pod{
		UID: uid, Namespace: "runtimes", Name: name, ResourceVersion: "7", Node: testNode,
		Grant:      ptr.To(`{"hash":"h","mounts":[]}`),
		Volume:     &plan.Volume{Memory: true},
		Uses:       []plan.Use{{Container: "runtime", ID: "c0ffee", Path: testPath, HostToContainer: true}},
		OtherPaths: []string{"/scratch"},
		HostUsers:  true,
	}
}

type conversion struct {
	name   string
	change func(*corev1.Pod)
	want   func(*plan.Pod)
}

func conversions() []conversion {
	deadline := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	mount := func(p *corev1.Pod) *corev1.VolumeMount { return &p.Spec.Containers[0].VolumeMounts[1] }
	return []conversion{
		{"a running sandbox", func(*corev1.Pod) {}, func(*plan.Pod) {}},
		{"no annotations", func(p *corev1.Pod) { p.Annotations = nil }, func(w *plan.Pod) { w.Grant = nil }},
		{
			"an empty grant annotation is present",
			func(p *corev1.Pod) { p.Annotations[testNames().Mounts] = "" },
			func(w *plan.Pod) { w.Grant = ptr.To("") },
		},
		{
			"an answer",
			func(p *corev1.Pod) { p.Annotations[testNames().Ready] = "{}" },
			func(w *plan.Pod) { w.Ready = ptr.To("{}") },
		},
		{"succeeded", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, func(w *plan.Pod) { w.Finished = true }},
		{"failed", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, func(w *plan.Pod) { w.Finished = true }},
		{"pending is not finished", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, func(*plan.Pod) {}},
		{
			"terminating",
			func(p *corev1.Pod) {
				p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(metav1.NewTime(deadline)), ptr.To[int64](30)
			},
			func(w *plan.Pod) { w.Terminating, w.Grace = true, 30*time.Second },
		},
		{"not scheduled", func(p *corev1.Pod) { p.Spec.NodeName = "" }, func(w *plan.Pod) { w.Node = "" }},
		{"a user namespace", func(p *corev1.Pod) { p.Spec.HostUsers = ptr.To(false) }, func(w *plan.Pod) { w.HostUsers = false }},
		{"host users spelled out", func(p *corev1.Pod) { p.Spec.HostUsers = ptr.To(true) }, func(*plan.Pod) {}},
		{"a runtime class", func(p *corev1.Pod) { p.Spec.RuntimeClassName = ptr.To("gvisor") }, func(w *plan.Pod) { w.RuntimeClass = "gvisor" }},
		{
			"a mirror of a static Pod",
			func(p *corev1.Pod) { p.Annotations[corev1.MirrorPodAnnotationKey] = "x" },
			func(w *plan.Pod) { w.Mirror = true },
		},
		{
			"a disk-backed volume",
			func(p *corev1.Pod) { p.Spec.Volumes[1].EmptyDir.Medium = "" },
			func(w *plan.Pod) { w.Volume.Memory = false },
		},
		{
			"huge pages are no tmpfs",
			func(p *corev1.Pod) { p.Spec.Volumes[1].EmptyDir.Medium = corev1.StorageMediumHugePages },
			func(w *plan.Pod) { w.Volume.Memory = false },
		},
		{
			"a host path of the volume's name is no gateway volume",
			func(p *corev1.Pod) {
				p.Spec.Volumes[1].VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}
			},
			func(w *plan.Pod) { w.Volume = nil },
		},
		{
			"no volume",
			func(p *corev1.Pod) {
				p.Spec.Volumes = p.Spec.Volumes[:1]
				p.Spec.Containers[0].VolumeMounts = p.Spec.Containers[0].VolumeMounts[:1]
			},
			func(w *plan.Pod) { w.Volume, w.Uses = nil, nil },
		},
		{"no propagation", func(p *corev1.Pod) { mount(p).MountPropagation = nil }, func(w *plan.Pod) { w.Uses[0].HostToContainer = false }},
		{
			"propagation None",
			func(p *corev1.Pod) { mount(p).MountPropagation = ptr.To(corev1.MountPropagationNone) },
			func(w *plan.Pod) { w.Uses[0].HostToContainer = false },
		},
		{
			"Bidirectional propagation reaches the container too",
			func(p *corev1.Pod) { mount(p).MountPropagation = ptr.To(corev1.MountPropagationBidirectional) },
			func(*plan.Pod) {},
		},
		{"a subPath", func(p *corev1.Pod) { mount(p).SubPath = "a" }, func(w *plan.Pod) { w.Uses[0].SubPath = true }},
		{"a subPathExpr", func(p *corev1.Pod) { mount(p).SubPathExpr = "$(A)" }, func(w *plan.Pod) { w.Uses[0].SubPath = true }},
		{
			"a container that waits has no id",
			func(p *corev1.Pod) {
				p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
			},
			func(w *plan.Pod) { w.Uses[0].ID = "" },
		},
		{
			"a container that has ended has no id",
			func(p *corev1.Pod) {
				p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: "containerd://c0ffee"}}
			},
			func(w *plan.Pod) { w.Uses[0].ID = "" },
		},
		{"no status yet", func(p *corev1.Pod) { p.Status = corev1.PodStatus{} }, func(w *plan.Pod) { w.Uses[0].ID = "" }},
		{
			"CRI-O names its ids otherwise",
			func(p *corev1.Pod) { p.Status.ContainerStatuses[0].ContainerID = "cri-o://c0ffee" },
			func(*plan.Pod) {},
		},
		{
			"an id without a scheme",
			func(p *corev1.Pod) { p.Status.ContainerStatuses[0].ContainerID = "c0ffee" },
			func(*plan.Pod) {},
		},
		{
			"a sidecar that has the volume",
			func(p *corev1.Pod) {
				p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{
					Name: "sidecar", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
					VolumeMounts: []corev1.VolumeMount{{Name: testVolume, MountPath: "/gateway"}, {Name: "scratch", MountPath: "/scratch"}},
				})
				p.Status.InitContainerStatuses = []corev1.ContainerStatus{{
					Name: "sidecar", ContainerID: "containerd://51de",
					State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
				}}
			},
			func(w *plan.Pod) {
				w.Uses = append([]plan.Use{{Container: "sidecar", ID: "51de", Init: true, Path: "/gateway"}}, w.Uses...)
			},
		},
		{
			"a debugging container that sees grants",
			func(p *corev1.Pod) {
				p.Spec.EphemeralContainers = []corev1.EphemeralContainer{debugger(ptr.To(corev1.MountPropagationHostToContainer))}
				p.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{{
					Name: "debugger", ContainerID: "containerd://deb6",
					State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
				}}
			},
			func(w *plan.Pod) {
				w.Uses = append(w.Uses, plan.Use{Container: "debugger", ID: "deb6", Path: "/debug", HostToContainer: true})
			},
		},
		{
			"a debugging container without propagation does not make the Pod unfit",
			func(p *corev1.Pod) { p.Spec.EphemeralContainers = []corev1.EphemeralContainer{debugger(nil)} },
			func(*plan.Pod) {},
		},
	}
}

func debugger(propagation *corev1.MountPropagationMode) corev1.EphemeralContainer {
	return corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "debugger", VolumeMounts: []corev1.VolumeMount{{Name: testVolume, MountPath: "/debug", MountPropagation: propagation}},
	}}
}

func TestAPodsFactsAreReadFromTheAPI(t *testing.T) {
	for _, c := range conversions() {
		t.Run(c.name, func(t *testing.T) {
			p, want := runtimePod("sandbox", "uid-1"), runtimeFacts("sandbox", "uid-1")
			c.change(p)
			c.want(&want)
			if got := PodFromAPI(p, testNames(), testVolume); !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestTheInformersCopyOfAPodHasTheSameFactsAndNothingElse(t *testing.T) {
	for _, c := range conversions() {
		t.Run(c.name, func(t *testing.T) {
			p := runtimePod("sandbox", "uid-1")
			c.change(p)
			s := strip(p, testNames(), testVolume)
			got, want := PodFromAPI(s, testNames(), testVolume), PodFromAPI(p, testNames(), testVolume)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			if again := strip(s, testNames(), testVolume); !reflect.DeepEqual(again, s) {
				t.Errorf("stripping twice changes the Pod: %+v", again)
			}
		})
	}
	s := strip(runtimePod("sandbox", "uid-1"), testNames(), testVolume)
	if s.ManagedFields != nil || s.Labels != nil || s.Spec.Containers[0].Env != nil || s.Spec.Containers[0].Image != "" {
		t.Errorf("the copy keeps what nothing reads: %+v", s)
	}
	if _, ok := s.Annotations["other"]; ok {
		t.Error("the copy keeps an annotation of somebody else")
	}
}

func TestFactsKeepNoReferenceToTheAPIsObject(t *testing.T) {
	p := runtimePod("sandbox", "uid-1")
	got := PodFromAPI(p, testNames(), testVolume)
	p.Annotations[testNames().Mounts] = "changed"
	p.Spec.Volumes[1].EmptyDir.Medium = ""
	if want := runtimeFacts("sandbox", "uid-1"); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
