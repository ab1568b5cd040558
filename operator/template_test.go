package operator_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/kube/servertest"
	"github.com/datalayer/node-mounts/operator"
)

// full is a runtime that has everything.
func full() operator.Runtime {
	return operator.Runtime{
		Image: "jupyter", Command: []string{"start"}, Args: []string{"--now"}, Env: []corev1.EnvVar{{Name: "A", Value: "b"}},
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}},
		Container: "notebook", User: 2000, Group: 2001, FSGroup: 2002,
		Names: grant.NamesFor("example.org"), Volume: "folders", MountPath: "/granted", SandboxedRuntimes: []string{"vm"},
		Companion: &operator.Companion{
			Image: "helper", Command: []string{"help"}, Args: []string{"all"}, Env: []corev1.EnvVar{{Name: "C", Value: "d"}},
			Name: "helper", User: 3000, Group: 3001, Audience: "vault", TokenLife: 20 * time.Minute, Mounts: true,
		},
		BlockerImage: "registry.example.org/busybox:1",
		Volumes:      []corev1.Volume{{Name: "scratch", VolumeSource: disk()}},
		Mounts:       []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}},
		Labels:       map[string]string{"pool": "a"}, Annotations: map[string]string{"note": "b"},
		ServiceAccount: "runtimes", RuntimeClass: "nvidia", Grace: time.Minute,
		NodeSelector: map[string]string{"disk": "ssd"}, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}},
	}
}

func TestAnImageIsEnoughForAPooledPod(t *testing.T) {
	made, err := operator.PodTemplate(operator.Runtime{Image: "jupyter"})
	must(t, err)
	if made.Labels[names.Label] != "true" || len(made.Spec.Volumes) != 1 || len(made.Spec.Containers) != 1 || len(made.Spec.InitContainers) != 1 {
		t.Fatalf("made %+v", made)
	}
	v, limit := made.Spec.Volumes[0], resource.MustParse("1Mi")
	if v.Name != "node-mount-gateway" || v.EmptyDir == nil || v.EmptyDir.Medium != "Memory" || v.EmptyDir.SizeLimit.Cmp(limit) != 0 {
		t.Errorf("the volume is %+v", v)
	}
	k := made.Spec.Containers[0]
	if k.Name != "runtime" || k.Image != "jupyter" || len(k.VolumeMounts) != 1 || len(k.Command) != 0 {
		t.Errorf("the container is %+v", k)
	}
	if m := k.VolumeMounts[0]; m.Name != v.Name || m.MountPath != "/mnt/datalayer" || *m.MountPropagation != "HostToContainer" {
		t.Errorf("it is mounted as %+v", m)
	}
	s := k.SecurityContext
	if *s.RunAsUser != 1000 || *s.RunAsGroup != 100 || !*s.RunAsNonRoot || *s.AllowPrivilegeEscalation ||
		!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || s.SeccompProfile.Type != "RuntimeDefault" {
		t.Errorf("it runs as %+v", s)
	}
	b := made.Spec.InitContainers[0]
	if b.Name != "block-cloud-metadata" || b.Image != "busybox:1.37" || !*b.SecurityContext.Privileged ||
		!slices.Equal(b.Command, []string{"ip", "route", "replace", "blackhole", "169.254.169.254/32"}) || len(b.VolumeMounts) != 0 {
		t.Errorf("the blocker is %+v", b)
	}
	if p := made.Spec; *p.AutomountServiceAccountToken || p.SecurityContext.SeccompProfile.Type != "RuntimeDefault" ||
		p.SecurityContext.FSGroup != nil || p.TerminationGracePeriodSeconds != nil || p.RuntimeClassName != nil {
		t.Errorf("the Pod is %+v", p)
	}
}

func TestWhatARuntimeSaysIsInItsTemplate(t *testing.T) {
	r := full()
	made, err := operator.PodTemplate(r)
	must(t, err)
	p := made.Spec
	if made.Labels["example.org/node-mount-gateway"] != "true" || made.Labels["pool"] != "a" || made.Annotations["note"] != "b" || len(made.Labels) != 2 {
		t.Errorf("it has %+v", made.ObjectMeta)
	}
	if p.ServiceAccountName != "runtimes" || *p.RuntimeClassName != "nvidia" || *p.TerminationGracePeriodSeconds != 60 || p.NodeSelector["disk"] != "ssd" ||
		len(p.Tolerations) != 1 || p.ImagePullSecrets[0].Name != "registry" || *p.SecurityContext.FSGroup != 2002 {
		t.Errorf("the Pod is %+v", p)
	}
	k := p.Containers[0]
	if k.Name != "notebook" || k.Command[0] != "start" || k.Args[0] != "--now" || k.Env[0].Name != "A" || *k.SecurityContext.RunAsUser != 2000 ||
		*k.SecurityContext.RunAsGroup != 2001 || k.Resources.Limits.Memory().String() != "1Gi" || k.VolumeMounts[0].MountPath != "/granted" ||
		k.VolumeMounts[0].Name != "folders" || k.VolumeMounts[1].MountPath != "/scratch" {
		t.Errorf("the runtime is %+v", k)
	}
	if p.InitContainers[0].Image != "registry.example.org/busybox:1" {
		t.Errorf("the blocker is %+v", p.InitContainers[0])
	}
	c := p.Containers[1]
	if c.Name != "helper" || c.Image != "helper" || c.Command[0] != "help" || c.Args[0] != "all" || c.Env[0].Name != "C" ||
		*c.SecurityContext.RunAsUser != 3000 || *c.SecurityContext.RunAsGroup != 3001 ||
		c.VolumeMounts[0].MountPath != "/var/run/secrets/kubernetes.io/serviceaccount" || c.VolumeMounts[1].Name != "folders" {
		t.Errorf("the companion is %+v", c)
	}
	held := p.Volumes[2].Projected.Sources[0].ServiceAccountToken
	if p.Volumes[1].Name != "scratch" || held.Audience != "vault" || *held.ExpirationSeconds != 1200 || held.Path != "token" {
		t.Errorf("the volumes are %+v", p.Volumes)
	}
}

// The API takes whole seconds: less than was asked for would be too little.
func TestTheTimeToEndIsRoundedUp(t *testing.T) {
	for grace, want := range map[time.Duration]int64{time.Nanosecond: 1, 500 * time.Millisecond: 1, time.Second: 1, 1001 * time.Millisecond: 2} {
		made, err := operator.PodTemplate(operator.Runtime{Image: "jupyter", Grace: grace})
		must(t, err)
		if got := *made.Spec.TerminationGracePeriodSeconds; got != want {
			t.Errorf("%v is %d s", grace, got)
		}
	}
}

func TestATemplateSharesNothingWithItsRuntime(t *testing.T) {
	r := full()
	first, err := operator.PodTemplate(r)
	must(t, err)
	first.Labels["pool"], first.Spec.Containers[0].Command[0], first.Spec.NodeSelector["disk"] = "x", "x", "x"
	first.Spec.Volumes[1].EmptyDir.Medium = "x"
	again, err := operator.PodTemplate(r)
	must(t, err)
	want, err := operator.PodTemplate(full())
	must(t, err)
	if !equality.Semantic.DeepEqual(again, want) {
		t.Errorf("after a change of the first template the second is %+v", again)
	}
}

func TestARuntimeThatAsksForTooMuchIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		reason operator.Reason
		change func(*operator.Runtime)
	}{
		"a sandboxed runtime class": {operator.ReasonSandboxedRuntime, func(r *operator.Runtime) { r.RuntimeClass = "vm-fast" }},
		"the grant in its environment": {operator.ReasonAnnotationInReach, func(r *operator.Runtime) {
			r.Env = append(r.Env, fieldEnv("metadata.annotations['example.org/node-mount-gateway-mounts']"))
		}},
		"a token of its own": {operator.ReasonTokenInReach, func(r *operator.Runtime) { r.Volumes[0].VolumeSource = projected(token()) }},
		"the companion's token": {operator.ReasonTokenInReach, func(r *operator.Runtime) {
			r.Mounts = append(r.Mounts, corev1.VolumeMount{Name: "companion-token", MountPath: "/t"})
		}},
		"a folder of the node":      {operator.ReasonHostPath, func(r *operator.Runtime) { r.Volumes[0].VolumeSource = hostPath() }},
		"a volume over the folders": {operator.ReasonOverlap, func(r *operator.Runtime) { r.Mounts[0].MountPath = "/granted/x" }},
		"a volume of the gateway's name": {operator.ReasonDuplicateName, func(r *operator.Runtime) {
			r.Volumes[0].Name, r.Mounts = r.Volume, nil
		}},
		"a volume of the token's name": {operator.ReasonDuplicateName, func(r *operator.Runtime) {
			r.Volumes[0].Name, r.Mounts = "companion-token", nil
		}},
		"the blocker's name":         {operator.ReasonDuplicateName, func(r *operator.Runtime) { r.Container = operator.DefaultBlocker }},
		"a mount of no volume":       {operator.ReasonUnknownVolume, func(r *operator.Runtime) { r.Mounts[0].Name = "gone" }},
		"the kernel's folder":        {operator.ReasonMountPath, func(r *operator.Runtime) { r.MountPath, r.Companion.Mounts = "/proc/x", false }},
		"a grant that is no JSON":    {operator.ReasonGrantInvalid, func(r *operator.Runtime) { r.Annotations[r.Names.Mounts] = "ada" }},
		"an answer before the grant": {operator.ReasonAnswered, func(r *operator.Runtime) { r.Annotations[r.Names.Ready] = "{}" }},
	} {
		t.Run(name, func(t *testing.T) {
			r := full()
			c.change(&r)
			_, err := operator.PodTemplate(r)
			if found := problems(t, err); len(found) != 1 || found[0].Reason != c.reason {
				t.Errorf("%v, want %s", err, c.reason)
			}
		})
	}
}

func TestARuntimeThatLacksSomethingIsRefused(t *testing.T) {
	for name, change := range map[string]func(*operator.Runtime){
		"no image":                      func(r *operator.Runtime) { r.Image = "" },
		"no image of the companion":     func(r *operator.Runtime) { r.Companion.Image = "" },
		"a user below zero":             func(r *operator.Runtime) { r.User = -1 },
		"a group of the companion":      func(r *operator.Runtime) { r.Companion.Group = -1 },
		"less than no time to end":      func(r *operator.Runtime) { r.Grace = -5 * time.Second },
		"a relative path":               func(r *operator.Runtime) { r.MountPath = "granted" },
		"the companion's name":          func(r *operator.Runtime) { r.Container = "helper" },
		"a token that ends too soon":    func(r *operator.Runtime) { r.Companion.TokenLife = time.Minute },
		"a companion named as the rest": func(r *operator.Runtime) { r.Container, r.Companion.Name = "", operator.DefaultRuntime },
	} {
		t.Run(name, func(t *testing.T) {
			r := full()
			change(&r)
			var e *operator.TemplateError
			if made, err := operator.PodTemplate(r); err == nil || made != nil || errors.As(err, &e) {
				t.Errorf("made %v, %v", made, err)
			}
		})
	}
}

// A container is trusted by its name, so one that has the name of a companion
// that is not there must not be.
func TestARuntimeNamedLikeACompanionIsNotTrusted(t *testing.T) {
	_, err := operator.PodTemplate(operator.Runtime{
		Image: "jupyter", Container: operator.DefaultCompanion,
		Volumes: []corev1.Volume{{Name: "t", VolumeSource: projected(token())}}, Mounts: []corev1.VolumeMount{{Name: "t", MountPath: "/t"}},
	})
	if found := problems(t, err); len(found) != 1 || found[0].Reason != operator.ReasonTokenInReach {
		t.Errorf("%v", err)
	}
}

// The page shows a template in full; this is what keeps it true.
func TestThePageShowsTheTemplateThatIsMade(t *testing.T) {
	page, err := os.ReadFile("../docs/tasks/build-a-pool.md")
	must(t, err)
	_, after, _ := strings.Cut(string(page), "```yaml\n")
	text, _, found := strings.Cut(after, "```")
	if !found {
		t.Fatal("the page has no template")
	}
	shown := &corev1.PodTemplateSpec{}
	must(t, yaml.UnmarshalStrict([]byte(text), shown))
	made, err := operator.PodTemplate(operator.Runtime{
		Image: "quay.io/jupyter/base-notebook:2026-01-05", Companion: &operator.Companion{Image: "registry.example.org/companion:1.4"},
	})
	must(t, err)
	if !equality.Semantic.DeepEqual(shown, made) {
		want, err := yaml.Marshal(made)
		must(t, err)
		t.Errorf("it shows another template than\n%s", want)
	}
}

// some is a runtime in which each option is set or not.
func some(random *rand.Rand) operator.Runtime {
	r, all := operator.Runtime{Image: "jupyter"}, full()
	for _, set := range []func(){
		func() { r.Command, r.Args = all.Command, all.Args },
		func() { r.Env = all.Env },
		func() { r.Resources = all.Resources },
		func() { r.Container = all.Container },
		func() { r.User, r.Group = all.User, all.Group },
		func() { r.FSGroup = all.FSGroup },
		func() { r.Names = all.Names },
		func() { r.Volume = all.Volume },
		func() { r.MountPath = all.MountPath },
		func() { r.Companion = &operator.Companion{Image: "companion"} },
		func() { r.Companion = all.Companion },
		func() { r.BlockerImage = all.BlockerImage },
		func() { r.OpenMetadata = true },
		func() { r.Volumes, r.Mounts = all.Volumes, all.Mounts },
		func() { r.Labels, r.Annotations = all.Labels, all.Annotations },
		func() { r.ServiceAccount = all.ServiceAccount },
		func() { r.RuntimeClass, r.Grace = all.RuntimeClass, all.Grace },
		func() {
			r.NodeSelector, r.Tolerations, r.ImagePullSecrets = all.NodeSelector, all.Tolerations, all.ImagePullSecrets
		},
	} {
		if random.IntN(2) == 0 {
			set()
		}
	}
	return r
}

func TestWhatIsMadePasses(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		r := some(random)
		made, err := operator.PodTemplate(r)
		if err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		if err := operator.CheckTemplate(r.Rules(), made); err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		privileged := 0
		for _, k := range slices.Concat(made.Spec.InitContainers, made.Spec.Containers) {
			if s := k.SecurityContext; s.Privileged != nil && *s.Privileged {
				privileged++
			}
		}
		if privileged > 1 || (privileged == 0) != r.OpenMetadata {
			t.Fatalf("%+v: %d privileged containers", r, privileged)
		}
	}
}

func TestTemplatesOnARealAPIServer(t *testing.T) {
	api := servertest.Start(t).Client(t)
	for _, level := range []string{"privileged", "baseline", "restricted"} {
		_, err := api.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: level, Labels: map[string]string{"pod-security.kubernetes.io/enforce": level},
		}}, metav1.CreateOptions{})
		must(t, err)
	}
	random := rand.New(rand.NewPCG(5, 6))
	runtimes := []operator.Runtime{{Image: "jupyter"}, full()}
	for range 20 {
		runtimes = append(runtimes, some(random))
	}
	for i, r := range runtimes {
		r.RuntimeClass = "" // there is none on this server
		t.Run(fmt.Sprintf("a Pod is created as it was made, %d", i), func(t *testing.T) { createdAsMade(t, api, r) })
	}
	t.Run("a template is stored as it was made", func(t *testing.T) { storedAsMade(t, api) })
	t.Run("a Pod with the block needs a privileged namespace", func(t *testing.T) {
		for _, level := range []string{"baseline", "restricted"} {
			if _, err := create(t, api, level, operator.Runtime{Image: "jupyter"}); !apierrors.IsForbidden(err) {
				t.Errorf("in a %s namespace: %v", level, err)
			}
		}
	})
	t.Run("a Pod without it is content with a restricted one", func(t *testing.T) {
		for _, r := range []operator.Runtime{{Image: "jupyter"}, full()} {
			r.OpenMetadata, r.RuntimeClass = true, ""
			_, err := create(t, api, "restricted", r)
			must(t, err)
		}
	})
	t.Run("the rules stand beside those of the API", func(t *testing.T) { bothWaysRefused(t, api) })
}

// strictly is the template as somebody reads it from a file: unknown fields and
// fields of another type are errors.
func strictly(t *testing.T, r operator.Runtime) *corev1.PodTemplateSpec {
	t.Helper()
	made, err := operator.PodTemplate(r)
	must(t, err)
	text, err := yaml.Marshal(made)
	must(t, err)
	read := &corev1.PodTemplateSpec{}
	must(t, yaml.UnmarshalStrict(text, read))
	if !equality.Semantic.DeepEqual(read, made) {
		t.Errorf("it was written as\n%s", text)
	}
	return read
}

func create(t *testing.T, api kubernetes.Interface, in string, r operator.Runtime) (*corev1.Pod, error) {
	t.Helper()
	made := strictly(t, r)
	p := &corev1.Pod{ObjectMeta: made.ObjectMeta, Spec: made.Spec}
	p.GenerateName = "pool-"
	return api.CoreV1().Pods(in).Create(t.Context(), p, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
}

func createdAsMade(t *testing.T, api kubernetes.Interface, r operator.Runtime) {
	p, err := create(t, api, "privileged", r)
	must(t, err)
	made, err := operator.PodTemplate(r)
	must(t, err)
	// What was set has stayed; the server has added its defaults.
	if !equality.Semantic.DeepDerivative(made.Spec, p.Spec) || !equality.Semantic.DeepDerivative(made.Labels, p.Labels) {
		t.Errorf("made %+v\ncreated %+v", made.Spec, p.Spec)
	}
	if err := operator.CheckPod(r.Rules(), p); err != nil {
		t.Errorf("with the server's defaults: %v", err)
	}
}

func storedAsMade(t *testing.T, api kubernetes.Interface) {
	made := strictly(t, full())
	stored, err := api.CoreV1().PodTemplates("restricted").Create(t.Context(), &corev1.PodTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "pool"}, Template: *made,
	}, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	must(t, err)
	if err := operator.CheckTemplate(full().Rules(), &stored.Template); err != nil {
		t.Error(err)
	}
}

// bothWaysRefused: what this package refuses is what the API itself lets through,
// so its rules are needed; and a Pod that passes here is no Pod the API refuses.
func bothWaysRefused(t *testing.T, api kubernetes.Interface) {
	through := 0
	for _, s := range slices.Concat(refused(), accepted()) {
		p := template(t)
		s.change(p)
		complete(p)
		pod := &corev1.Pod{ObjectMeta: p.ObjectMeta, Spec: p.Spec}
		pod.GenerateName = "shape-"
		// The agent's deployment decides about classes that this server has not.
		pod.Spec.RuntimeClassName = nil
		_, err := api.CoreV1().Pods("privileged").Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		switch {
		case s.field == "" && err != nil:
			t.Errorf("%s passes, and the API says %v", s.name, err)
		case s.field != "" && err == nil:
			through++
		}
	}
	if through < len(refused())/2 {
		t.Errorf("of %d Pods that are refused the API lets %d through", len(refused()), through)
	}
}

// complete gives a shape's containers what the API asks of any.
func complete(p *podTemplate) {
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if list[i].Image == "" {
				list[i].Image = "image"
			}
		}
	}
	for i, v := range p.Spec.Volumes {
		if v.Projected == nil {
			continue
		}
		for j, source := range v.Projected.Sources {
			if source.ConfigMap != nil && source.ConfigMap.Name == "" {
				p.Spec.Volumes[i].Projected.Sources[j].ConfigMap.Name = "any"
				p.Spec.Volumes[i].Projected.Sources[j].ConfigMap.Optional = ptr.To(true)
			}
		}
	}
}
