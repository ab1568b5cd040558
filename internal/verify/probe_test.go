package verify_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/verify"
	"github.com/datalayer/node-mounts/internal/verify/verifytest"
)

// fault is a way in which a node may not be as it should.
type fault string

const (
	none            fault = ""
	mute            fault = "the agent does not answer"
	private         fault = "the node's mounts are private"
	noImage         fault = "the image cannot be fetched"
	refuses         fault = "the agent refuses the grant"
	notWritable     fault = "the folder is not writable"
	suid            fault = "the mount lacks nosuid"
	executable      fault = "the read-only mount lacks noexec"
	squashed        fault = "the storage gives the folder another owner"
	roIsWritable    fault = "the read-only mount can be written"
	roForOthers     fault = "the write is refused by permissions alone"
	lostAtRestart   fault = "the folder is lost at the restart"
	noRestart       fault = "the container is not started again"
	staysMounted    fault = "the folder stays after it is revoked"
	heldAfterRevoke fault = "a process holds the folder"
	stuck           fault = "the Pod hangs in Terminating"
)

func TestOnARealAPIServer(t *testing.T) {
	api := startAPI(t)
	must(t, verifytest.Install(t.Context(), api.admin)) // for all: their order is any
	for name, test := range map[string]func(*testing.T, testAPI){
		"a probe finds what a node cannot do":                   probeFindsWhatANodeCannotDo,
		"a probe that is interrupted takes away what it made":   probeTakesAwayWhatItMade,
		"a probe of an account that may make no Pods says so":   probeOfAStranger,
		"a probe that runs out of time says what it saw last":   probeThatIsHeldBack,
		"a Pod that can never run is not waited for":            probeOfAHopelessNode,
		"what is gathered is what is there":                     gathersWhatIsThere,
		"what may not be read is noted and costs the rest none": gathersWhatItMay,
	} {
		t.Run(name, func(t *testing.T) { test(t, api) })
	}
}

func probeFindsWhatANodeCannotDo(t *testing.T, api testAPI) {
	steps := verify.ProbeSteps()
	for f, want := range map[fault]struct {
		step   int // of the failure; -1: none
		status verify.Status
		says   string
	}{
		none:            {-1, verify.OK, ""},
		noImage:         {0, verify.Fail, "ImagePullBackOff: no such image"},
		refuses:         {1, verify.Fail, "NODE_MOUNT_GATEWAY_MOUNT_FAILED: the claim is away"},
		notWritable:     {2, verify.Fail, "Permission denied"},
		suid:            {3, verify.Fail, "without nosuid"},
		executable:      {3, verify.Fail, "without noexec"},
		squashed:        {3, verify.Warn, "not the sandbox's"},
		roIsWritable:    {4, verify.Fail, "could be written"},
		roForOthers:     {4, verify.Fail, "another reason"},
		lostAtRestart:   {5, verify.Fail, "No such file"},
		noRestart:       {5, verify.Fail, "does not run"},
		staysMounted:    {6, verify.Fail, "still mounted inside"},
		heldAfterRevoke: {6, verify.Fail, "held by a process"},
		stuck:           {7, verify.Fail, "still there"},
	} {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			n := newPlayedNode(t, api, f)
			results := n.probe(30*time.Second).Run(t.Context(), []string{"worker"})
			if len(results) != len(steps) {
				t.Fatalf("%d results of %d steps: %+v", len(results), len(steps), results)
			}
			for i, r := range results {
				expected := verify.OK
				switch {
				case i == want.step:
					expected = want.status
				case want.status == verify.Fail && want.step >= 0 && i > want.step && i < len(results)-1:
					expected = verify.Skip
				}
				if r.Status != expected || r.Check != steps[i] || r.Node != "worker" {
					t.Errorf("%+v, want %s", r, expected)
				}
				if i == want.step && (!strings.Contains(r.Detail, want.says) || r.Hint == "") {
					t.Errorf("%+v does not say %q, or not what to do", r, want.says)
				}
			}
			n.left(f != stuck)
		})
	}
}

func probeTakesAwayWhatItMade(t *testing.T, api testAPI) {
	for i, name := range verify.ProbeSteps()[:7] {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newPlayedNode(t, api, none)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			n.before = func(step int) {
				if step == i {
					cancel()
				}
			}
			if i < 2 {
				n.fault = []fault{noImage, mute}[i]
				n.later(cancel)
			}
			p := n.probe(30 * time.Second)
			var told []string
			p.Tell = func(r verify.Result) { told = append(told, r.Check) }
			results := p.Run(ctx, []string{"worker"})
			for j, r := range results[:len(results)-1] {
				if want := map[bool]string{true: "interrupted"}[j == i]; r.Status == verify.Fail || j == i && r.Status == verify.Skip && r.Detail != want {
					t.Errorf("%+v of a probe that was interrupted at step %d", r, i)
				}
			}
			if len(told) < i+1 || told[len(told)-1] != verify.ProbeSteps()[7] {
				t.Errorf("told of %q", told)
			}
			if last := results[len(results)-1]; last.Status != verify.OK {
				t.Errorf("%+v", last)
			}
			n.left(true)
		})
	}
}

func probeOfAStranger(t *testing.T, api testAPI) {
	n := newPlayedNode(t, api, none)
	p := n.probe(10 * time.Second)
	p.API = n.stranger
	results := p.Run(t.Context(), []string{"worker"})
	if r := results[0]; r.Status != verify.Fail || !strings.Contains(r.Detail, "forbidden") {
		t.Errorf("%+v", r)
	}
	if r := results[len(results)-1]; r.Status != verify.Skip {
		t.Errorf("nothing was made, and %+v", r)
	}
}

// A client that may ask once a second is refused its next question where the time is
// over before it may be asked.
func probeThatIsHeldBack(t *testing.T, api testAPI) {
	for f, says := range map[fault]string{noImage: "ImagePullBackOff: no such image", mute: "no answer"} {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			n := newPlayedNode(t, api, f)
			cfg := rest.CopyConfig(api.Admin)
			cfg.QPS, cfg.Burst = 1, 1
			p := n.probe(0)
			p.API, p.Bound = kubernetes.NewForConfigOrDie(cfg), 7500*time.Millisecond
			for _, r := range p.Run(t.Context(), []string{"worker"}) {
				if strings.Contains(r.Detail, "rate limiter") {
					t.Errorf("%+v", r)
				}
				if r.Status == verify.Fail && f == noImage && !strings.Contains(r.Detail, says) {
					t.Errorf("no %q in %+v", says, r)
				}
			}
		})
	}
}

func probeOfAHopelessNode(t *testing.T, api testAPI) {
	n := newPlayedNode(t, api, private)
	began := time.Now()
	r := n.probe(time.Minute).Run(t.Context(), []string{"worker"})[0]
	if r.Status != verify.Fail || !strings.Contains(r.Detail, "not a shared or slave mount") || !strings.Contains(r.Hint, "make-rshared") {
		t.Errorf("%+v", r)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it was waited for: %s", took)
	}
	n.left(true)
}

// The scripts are run by a real shell, on a folder that is none of a Pod.
func TestTheScriptsDoWhatTheirNamesSay(t *testing.T) {
	s := verify.ProbeScripts()
	file := filepath.Join(t.TempDir(), "it's here")
	sh := func(script string, args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "sh", append([]string{"-c", script, "probe"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
		return string(out)
	}
	if got := sh(s.Write, file, "50% \\n"); got != "50% \\n" {
		t.Errorf("written and read: %q", got)
	}
	if got := sh(s.Read, file); got != "50% \\n" {
		t.Errorf("read: %q", got)
	}
	if fields := strings.Fields(sh(s.Owner, filepath.Dir(file))); len(fields) < 4 || fields[2] != "0" {
		t.Errorf("owner: %q", fields)
	}
	if !strings.Contains(sh(s.Table), " /proc ") {
		t.Error("the mount table has no /proc")
	}
	sh(s.Spoil, file)
	sh(s.Remove, file)
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("%v", err)
	}
}

func TestTheProbeSuitsWhatTheAgentsSay(t *testing.T) {
	f := healthy()
	f.Answers.Value[0].Document.MountPath = "/data"
	p := verify.ProbeOf(f)
	if p.Namespace != runtimes || p.Image != "example.org/node-mounts:v1.2.3" || p.MountPath != "/data" || p.Volume != volume || p.Names != grant.NamesFor("") {
		t.Errorf("%+v", p)
	}
	if nodes := verify.ProbeNodes(f); !slices.Equal(nodes, []string{"one", "two"}) {
		t.Errorf("%v", nodes)
	}
	for i := range f.Answers.Value {
		f.Answers.Value[i].Document.Namespace = ""
	}
	if p := verify.ProbeOf(f); p.Namespace != metav1.NamespaceDefault {
		t.Errorf("agents that serve all: %q", p.Namespace)
	}
}

func TestANodeThatCannotBeProbedIsToldBeforeAnythingIsMade(t *testing.T) {
	f := healthy()
	f.Answers.Value = f.Answers.Value[:1]
	for node, says := range map[string]string{"one": "", "onee": `there is no node "onee"`, "two": "no agent is on node"} {
		if err := verify.Fit(f, node); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", node, err)
		}
	}
	f.Nodes.Err, f.Answers.Err = os.ErrPermission, os.ErrPermission
	if err := verify.Fit(f, "onee"); err != nil {
		t.Errorf("where nothing is known: %v", err)
	}
}

func stillThere(pods []corev1.Pod) []string {
	var names []string
	for _, p := range pods {
		names = append(names, p.Name)
	}
	return names
}
