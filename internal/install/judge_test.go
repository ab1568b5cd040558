package install

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/nodeview"
	"github.com/datalayer/node-mounts/internal/verify"
)

func TestAClaimMustBeMountableOnEveryNode(t *testing.T) {
	claim := func(phase corev1.PersistentVolumeClaimPhase, modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "homes", Namespace: "n"}}
		c.Spec.AccessModes, c.Status.Phase = modes, phase
		return c
	}
	going := claim(corev1.ClaimBound, corev1.ReadWriteMany)
	going.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	for name, test := range map[string]struct {
		claim *corev1.PersistentVolumeClaim
		late  bool
		nodes int
		want  verify.Status
	}{
		"bound, for many":              {claim(corev1.ClaimBound, corev1.ReadWriteMany), false, 5, verify.OK},
		"for many among others":        {claim(corev1.ClaimBound, corev1.ReadWriteOnce, corev1.ReadWriteMany), false, 5, verify.OK},
		"for one node, of one":         {claim(corev1.ClaimBound, corev1.ReadWriteOnce), false, 1, verify.Warn},
		"for one node, of two":         {claim(corev1.ClaimBound, corev1.ReadWriteOnce), false, 2, verify.Fail},
		"for one Pod":                  {claim(corev1.ClaimBound, corev1.ReadWriteOncePod), false, 1, verify.Fail},
		"read-only":                    {claim(corev1.ClaimBound, corev1.ReadOnlyMany), false, 1, verify.Fail},
		"not bound":                    {claim(corev1.ClaimPending, corev1.ReadWriteMany), false, 5, verify.Fail},
		"lost":                         {claim(corev1.ClaimLost, corev1.ReadWriteMany), false, 5, verify.Fail},
		"bound by its first Pod":       {claim(corev1.ClaimPending, corev1.ReadWriteMany), true, 5, verify.Warn},
		"late and for one node of two": {claim(corev1.ClaimPending, corev1.ReadWriteOnce), true, 2, verify.Fail},
		"being deleted":                {going, false, 5, verify.Fail},
	} {
		if got := judgeClaim(test.claim, test.late, test.nodes); got.Status != test.want || got.Status != verify.OK && got.Hint == "" {
			t.Errorf("%s: %+v, want %s and what to do", name, got, test.want)
		}
	}
}

func TestANodeWhoseKubeletIsSilentIsWarnedAboutAndNotProbed(t *testing.T) {
	up := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "up"}}
	up.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	down := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "down"}}
	there, rows := reachable(corev1.PodSpec{}, []corev1.Node{up, down})
	if len(there) != 1 || there[0].Name != "up" || len(rows) != 1 || rows[0].Status != verify.Warn || rows[0].Node != "down" {
		t.Errorf("probed %v, told %v", there, rows)
	}
	if there, rows = reachable(corev1.PodSpec{NodeSelector: map[string]string{"a": "b"}}, []corev1.Node{up}); len(there) > 0 || failed(rows) != 1 {
		t.Errorf("no node is selected: probed %v, told %v", there, rows)
	}
}

// notShared is what containerd says of a container on a node with private mounts.
const notShared = `failed to generate spec: path "/var/lib/homes" is mounted on "/" but it is not a shared or slave mount`

// saying is what a probe of a node with these facts leaves in its Pod's status.
func saying(t *testing.T, f nodeview.Facts, faults ...string) string {
	t.Helper()
	text, err := json.Marshal(nodeview.Probe{Facts: f, Faults: faults})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func goodFacts() nodeview.Facts {
	return nodeview.Facts{Kernel: "6.8.0", MountSetattr: true, KubeletFound: true, KubeletPropagation: nodeview.Shared, RootPropagation: nodeview.Shared}
}

func TestAProbeIsJudgedByWhatItSaysAndWhatKeepsItFromSaying(t *testing.T) {
	private, old, elsewhere := goodFacts(), goodFacts(), goodFacts()
	private.KubeletPropagation = nodeview.Private
	old.MountSetattr, old.Kernel = false, "5.4.0"
	elsewhere.KubeletFound = false
	ended := func(code int32, message string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message, Reason: "Error"}}
	}
	waits := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "so it is"}}
	}
	for name, test := range map[string]struct {
		state  corev1.ContainerState
		phase  corev1.PodPhase
		ended  bool
		status verify.Status
		says   string
	}{
		"a good node":                      {ended(0, saying(t, goodFacts())), corev1.PodSucceeded, true, verify.OK, "6.8.0"},
		"private mounts":                   {ended(3, saying(t, private, "mounts are private")), corev1.PodFailed, true, verify.Fail, "mount --make-rshared /"},
		"an old kernel":                    {ended(3, saying(t, old, "kernel 5.4.0")), corev1.PodFailed, true, verify.Fail, "5.12"},
		"kubelet elsewhere":                {ended(3, saying(t, elsewhere, "no pods")), corev1.PodFailed, true, verify.Fail, "kubeletDir"},
		"an image without it":              {ended(2, "unknown command"), corev1.PodFailed, true, verify.Fail, "unknown command"},
		"no words at all":                  {ended(137, ""), corev1.PodFailed, true, verify.Fail, "137"},
		"JSON of another kind":             {ended(0, "{}"), corev1.PodSucceeded, true, verify.Fail, "no answer"},
		"an image never pulled":            {waits("ErrImageNeverPull"), corev1.PodPending, true, verify.Fail, "image.repository"},
		"no name of an image":              {waits("InvalidImageName"), corev1.PodPending, true, verify.Fail, "image.repository"},
		"a pull that is tried":             {waits("ImagePullBackOff"), corev1.PodPending, false, verify.Fail, "image.repository"},
		"cannot be started":                {corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerError", Message: notShared}}, corev1.PodPending, true, verify.Fail, "mount --make-rshared /"},
		"cannot be started, and has ended": {ended(128, strings.Replace(notShared, "shared or slave", "shared", 1)), corev1.PodFailed, true, verify.Fail, "mount --make-rshared /"},
		"another error of the runtime":     {waits("CreateContainerError"), corev1.PodPending, false, verify.Fail, ""},
		"being made":                       {waits("ContainerCreating"), corev1.PodPending, false, verify.Fail, ""},
		"first pull failed":                {waits("ErrImagePull"), corev1.PodPending, false, verify.Fail, "so it is"},
		"evicted":                          {corev1.ContainerState{}, corev1.PodFailed, true, verify.Fail, "Evicted"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &corev1.Pod{Status: corev1.PodStatus{Phase: test.phase, Reason: "Evicted", ContainerStatuses: []corev1.ContainerStatus{{State: test.state}}}}
			row, ended := judgeProbe(p, "node")
			if ended != test.ended {
				t.Fatalf("ended: %t", ended)
			}
			if (ended || test.says != "") && (row.Status != test.status || row.Node != "node" || !strings.Contains(row.Detail+" "+row.Hint, test.says)) {
				t.Errorf("%+v, want %s and %q", row, test.status, test.says)
			}
		})
	}
}

func TestAProbeHasTheAgentsImageAndClaimAndNothingOfTheNode(t *testing.T) {
	text, err := Render(t.Context(), chartOf(t), "here", map[string]any{
		"nodeMountGateway": map[string]any{"enabled": true, "sharedFilesystemClaim": "homes"},
		"imagePullSecrets": []any{map[string]any{"name": "registry"}},
		"driver":           map[string]any{"extraArgs": []any{"--root=/srv/trees", "--log-level=debug"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	objects, err := parse(text, "here")
	if err != nil {
		t.Fatal(err)
	}
	a, err := findAgent(objects)
	if err != nil {
		t.Fatal(err)
	}
	p := probePod(a, "n1", "run", time.Minute)
	c := p.Spec.Containers[0]
	if p.Spec.NodeName != "n1" || !p.Spec.HostPID || *p.Spec.AutomountServiceAccountToken || p.Spec.ServiceAccountName != "" || p.Spec.RestartPolicy != corev1.RestartPolicyNever {
		t.Errorf("the Pod is %+v", p.Spec)
	}
	if len(p.Spec.Volumes) != 1 || p.Spec.Volumes[0].PersistentVolumeClaim.ClaimName != "homes" || len(c.VolumeMounts) != 1 || !c.VolumeMounts[0].ReadOnly {
		t.Errorf("it mounts %+v at %+v, want the claim alone, read-only", p.Spec.Volumes, c.VolumeMounts)
	}
	if c.Image != agentOf(a.Spec.Template.Spec).Image || len(p.Spec.ImagePullSecrets) != 1 {
		t.Errorf("its image is %s with %v", c.Image, p.Spec.ImagePullSecrets)
	}
	if got := strings.Join(c.Command[3:], " "); got != "/usr/local/bin/node-mounts-agent --root=/srv/trees" {
		t.Errorf("it runs %q", got)
	}
	if selector, err := metav1.LabelSelectorAsSelector(a.Spec.Selector); err != nil || selector.Matches(labels.Set(p.Labels)) {
		t.Errorf("the DaemonSet would adopt it (%v)", err)
	}
}

func TestTheOperatorIsNamedByNamespaceAndDeployment(t *testing.T) {
	for text, want := range map[string]Operator{
		"a/b":   {"a", "b", ""},
		"a/b/c": {"a", "b", "c"},
	} {
		if got, err := ParseOperator(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "a", "a/", "/b", "a/b/", "a/b/c/d", "A/b", "a b/c", "a/deploy_ment"} {
		if got, err := ParseOperator(text); !isUsage(err) {
			t.Errorf("%q: %+v, %v, want an error of usage", text, got, err)
		}
	}
}

func TestTheOperatorsContainerIsTheOnlyOneOrTheOneThatHasTheVariable(t *testing.T) {
	c := func(name string, env ...string) corev1.Container {
		out := corev1.Container{Name: name}
		for _, e := range env {
			out.Env = append(out.Env, corev1.EnvVar{Name: e})
		}
		return out
	}
	o := Operator{Namespace: "n", Name: "d"}
	for name, test := range map[string]struct {
		all   []corev1.Container
		asked string
		want  string
	}{
		"the only one":      {[]corev1.Container{c("a")}, "", "a"},
		"the one with it":   {[]corev1.Container{c("a"), c("b", "X", gatewayVariable)}, "", "b"},
		"the one asked for": {[]corev1.Container{c("a"), c("b", gatewayVariable)}, "a", "a"},
		"two of them":       {[]corev1.Container{c("a"), c("b")}, "", ""},
		"none of that name": {[]corev1.Container{c("a")}, "z", ""},
	} {
		o.Container = test.asked
		got, err := chooseContainer(test.all, o)
		if got != test.want || (err != nil) != (test.want == "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestAPodHasMountsWhenItsAnswerListsSomeOrIsStillToCome(t *testing.T) {
	names := grant.NamesFor("")
	set := `{"hash":"h1","mounts":[{"uid":"u","kind":"files","source":"home/users/u","target":"ada","mode":"rw","allow_exec":true}]}`
	stands := `{"failed":{},"hash":"h1","mounted":["ada"],"state":"ready"}`
	nothing := `{"failed":{"ada":"NODE_MOUNT_GATEWAY_MOUNT_FAILED"},"hash":"h1","mounted":[],"state":"failed"}`
	for name, test := range map[string]struct {
		mounts, ready, node string
		phase               corev1.PodPhase
		want                bool
	}{
		"no grant":                  {"", "", "n", corev1.PodRunning, false},
		"mounted":                   {set, stands, "n", corev1.PodRunning, true},
		"revoked and not answered":  {"", stands, "n", corev1.PodRunning, true},
		"granted and not answered":  {set, "", "n", corev1.PodRunning, true},
		"granted on no node":        {set, "", "", corev1.PodPending, false},
		"refused":                   {set, nothing, "n", corev1.PodRunning, false},
		"answered for another set":  {set, strings.Replace(nothing, "h1", "h0", 1), "n", corev1.PodRunning, true},
		"an answer nobody can read": {"", "???", "n", corev1.PodRunning, true},
		"ended":                     {set, stands, "n", corev1.PodSucceeded, false},
		"an empty set":              {`{"hash":"","mounts":[]}`, "", "n", corev1.PodRunning, false},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: test.node}, Status: corev1.PodStatus{Phase: test.phase}}
		p.Annotations = map[string]string{}
		if test.mounts != "" {
			p.Annotations[names.Mounts] = test.mounts
		}
		if test.ready != "" {
			p.Annotations[names.Ready] = test.ready
		}
		if got := hasMounts(p, names); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
