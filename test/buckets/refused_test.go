package buckets

import (
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/awscreds"
	"github.com/datalayer/node-mounts/internal/bucket"
	"github.com/datalayer/node-mounts/test/s3test"
)

// refused grants a bucket that cannot be mounted, and looks for what is left.
func (w *world) refused(name, source string, data map[string][]byte, code, says string) {
	w.t.Helper()
	p, c := w.pod(name)
	if data != nil {
		w.secrets.put(p, "session", data)
	}
	p.Grant(bucketGrant(source, grant.ReadWrite))
	st := p.Answered(failedWith(code))
	if !strings.Contains(st.Messages["data"], says) || len(st.Mounted) != 0 {
		w.t.Errorf("%s: the answer is %s %v, want one that says %q", name, st.State, st.Messages, says)
	}
	if _, err := c.Stat(in + "data"); err == nil {
		w.t.Errorf("%s: the sandbox has a folder", name)
	}
	p.Annotate(nil)
	p.Pass()
	w.within(time.Minute, "no process is left", func() bool { return len(w.keeper.Children()) == 0 })
}

func TestAWrongBucketIsNeverMounted(t *testing.T) {
	w := newWorld(t)
	good := w.s3.Key().Data()
	w.refused("missing", "no-such-bucket", good, "INVALID_SOURCE", "no-such-bucket")
	w.refused("nonsense", "BAD_name", good, "INVALID_SOURCE", "")
	w.refused("expired", bucketName, w.s3.Session(-time.Minute).Data(), "SECRET_REFUSED", "expired")
	w.refused("unknown-key", bucketName, s3test.Credentials{AccessKeyID: "AKIAUNKNOWN00000000", SecretAccessKey: "x"}.Data(), "SECRET_REFUSED", "")
	w.refused("no-key", bucketName, map[string][]byte{"access-key-id": []byte("x")}, "SECRET_REFUSED", "secret-access-key")
	w.refused("no-secret", bucketName, nil, "SECRET_REFUSED", "does not belong to this Pod")
	region := w.s3.Key().Data()
	region["region"] = []byte("eu-west-7")
	w.refused("another-region", bucketName, region, "INVALID_SOURCE", w.s3.Region)
	endpoint := w.s3.Key().Data()
	endpoint["endpoint-url"] = []byte("http://169.254.169.254/")
	w.refused("metadata-service", bucketName, endpoint, "SECRET_REFUSED", "")
}

func TestAServerThatIsAwayIsAFailureWithinABoundAndMountedWhenItIsBack(t *testing.T) {
	w := newWorld(t)
	w.s3.Put(bucketName, "a.txt", []byte("a"))
	w.s3.Fault("refuse")
	p, c := w.pod("pod")
	w.secrets.put(p, "session", w.s3.Key().Data())
	p.Grant(bucketGrant(bucketName, grant.ReadWrite))
	p.Answered(failedWith("MOUNT_FAILED"))
	w.s3.Mend()
	p.Answered(isReady)
	if got, err := c.ReadFile(in + "data/a.txt"); err != nil || string(got) != "a" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestAServerIsTrustedByThePrivateAuthorityAlone(t *testing.T) {
	w := newWorld(t, "--tls")
	w.s3.Put(bucketName, "a.txt", []byte("a"))
	p, c := w.granted("trusted", bucketName, grant.ReadOnly, w.s3.Key())
	if got, err := c.ReadFile(in + "data/a.txt"); err != nil || string(got) != "a" {
		t.Errorf("%q, %v", got, err)
	}
	p.Grant()
	p.Answered(isReady)
	w.set = func(s *bucket.Settings) { s.CA = nil }
	w.restart()
	w.refused("untrusted", bucketName, w.s3.Key().Data(), "MOUNT_FAILED", "certificate")
}

// ask asks for a session with a token, as a process of a bucket does.
func (w *world) ask(token string) (status int, answer string) {
	t := w.t
	t.Helper()
	l, err := w.keeper.Client().Listener(t.Context())
	must(t, err)
	addr := l.Addr().(*net.TCPAddr)
	must(t, l.Close())
	if !addr.IP.IsLoopback() {
		t.Errorf("credentials are served at %v", addr)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr.String()+awscreds.Path, http.NoBody)
	must(t, err)
	if token != "" {
		req.Header.Set("Authorization", token)
	}
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(body)
}

// tokenOf is what the process of a mount asks with.
func (w *world) tokenOf(use string) string {
	w.t.Helper()
	environ, err := os.ReadFile(filepath.Join("/proc", itoa(w.keeper.PID(use)), "environ"))
	must(w.t, err)
	for v := range strings.SplitSeq(string(environ), "\x00") {
		if token, ok := strings.CutPrefix(v, "AWS_CONTAINER_AUTHORIZATION_TOKEN="); ok {
			return token
		}
	}
	w.t.Fatalf("the process of %s has no token", use)
	return ""
}

// two is a Pod with two buckets, at data and at more, each with a Secret of its own.
func (w *world) two(first, second s3test.Credentials) *agenttest.Pod {
	w.t.Helper()
	p, _ := w.pod("two")
	w.secrets.put(p, "session", first.Data())
	w.secrets.put(p, "second", second.Data())
	more := bucketGrant(bucketName, grant.ReadWrite)
	more.Target, more.Secret = "more", "second"
	p.Grant(bucketGrant(bucketName, grant.ReadWrite), more)
	p.Answered(isReady)
	return p
}

func TestOneMountCannotHaveTheSessionOfAnother(t *testing.T) {
	w := newWorld(t)
	first, second, third := w.s3.Session(hour), w.s3.Session(hour), w.s3.Session(hour)
	p := w.two(first, second)
	q, _ := w.pod("another")
	w.secrets.put(q, "third", third.Data())
	granted := bucketGrant(bucketName, grant.ReadOnly)
	granted.Secret = "third"
	q.Grant(granted)
	q.Answered(isReady)
	for _, token := range []string{"", "x", awscreds.NewToken()} {
		if status, answer := w.ask(token); status != http.StatusForbidden || answer != "" {
			t.Errorf("token %q: status %d, %d bytes", token, status, len(answer))
		}
	}
	all := map[string]s3test.Credentials{p.UID + "/data": first, p.UID + "/more": second, q.UID + "/data": third}
	check := func() {
		t.Helper()
		for use := range all {
			status, answer := w.ask(w.tokenOf(use))
			if status != http.StatusOK {
				t.Errorf("%s: status %d", use, status)
			}
			for other, key := range all {
				for _, value := range []string{key.AccessKeyID, key.SecretAccessKey, key.SessionToken} {
					if strings.Contains(answer, value) != (other == use) {
						t.Errorf("whether the answer to %s has the keys of %s: %v", use, other, other != use)
					}
				}
			}
		}
	}
	check()
	w.restart()
	p.Answered(isReady)
	q.Answered(isReady)
	check()
	// What was revoked is asked for in vain.
	token := w.tokenOf(p.UID + "/more")
	p.Grant(bucketGrant(bucketName, grant.ReadWrite))
	p.Answered(isReady)
	w.within(time.Minute, "the token is of no use", func() bool {
		status, _ := w.ask(token)
		return status == http.StatusForbidden
	})
}

func TestTheProcessesOfAPodCannotLookIntoEachOther(t *testing.T) {
	w := newWorld(t)
	p := w.two(w.s3.Key(), w.s3.Key())
	type process struct {
		uid            int
		environ, cache string
	}
	var all []process
	for _, c := range w.keeper.Children() {
		dir := filepath.Join("/proc", itoa(w.keeper.PID(c.Use)))
		of := process{uid: c.UID, environ: filepath.Join(dir, "environ")}
		for arg := range strings.SplitSeq(read(t, filepath.Join(dir, "cmdline")), "\x00") {
			if cache, ok := strings.CutPrefix(arg, "--cache-dir="); ok {
				of.cache = cache
			}
		}
		all = append(all, of)
	}
	if len(all) != 2 || all[0].uid == all[1].uid {
		t.Fatalf("the processes of %s are %+v", p.UID, all)
	}
	for _, who := range all {
		for _, whose := range all {
			for _, what := range [][]string{{"cat", whose.environ}, {"ls", "-a", whose.cache}} {
				cmd := exec.Command(what[0], what[1:]...)
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(who.uid), Gid: uint32(who.uid)}}
				out, err := cmd.CombinedOutput()
				if (err == nil) != (who == whose) || who != whose && !strings.Contains(string(out), "Permission denied") {
					t.Errorf("user %d, %q of user %d: %v, %d bytes", who.uid, what, whose.uid, err, len(out))
				}
			}
		}
	}
}

func TestTheKeysAreNowhere(t *testing.T) {
	w := newWorld(t)
	w.s3.Put(bucketName, "a.txt", []byte("a"))
	key := w.s3.Session(hour)
	p, c := w.granted("pod", bucketName, grant.ReadWrite, key)
	must(t, c.WriteFile(in+"data/b.txt", []byte("b"), 0o644))
	pid := w.keeper.PID(p.UID + "/data")
	texts := map[string]string{"the answer": p.Status().Encode(), "the log": w.log.String()}
	for _, name := range []string{"cmdline", "environ", "status"} {
		texts[name] = read(t, filepath.Join("/proc", itoa(pid), name))
	}
	must(t, filepath.WalkDir(w.Root, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			texts[path] = read(t, path)
		}
		return nil
	}))
	for where, text := range texts {
		if strings.Contains(text, key.SecretAccessKey) || strings.Contains(text, key.SessionToken) {
			t.Errorf("a key is in %s", where)
		}
	}
	if !strings.Contains(texts["cmdline"], "--bucket="+bucketName) {
		t.Errorf("this is no process of a bucket: %q", texts["cmdline"])
	}
	// It is nobody, and can become nothing else.
	for _, line := range []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapInh:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(texts["status"], line) {
			t.Errorf("the process has not %q", line)
		}
	}
}
