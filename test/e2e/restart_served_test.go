package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// servedDriver serves a claim by a process. kubelet runs it for every Pod that
// uses the claim, when the Pod begins and when it has ended.
const servedDriver = "datalayer.test/served"

// The test's own program is the server, where these say what it serves, and where.
const (
	serveEnv   = "NODE_MOUNTS_E2E_SERVE"
	serveAtEnv = "NODE_MOUNTS_E2E_SERVE_AT"
)

// serve answers for a folder at another place until it is killed.
func serve(from, at string) int {
	syscall.Umask(0) // the kernel has applied that of whoever asks
	data := &fs.LoopbackRoot{Path: from}
	root := &servedFolder{fs.LoopbackNode{RootData: data}}
	data.RootNode = root
	var st syscall.Stat_t
	err := syscall.Stat(from, &st)
	if err == nil {
		data.Dev = st.Dev
		var server *fuse.Server
		server, err = fs.Mount(at, root, &fs.Options{MountOptions: fuse.MountOptions{
			AllowOther: true, DirectMountStrict: true, FsName: "served", Name: "served", Options: []string{"default_permissions"},
		}})
		if err == nil {
			server.Wait()
			return 0
		}
	}
	fmt.Fprintf(os.Stderr, "error: serving %s: %v\n", from, err)
	return 1
}

// servedFolder makes folders with the whole mode that is asked for, the sticky bit
// too, as filesystems for people do.
type servedFolder struct{ fs.LoopbackNode }

func (f *servedFolder) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	return &servedFolder{fs.LoopbackNode{RootData: ops.(*fs.LoopbackNode).RootData}}
}

func (f *servedFolder) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	made, errno := f.LoopbackNode.Mkdir(ctx, name, mode, out)
	if errno != 0 {
		return nil, errno
	}
	at := filepath.Join(f.RootData.Path, f.Path(f.Root()), name)
	var st syscall.Stat_t
	if err := errors.Join(syscall.Chmod(at, mode&0o7777), syscall.Lstat(at, &st)); err != nil {
		return nil, syscall.EIO
	}
	out.FromStat(&st)
	return made, 0
}

// servedState is where the driver keeps what it knows, gone after a boot.
const servedState = "/run/served"

// installDriver gives kubelet the driver. The first process of the machine is this
// test's program. One server answers for the claim as long as kubelet has it
// mounted for some Pod; then it is ended, whoever else has copies of the mount.
func (w *world) installDriver(t *testing.T) {
	t.Helper()
	name := "/var/lib/kubelet-plugins/" + strings.ReplaceAll(servedDriver, "/", "~") + "/" + path.Base(servedDriver)
	must(t, os.MkdirAll(w.Path(path.Dir(name)), 0o755))
	script := `#!/bin/sh
set -e
state=` + servedState + `
mkdir -p $state
exec 9>$state/lock
flock 9
stop() {
	kill -KILL $(cat $state/pid) 2>/dev/null || true # it may have crashed
	umount -l $state/all
	rm $state/pid
}
case $1 in
init) echo '{"status": "Success", "capabilities": {"attach": false, "fsGroup": false}}'; exit ;;
mount)
	mkdir -p "$2"
	if [ -e $state/pid ] && ! kill -0 $(cat $state/pid) 2>/dev/null; then stop; fi
	if ! [ -e $state/pid ]; then
		mkdir -p $state/all
		` + serveEnv + `=` + claimPath + ` ` + serveAtEnv + `=$state/all setsid /proc/1/exe 9>&- </dev/null >>$state/log 2>&1 &
		echo $! >$state/pid.new
		until mountpoint -q $state/all; do kill -0 $(cat $state/pid.new); sleep 0.05; done
		mv $state/pid.new $state/pid
	fi
	mount --bind $state/all "$2"
	;;
unmount)
	umount "$2"
	if ! grep -q '/volumes/` + strings.ReplaceAll(servedDriver, "/", "~") + `/' /proc/self/mountinfo; then
		stop
	fi
	;;
*) echo '{"status": "Not supported"}'; exit 1 ;;
esac
echo '{"status": "Success"}'
`
	must(t, os.WriteFile(w.Path(name+".new"), []byte(script), 0o755))
	must(t, os.Rename(w.Path(name+".new"), w.Path(name)))
}

// serverPID is the process that answers for the claim.
func (w *world) serverPID(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(w.Path(servedState, "pid"))
	must(t, err)
	return strings.TrimSpace(string(text))
}
