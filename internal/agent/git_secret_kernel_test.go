package agent_test

import (
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/datalayer/node-mounts/internal/secret"
	"github.com/datalayer/node-mounts/test/gitserver"
)

func (s *gitSecrets) set(name string, has map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.has[name] = has
}

func TestASecretThatIsPutRightIsTriedWithinItsPollInterval(t *testing.T) {
	t.Parallel()
	n := newGitNode(t, &gitserver.HTTPS{Username: "x-access-token", Password: "right"})
	secrets := &gitSecrets{has: map[string]map[string]string{"s": {"token": "wrong"}}}
	clock := clocktesting.NewFakeClock(time.Now())
	n.Secrets, n.Policy.Credentials, n.Clock = secrets, true, clock
	n.Restart()
	p := n.RunningPod("pod")
	p.Grant(withSecret(n.repository("code"), "s"))
	// refused is the pause after a try that has ended.
	refused := func() time.Duration {
		for late := time.After(time.Minute); ; {
			enqueued := n.API.Enqueued()
			after := p.Pass()
			if st := p.Status(); st != nil && failedWith("code", "SECRET_REFUSED")(st) {
				return after
			}
			select {
			case <-enqueued:
			case <-late:
				t.Fatalf("the answer is %+v", p.Status())
			}
		}
	}
	// Until a try has just failed, and the next one is far off.
	after, asked := refused(), 0
	for i := 0; i < 16 || n.server.Count("refused") == asked; i++ {
		asked = n.server.Count("refused")
		clock.Step(after)
		after = refused()
	}
	if after != secret.PollInterval {
		t.Errorf("the Secret is looked at after %s", after)
	}
	asked = n.server.Count("refused")
	clock.Step(after)
	if refused(); n.server.Count("refused") != asked {
		t.Error("the server is asked although the Secret is the same")
	}
	secrets.set("s", map[string]string{"token": "right"})
	clock.Step(secret.PollInterval)
	n.ready(p)
	// What stands needs its Secret no more.
	secrets.set("s", nil)
	clock.Step(secret.PollInterval)
	p.Pass()
	if b, err := p.Ctr.ReadFile(in + "code/README.md"); err != nil || string(b) != "read me\n" {
		t.Errorf("after the Secret has gone: %q, %v", b, err)
	}
}

func TestASecretThatIsPutRightWhileItFailsIsTriedAtOnce(t *testing.T) {
	t.Parallel()
	held := newStall()
	n := newGitNode(t, &gitserver.HTTPS{Username: "x-access-token", Password: "right", HoldRefused: held.hold})
	defer held.let()
	secrets := &gitSecrets{has: map[string]map[string]string{"s": {"token": "wrong"}}}
	n.Secrets, n.Policy.Credentials, n.Clock = secrets, true, clocktesting.NewFakeClock(time.Now())
	n.Restart()
	p := n.RunningPod("pod")
	p.Grant(withSecret(n.repository("code"), "s"))
	p.Pass()
	<-held.came
	secrets.set("s", map[string]string{"token": "right"})
	held.let()
	n.ready(p)
}
