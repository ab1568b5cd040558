package plan_test

import (
	"slices"
	"strconv"
	"testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/plan"
)

func policy() plan.Policy {
	return plan.Policy{
		Node: "n", MaxPerPod: 4, MaxPerNode: 6, VolumeName: "gw", SandboxedRuntimes: []string{"kata"},
		Serves: map[grant.Kind]bool{grant.KindPlain: true, grant.KindFiles: true, grant.KindSharedFolder: true},
	}
}

func set(mounts ...grant.Mount) grant.Set {
	s := grant.Set{Hash: "h"}
	for _, m := range mounts {
		if m.Mode == "" {
			m.Mode = grant.ReadWrite
		}
		s.Mounts = append(s.Mounts, m)
	}
	return s
}

func standing(p plan.Plan, sound bool) []plan.Standing {
	var out []plan.Standing
	for _, m := range p.Mounts {
		out = append(out, plan.Standing{Target: m.Target(), Identity: m.Identity(), Sound: sound})
	}
	return out
}

func targets(mounts []plan.Mount) []string {
	var out []string
	for _, m := range mounts {
		out = append(out, m.Target())
	}
	return out
}

func TestEveryKindIsServedOrRefusedByItsDelivery(t *testing.T) {
	for _, k := range grant.Kinds() {
		p := plan.Build(set(grant.Mount{Kind: k.Kind, Source: "s", Target: "t"}), policy())
		switch {
		case policy().Serves[k.Kind]:
			if len(p.Mounts) != 1 || p.Mounts[0].Delivery() != k.Delivery || p.Mounts[0].Creates() != k.Creates {
				t.Errorf("%q: %+v", k.Kind, p)
			}
		case k.Delivery == grant.DeliveryProcess:
			wantRefused(t, p, grant.CodeProcessUnsupported)
		default:
			wantRefused(t, p, grant.CodeUnsupportedKind)
		}
	}
	wantRefused(t, plan.Build(set(grant.Mount{Kind: "smb", Source: "s", Target: "t"}), policy()), grant.CodeUnsupportedKind)
}

func TestAKindThatNoReleaseServesYetIsNotSaidToWantAProcess(t *testing.T) {
	p := plan.Build(set(grant.Mount{Kind: grant.KindLocalBridge, Source: "b", Target: "t"}), policy())
	wantRefused(t, p, grant.CodeProcessUnsupported)
	if said := p.Refused[0].Message; said != `this release does not serve the kind "local-bridge"` {
		t.Errorf("it says %q", said)
	}
}

func wantRefused(t *testing.T, p plan.Plan, code grant.Code) {
	t.Helper()
	if len(p.Mounts) != 0 || len(p.Refused) != 1 || p.Refused[0].Code != code || p.Refused[0].Key != "t" {
		t.Errorf("got %+v, want %s", p, code)
	}
}

func TestASecretIsRefusedOnAnAgentThatMayNotReadSecretsAndOnlyAfterTheKind(t *testing.T) {
	m := grant.Mount{Kind: grant.KindFiles, Source: "s", Target: "t", Secret: "x"}
	wantRefused(t, plan.Build(set(m), policy()), grant.CodeSecretRefused)
	m.Kind = grant.KindCloudStorage
	wantRefused(t, plan.Build(set(m), policy()), grant.CodeProcessUnsupported)
	pol := policy()
	pol.Credentials = true
	m.Kind = grant.KindFiles
	if p := plan.Build(set(m), pol); len(p.Mounts) != 1 {
		t.Errorf("with credentials: %+v", p)
	}
}

func TestAGitMountIsReadOnlyWhateverTheGrantSays(t *testing.T) {
	pol := policy()
	pol.Serves[grant.KindGit] = true
	p := plan.Build(set(grant.Mount{Kind: grant.KindGit, Source: "s", Target: "t", Mode: grant.ReadWrite}), pol)
	if !p.Mounts[0].ReadOnly() {
		t.Error("it is writable")
	}
}

func TestAnythingInTheIdentityMakesAGrantAnother(t *testing.T) {
	base := grant.Mount{Kind: grant.KindFiles, Source: "a", Target: "t", Mode: grant.ReadWrite, AllowExec: true}
	was := standing(plan.Build(set(base), policy()), true)
	if s := plan.Diff(was, plan.Build(set(base), policy())); len(s.Revoke)+len(s.Grant) != 0 || len(s.Keep) != 1 {
		t.Fatalf("the same set: %+v", s)
	}
	uid := base
	uid.UID = "other"
	if s := plan.Diff(was, plan.Build(set(uid), policy())); len(s.Keep) != 1 {
		t.Errorf("the uid is no part of it: %+v", s)
	}
	for name, change := range map[string]func(m *grant.Mount){
		"kind":       func(m *grant.Mount) { m.Kind = grant.KindPlain },
		"source":     func(m *grant.Mount) { m.Source = "b" },
		"mode":       func(m *grant.Mount) { m.Mode = grant.ReadOnly },
		"allow_exec": func(m *grant.Mount) { m.AllowExec = false },
		"revision":   func(m *grant.Mount) { m.Revision = "r" },
	} {
		m := base
		change(&m)
		s := plan.Diff(was, plan.Build(set(m), policy()))
		if !slices.Equal(s.Revoke, []string{"t"}) || !slices.Equal(targets(s.Grant), []string{"t"}) || len(s.Keep) != 0 {
			t.Errorf("another %s: %+v", name, s)
		}
	}
}

func TestWhatIsNoLongerAskedIsRevokedAlsoWhenItsEntryIsRefused(t *testing.T) {
	was := standing(plan.Build(set(grant.Mount{Source: "a", Target: "t"}, grant.Mount{Source: "b", Target: "u"}), policy()), true)
	refused := grant.Set{Hash: "h", Refused: []grant.Refusal{{Key: "t", Code: grant.CodeInvalidGrant}}}
	s := plan.Diff(was, plan.Build(refused, policy()))
	if !slices.Equal(s.Revoke, []string{"t", "u"}) {
		t.Errorf("revoked %v", s.Revoke)
	}
}

func TestAnUnreadableAnnotationLeavesWhatStandsAndGrantsNothing(t *testing.T) {
	was := standing(plan.Build(set(grant.Mount{Source: "a", Target: "t"}), policy()), true)
	p := plan.Build(grant.Set{Whole: &grant.Refusal{Key: grant.WholeSet, Code: grant.CodeInvalidGrant}}, policy())
	if s := plan.Diff(was, p); len(s.Revoke)+len(s.Grant) != 0 {
		t.Errorf("%+v", s)
	}
	// What was on its way out, or never completely made, goes all the same.
	if s := plan.Diff(standing(plan.Build(set(grant.Mount{Source: "a", Target: "t"}), policy()), false), p); len(s.Revoke) != 1 {
		t.Errorf("unsound: %+v", s)
	}
}

func TestAnInterruptedGrantIsRevokedBeforeItIsMadeAgain(t *testing.T) {
	p := plan.Build(set(grant.Mount{Source: "a", Target: "t"}), policy())
	s := plan.Diff(standing(p, false), p)
	if !slices.Equal(s.Revoke, []string{"t"}) || !slices.Equal(targets(s.Grant), []string{"t"}) {
		t.Errorf("%+v", s)
	}
}

func TestCapsRefuseTheNewSetAndNeverTheRevocation(t *testing.T) {
	many := func(n int) plan.Plan {
		var mounts []grant.Mount
		for i := range n {
			mounts = append(mounts, grant.Mount{Source: "s", Target: "t" + strconv.Itoa(i)})
		}
		return plan.Build(set(mounts...), policy())
	}
	was := standing(plan.Build(set(grant.Mount{Source: "a", Target: "old"}), policy()), true)
	over := many(5)
	s := plan.Diff(was, over)
	if r := over.Cap(s, 0, policy()); r == nil || r.Code != grant.CodeTooManyMounts || r.Key != grant.WholeSet {
		t.Errorf("5 of 4 in the Pod: %+v", r)
	}
	if !slices.Equal(s.Revoke, []string{"old"}) {
		t.Errorf("revoked %v although capped", s.Revoke)
	}
	within := many(4)
	s = plan.Diff(nil, within)
	if r := within.Cap(s, 2, policy()); r != nil {
		t.Errorf("4 + 2 of 6 on the node: %+v", r)
	}
	if r := within.Cap(s, 3, policy()); r == nil {
		t.Error("4 + 3 of 6 on the node are let in")
	}
	if r := over.Cap(plan.Diff(standing(over, true), over), 9, policy()); r != nil {
		t.Errorf("a set that stands already is refused: %+v", r)
	}
}

func TestAPodThatCannotReceiveMountsIsToldWhy(t *testing.T) {
	good := plan.Pod{HostUsers: true, Volume: &plan.Volume{Memory: true}, Uses: []plan.Use{{Container: "c", HostToContainer: true}}}
	if reason := good.Unsupported(policy()); reason != "" {
		t.Fatalf("a good Pod: %s", reason)
	}
	sidecar := good
	sidecar.Uses = append(slices.Clone(good.Uses), plan.Use{Container: "s", Init: true, HostToContainer: true})
	if reason := sidecar.Unsupported(policy()); reason != "" {
		t.Errorf("with an init container: %s", reason)
	}
	reasons := map[string]string{}
	for name, spoil := range map[string]func(p *plan.Pod, pol *plan.Policy){
		"mirror":    func(p *plan.Pod, _ *plan.Policy) { p.Mirror = true },
		"no volume": func(p *plan.Pod, _ *plan.Policy) { p.Volume = nil },
		"disk":      func(p *plan.Pod, _ *plan.Policy) { p.Volume = &plan.Volume{} },
		"user ns":   func(p *plan.Pod, _ *plan.Policy) { p.HostUsers = false },
		"runtime":   func(p *plan.Pod, _ *plan.Policy) { p.RuntimeClass = "kata-qemu" },
		"selinux":   func(_ *plan.Pod, pol *plan.Policy) { pol.SELinux = true },
		"subPath": func(p *plan.Pod, _ *plan.Policy) {
			p.Uses = []plan.Use{{Container: "c", SubPath: true, HostToContainer: true}}
		},
		"propagation":  func(p *plan.Pod, _ *plan.Policy) { p.Uses = []plan.Use{{Container: "c"}} },
		"second":       func(p *plan.Pod, _ *plan.Policy) { p.Uses = append(slices.Clone(p.Uses), plan.Use{Container: "d"}) },
		"no container": func(p *plan.Pod, _ *plan.Policy) { p.Uses = nil },
		"init only":    func(p *plan.Pod, _ *plan.Policy) { p.Uses = []plan.Use{{Init: true, HostToContainer: true}} },
	} {
		p, pol := good, policy()
		spoil(&p, &pol)
		reason := p.Unsupported(pol)
		if reason == "" {
			t.Errorf("%s: supported", name)
		}
		reasons[reason] = name
	}
	if len(reasons) < 9 {
		t.Errorf("different faults share a reason: %v", reasons)
	}
}
