package agent_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/agent/agenttest"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/keeper/keepertest"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/secret"
)

// folderEnv makes the test binary, run by a keeper, a filesystem that shows this
// folder.
const folderEnv = "AGENT_TEST_FOLDER"

// runFolder serves a folder on descriptor 3, as a filesystem's process does.
func runFolder(dir string) error {
	switch filepath.Base(dir) {
	case "wrong":
		fmt.Fprintln(os.Stderr, "error: there is no such bucket")
		os.Exit(3)
	case "refused":
		fmt.Fprintln(os.Stderr, "error: the key was refused")
		os.Exit(4)
	case "silent":
		select {}
	}
	root, err := fs.NewLoopbackRoot(dir)
	if err != nil {
		return err
	}
	zero := time.Duration(0)
	server, err := fs.Mount("/dev/fd/3", root, &fs.Options{
		EntryTimeout: &zero, AttrTimeout: &zero, NegativeTimeout: &zero, MountOptions: fuse.MountOptions{DisableXAttrs: true},
	})
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	go func() {
		<-signals
		os.Exit(0)
	}()
	server.Wait()
	return nil
}

// folders runs the filesystems of the tests: a bucket is a folder beneath root.
type folders struct {
	root string
	// tell has what the runner was given, by token.
	tell map[string]func(error)
	ends int
}

func (f *folders) Prepare(_ context.Context, m plan.Mount, _ delivery.Credential, at delivery.Place, tell func(error)) (*delivery.Run, error) {
	if m.Source() == "unprepared" {
		return nil, &secret.RefusedError{Reason: "the Secret has no key"}
	}
	if at.Cache == "" {
		return nil, errors.New("there is no cache")
	}
	f.tell[m.Target()] = tell
	return &delivery.Run{
		Name: "test", Program: "/proc/self/exe", Args: []string{"folder"}, Env: []string{folderEnv + "=" + filepath.Join(f.root, m.Source())},
		Note: []byte(m.Target()), End: func() { f.ends++ },
	}, nil
}

func (f *folders) Resume(_ context.Context, note []byte, _ secret.Ref, _ delivery.Place, tell func(error)) (func(), error) {
	f.tell[string(note)] = tell
	return func() { f.ends++ }, nil
}

// userspaceNode is a node that serves buckets, with its keeper.
type userspaceNode struct {
	*agenttest.Node
	keeper  *keepertest.Process
	folders *folders
}

func newUserspaceNode(t testing.TB) *userspaceNode {
	t.Helper()
	root := t.TempDir()
	must(t, os.Chmod(filepath.Dir(root), 0o755))
	must(t, os.Chmod(root, 0o755))
	n := &userspaceNode{keeper: keepertest.Start(t), folders: &folders{root: root, tell: map[string]func(error){}}}
	n.Node = agenttest.NewNode(t)
	n.Policy.Serves[grant.KindCloudStorage] = true
	n.Keeper = n.keeper.Client()
	n.Runners = map[grant.Kind]delivery.Runner{grant.KindCloudStorage: n.folders}
	n.Restart()
	return n
}

// folder makes what a bucket shows.
func (n *userspaceNode) folder(name string, files ...string) {
	n.T.Helper()
	dir := filepath.Join(n.folders.root, name)
	must(n.T, os.Mkdir(dir, 0o755))
	must(n.T, os.Chmod(dir, 0o777))
	for _, f := range files {
		must(n.T, os.WriteFile(filepath.Join(dir, f), []byte(f+"\n"), 0o644))
	}
}

func bucketGrant(source, target string, mode grant.Mode) grant.Mount {
	return grant.Mount{Kind: grant.KindCloudStorage, Source: source, Target: target, Mode: mode, AllowExec: true}
}

// within waits for something that other processes bring about.
func within(t testing.TB, what string, holds func() bool) {
	t.Helper()
	eventually(t, what, nil, holds)
}
