package agent_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/simnode"
)

const in = simnode.DefaultMountPath + "/"

func TestAHomeFolderAppearsInARunningPodAndGoesAgain(t *testing.T) {
	n := agenttest.NewNode(t)
	n.Home("datasets/mnist", 0o755, "train")
	p := n.RunningPod("pod-1")
	p.Grant(
		grant.Mount{Kind: grant.KindFiles, Source: "home/users/u1", Target: "u1", AllowExec: true},
		grant.Mount{Kind: grant.KindSharedFolder, Source: "datasets/mnist", Target: "mnist", Mode: grant.ReadOnly},
	)
	p.MustAnswer(grant.StateReady, []string{"mnist", "u1"}, nil)

	user := p.Ctr.AsUser(1000, 100)
	if err := user.WriteFile(in+"u1/hello", []byte("hi"), 0o644); err != nil {
		t.Errorf("writing into the home: %v", err)
	}
	if b, err := user.ReadFile(in + "mnist/train"); err != nil || string(b) != "train\n" {
		t.Errorf("reading the dataset: %q, %v", b, err)
	}
	if err := p.Ctr.WriteFile(in+"mnist/x", nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing into the dataset: %v, want EROFS", err)
	}
	if err := p.Ctr.Mkdir(in+"planted", 0o755); !errors.Is(err, unix.EROFS) {
		t.Errorf("making a folder in the volume: %v, want EROFS", err)
	}

	p.Grant()
	p.MustAnswer(grant.StateReady, nil, nil)
	if names, err := p.Ctr.ReadDir(in); err != nil || len(names) != 0 {
		t.Errorf("after the revocation: %v, %v", names, err)
	}
	p.Annotate(nil)
	p.Pass()
	if left := n.Left(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
