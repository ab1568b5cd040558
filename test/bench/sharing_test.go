package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/simnode"
)

// sharing is what Pods wait for that ask for the same commit, one after the other.
type sharing struct {
	*repository
	bare  samples // the same set answered without mounting
	first samples // the Pod for which the commit is fetched
	tenth samples
}

// sharers is how many Pods ask for a commit in a round.
const sharers = 10

// sharing has the agent fetch a commit that is new to the node for one Pod, and then
// gives it to others, for each repository. The agent that has been measured before
// has ended; this one keeps checkouts, on the disk that the other measurements of
// repositories use: the node's own folders lie in memory.
func (w *world) sharing(repositories []*repository) []sharing {
	w.b.Helper()
	checkouts := filepath.Join(w.node.Root, "checkouts")
	must(w.b, os.Mkdir(checkouts, 0o755))
	must(w.b, unix.Mount(folder(w.b), checkouts, "", unix.MS_BIND, ""))
	ca := filepath.Join(w.b.TempDir(), "ca.pem")
	server := repositories[0].server
	must(w.b, os.WriteFile(ca, server.CA(), 0o644))
	w.agent = startAgent(w.b, w.path, w.node, w.config, "--repositories", "true", "--git-ca-file", ca, "--git-allow", server.Address().String())
	// A node at rest: what was granted to be many mounts goes.
	for _, p := range w.pods[len(w.pods)-fullPods:] {
		must(w.b, p.clear())
	}
	var all []sharing
	for _, r := range repositories {
		all = append(all, w.shared(r))
	}
	w.agent.kill()
	// What is mounted from the disk goes before the folder there does.
	must(w.b, unix.Unmount(checkouts, unix.UMOUNT_NOFOLLOW))
	return all
}

func (w *world) shared(r *repository) sharing {
	w.b.Helper()
	out := sharing{repository: r}
	pace := time.NewTicker(pause)
	defer pace.Stop()
	grantTo := func(p *remotePod, set string) time.Duration {
		<-pace.C
		took, err := p.grant(set)
		must(w.b, err)
		return took
	}
	for i := range r.size.podRounds {
		set := encode(w.b, grant.Mount{
			Kind: grant.KindGit, Source: r.url(), Revision: r.another(), Target: target, Mode: grant.ReadOnly, AllowExec: true,
		})
		without := func() {
			p := w.barePods[i%len(w.barePods)]
			out.bare = append(out.bare, grantTo(p, set))
			must(w.b, p.clear())
		}
		if i%2 == 0 {
			without()
		}
		before := r.server.Count("objects")
		for j, p := range w.pods[:sharers] {
			took := grantTo(p, set)
			must(w.b, p.shows(r))
			switch j {
			case 0:
				out.first = append(out.first, took)
			case sharers - 1:
				out.tenth = append(out.tenth, took)
			}
		}
		if n := r.server.Count("objects") - before; n != 1 {
			w.b.Fatalf("the server was asked for objects %d times for one commit", n)
		}
		if i%2 == 1 {
			without()
		}
		for _, p := range w.pods[:sharers] {
			must(w.b, p.clear())
		}
	}
	return out
}

// shows holds what the Pod's container has at the target against the commit.
func (p *remotePod) shows(r *repository) error {
	return r.arrived(fmt.Sprintf("/proc/%d/root%s/%s", p.container.PID(), simnode.DefaultMountPath, target))
}
