package operator

import (
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/datalayer/node-mounts/grant"
)

// Defaults of a Runtime.
const (
	DefaultRuntime = "runtime"
	// DefaultUser and DefaultGroup are whom the agent gives the home folders that
	// it makes.
	DefaultUser  = 1000
	DefaultGroup = 100
	// DefaultBlockerImage has a shell and an ip that knows blackhole routes.
	DefaultBlockerImage = "busybox:1.37"
	// MetadataAddress is where clouds serve a node's identity and credentials.
	MetadataAddress = "169.254.169.254"
)

// tokenVolume is the volume with the companion's token, and tokenPath where the
// Kubernetes clients look for one.
const (
	tokenVolume = "companion-token"
	tokenPath   = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// DefaultTokenLife is how long the companion's token is good for; kubelet renews
// it before.
const DefaultTokenLife = time.Hour

// Runtime says what a pooled Pod is made of. Only Image has to be set.
type Runtime struct {
	// Image and what it runs; an empty Command is the image's own.
	Image   string
	Command []string
	Args    []string
	Env     []corev1.EnvVar
	// Resources of the container; none by default.
	Resources corev1.ResourceRequirements
	// Container is the container's name; empty means DefaultRuntime.
	Container string
	// User and Group are what runs in the Pod; zero means DefaultUser and
	// DefaultGroup: user code never runs as root.
	User, Group int64
	// FSGroup is the group that kubelet gives the Pod's volumes to; zero means none.
	// It does not touch what is granted.
	FSGroup int64

	// Names, Volume and MountPath are those that the agent is set up with; zero
	// values are its defaults.
	Names     grant.Names
	Volume    string
	MountPath string
	// SandboxedRuntimes are as in Rules.
	SandboxedRuntimes []string

	// Companion is a second container, which runs none of the user's code; nil
	// means none.
	Companion *Companion

	// BlockerImage is the image of the init container that blocks MetadataAddress;
	// empty means DefaultBlockerImage.
	BlockerImage string
	// OpenMetadata leaves that container out: for a cluster whose network blocks the
	// address, or that is in no cloud. Such a Pod has no privileged container.
	OpenMetadata bool

	// Volumes and Mounts are others that the runtime container has.
	Volumes []corev1.Volume
	Mounts  []corev1.VolumeMount

	Labels, Annotations map[string]string
	// ServiceAccount is whose token the companion has; empty means "default".
	ServiceAccount string
	// RuntimeClass is the Pod's runtime class; empty means the cluster's default.
	RuntimeClass string
	// Grace is how long the Pod has to end, rounded up to whole seconds; zero means the
	// API's default, 30 s. Granted folders stay until its containers have ended.
	Grace            time.Duration
	NodeSelector     map[string]string
	Tolerations      []corev1.Toleration
	ImagePullSecrets []corev1.LocalObjectReference
}

// Companion is the container beside the runtime that may talk to the API: it
// alone has a token.
type Companion struct {
	Image   string
	Command []string
	Args    []string
	Env     []corev1.EnvVar
	// Name is the container's; empty means DefaultCompanion.
	Name      string
	Resources corev1.ResourceRequirements
	// User and Group are what it runs as; zero means those of the runtime.
	User, Group int64
	// Audience is whom the token is for; empty means the API server.
	Audience string
	// TokenLife is at least ten minutes; zero means DefaultTokenLife.
	TokenLife time.Duration
	// Mounts: it sees the granted folders too.
	Mounts bool
}

// Rules are what the Pods of this runtime are checked against.
func (r Runtime) Rules() Rules {
	r = r.withDefaults()
	rules := Rules{Names: r.Names, Volume: r.Volume, SandboxedRuntimes: r.SandboxedRuntimes, Trusted: []string{}}
	if r.Companion != nil {
		rules.Trusted = []string{r.Companion.Name}
	}
	return rules.withDefaults()
}

// PodTemplate makes the template of a pool's Pods. What it returns passes
// CheckTemplate with the runtime's Rules. The template shares nothing with r.
// Errors: a [*TemplateError] where r asks for something that does not pass, or
// one that names what r lacks.
func PodTemplate(r Runtime) (*corev1.PodTemplateSpec, error) {
	if err := r.complete(); err != nil {
		return nil, fmt.Errorf("make a Pod template: %w", err)
	}
	r = r.withDefaults()
	template := &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(r.Labels), Annotations: maps.Clone(r.Annotations)},
		Spec:       r.spec(),
	}
	if template.Labels == nil {
		template.Labels = map[string]string{}
	}
	template.Labels[r.Names.Label] = "true"
	template = template.DeepCopy() // of what r and the template have in common
	if err := CheckTemplate(r.Rules(), template); err != nil {
		return nil, fmt.Errorf("make a Pod template: %w", err)
	}
	return template, nil
}

// complete says what the runtime lacks, as far as the API would not say it in
// words of its own.
func (r Runtime) complete() error {
	switch {
	case r.Image == "":
		return fmt.Errorf("the runtime has no image")
	case r.User < 0 || r.Group < 0 || r.FSGroup < 0:
		return fmt.Errorf("users and groups are numbers from 1")
	case r.MountPath != "" && !strings.HasPrefix(r.MountPath, "/"):
		return fmt.Errorf("the mount path %q does not begin with a slash", r.MountPath)
	case r.Grace < 0:
		return fmt.Errorf("a Pod cannot have %v to end", r.Grace)
	case r.Companion == nil:
		return nil
	case r.Companion.Image == "":
		return fmt.Errorf("the companion has no image")
	case r.Companion.User < 0 || r.Companion.Group < 0:
		return fmt.Errorf("users and groups are numbers from 1")
	case r.withDefaults().Container == r.withDefaults().Companion.Name:
		// By its name a container is trusted with a token.
		return fmt.Errorf("the runtime and the companion are both named %q", r.withDefaults().Container)
	case r.Companion.TokenLife != 0 && r.Companion.TokenLife < 10*time.Minute:
		return fmt.Errorf("a token lives for ten minutes at least, not %v", r.Companion.TokenLife)
	}
	return nil
}

func (r Runtime) withDefaults() Runtime {
	if r.Names == (grant.Names{}) {
		r.Names = grant.NamesFor("")
	}
	or(&r.Volume, grant.DefaultVolumeName)
	or(&r.MountPath, grant.DefaultMountPath)
	or(&r.Container, DefaultRuntime)
	or(&r.User, DefaultUser)
	or(&r.Group, DefaultGroup)
	or(&r.BlockerImage, DefaultBlockerImage)
	or(&r.ServiceAccount, "default")
	if r.Companion != nil {
		c := *r.Companion
		or(&c.Name, DefaultCompanion)
		or(&c.User, r.User)
		or(&c.Group, r.Group)
		or(&c.TokenLife, DefaultTokenLife)
		r.Companion = &c
	}
	return r
}

func or[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}

func (r Runtime) spec() corev1.PodSpec {
	spec := corev1.PodSpec{
		ServiceAccountName: r.ServiceAccount,
		// kubelet would put the token into every container.
		AutomountServiceAccountToken: ptr.To(false),
		// The environment would name every service of the namespace to user code.
		EnableServiceLinks: ptr.To(false),
		SecurityContext: &corev1.PodSecurityContext{
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers:       []corev1.Container{r.container()},
		Volumes:          append([]corev1.Volume{r.volume()}, r.Volumes...),
		NodeSelector:     r.NodeSelector,
		Tolerations:      r.Tolerations,
		ImagePullSecrets: r.ImagePullSecrets,
	}
	if r.FSGroup != 0 {
		spec.SecurityContext.FSGroup = &r.FSGroup
	}
	if r.RuntimeClass != "" {
		spec.RuntimeClassName = &r.RuntimeClass
	}
	if r.Grace != 0 {
		spec.TerminationGracePeriodSeconds = ptr.To(int64((r.Grace + time.Second - 1) / time.Second))
	}
	if !r.OpenMetadata {
		spec.InitContainers = []corev1.Container{r.blocker()}
	}
	if r.Companion != nil {
		spec.Containers = append(spec.Containers, r.companion())
		spec.Volumes = append(spec.Volumes, r.token())
	}
	return spec
}

func (r Runtime) container() corev1.Container {
	return corev1.Container{
		Name: r.Container, Image: r.Image, Command: r.Command, Args: r.Args, Env: r.Env, Resources: r.Resources,
		SecurityContext: unprivileged(r.User, r.Group),
		VolumeMounts:    append([]corev1.VolumeMount{r.mount()}, r.Mounts...),
	}
}

// volume is memory, or a mount that did not come down would be deleted through;
// and small, because it holds mount points alone.
func (r Runtime) volume() corev1.Volume {
	return corev1.Volume{Name: r.Volume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
		Medium: corev1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse(volumeLimit)),
	}}}
}

func (r Runtime) mount() corev1.VolumeMount {
	return corev1.VolumeMount{Name: r.Volume, MountPath: r.MountPath, MountPropagation: ptr.To(corev1.MountPropagationHostToContainer)}
}

// blocker is the one privileged container of the Pod. The route that it makes
// belongs to the Pod's network, so it outlasts the container, and user code
// lacks NET_ADMIN to remove it. replace rather than add: an init container may
// run again in the same network.
func (r Runtime) blocker() corev1.Container {
	return corev1.Container{
		Name: DefaultBlocker, Image: r.BlockerImage,
		Command: []string{"ip", "route", "replace", "blackhole", MetadataAddress + "/32"},
		SecurityContext: &corev1.SecurityContext{
			Privileged: ptr.To(true), RunAsUser: ptr.To[int64](0), RunAsGroup: ptr.To[int64](0), ReadOnlyRootFilesystem: ptr.To(true),
		},
	}
}

func (r Runtime) companion() corev1.Container {
	c := r.Companion
	k := corev1.Container{
		Name: c.Name, Image: c.Image, Command: c.Command, Args: c.Args, Env: c.Env, Resources: c.Resources,
		SecurityContext: unprivileged(c.User, c.Group),
		VolumeMounts:    []corev1.VolumeMount{{Name: tokenVolume, MountPath: tokenPath, ReadOnly: true}},
	}
	if c.Mounts {
		k.VolumeMounts = append(k.VolumeMounts, r.mount())
	}
	return k
}

// token is what kubelet would have put there itself, for one container alone:
// the token, the cluster's certificate and the namespace.
func (r Runtime) token() corev1.Volume {
	return corev1.Volume{Name: tokenVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Audience: r.Companion.Audience, ExpirationSeconds: ptr.To(int64(r.Companion.TokenLife / time.Second)), Path: "token",
			}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
				Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"},
			}}}},
		},
	}}}
}

func unprivileged(user, group int64) *corev1.SecurityContext {
	return &corev1.SecurityContext{
		RunAsUser: &user, RunAsGroup: &group, RunAsNonRoot: ptr.To(true),
		AllowPrivilegeEscalation: ptr.To(false),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}
