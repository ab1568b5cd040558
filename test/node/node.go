package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/datalayer/node-mounts/internal/kube/absence"
)

// PauseImage is what containerd holds the namespaces of a Pod with.
const PauseImage = "registry.k8s.io/pause:3.10"

// DefaultKubeletDir is where kubelet keeps Pods unless Options say otherwise.
const DefaultKubeletDir = "/var/lib/kubelet"

// Options say what a node is made of. All paths but KubeletDir and the keys of
// Folders are the lab's.
type Options struct {
	// Dir is a folder for the node alone, made if it is not there: the machine's
	// disk and its logs. It must be on a filesystem that overlayfs can write to.
	Dir string
	// Assets holds etcd, kube-apiserver, kube-controller-manager, kube-scheduler,
	// kubelet and kubectl.
	Assets string
	// Debs holds containerd, runc and the network plugins, unpacked.
	Debs string
	// Images are OCI archives. One of them is PauseImage.
	Images []string

	// KubeletDir is kubelet's --root-dir, a path of the machine.
	KubeletDir string
	// PrivateMounts breaks the machine: mounts do not propagate, as on a node whose
	// first process does not share them. kubelet shares its own folder all the same
	// when it starts; `mount --make-rprivate` there, by Run, undoes that.
	PrivateMounts bool
	// KubeletFlags and APIServerFlags come after those that are always given.
	KubeletFlags, APIServerFlags []string
	// Folders are mounted in the machine: from its path to one of the lab.
	Folders map[string]string
}

// Node is a running node. Its methods may be called at the same time, except
// Reboot and Stop.
type Node struct {
	o        Options
	run      string // of the cgroups
	boot     string // the boot id
	machine  *machine
	programs []program
	client   kubernetes.Interface
	config   *rest.Config
}

// Start makes a node and returns when it is Ready and the API knows the default
// service account: 10 seconds or so. Only one runs at a time in one lab.
func Start(ctx context.Context, o Options) (*Node, error) {
	if os.Getenv(roleEnv) != roleLab {
		return nil, errors.New("starting a node: TestMain must call node.Main")
	}
	if o.KubeletDir == "" {
		o.KubeletDir = DefaultKubeletDir
	}
	n := &Node{o: o, run: os.Getenv(runEnv), programs: programs(o)}
	if err := n.install(); err != nil {
		return nil, fmt.Errorf("installing the node: %w", err)
	}
	err := n.up(ctx)
	if err == nil {
		err = n.importImages(ctx)
	}
	if err == nil {
		err = n.launchRest(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting the node: %w", err), n.tails(), n.Stop())
	}
	return n, nil
}

// install writes what lies on the disk before the first boot.
func (n *Node) install() error {
	for _, dir := range []string{n.log(), n.disk("etc/kubernetes"), n.disk("etc/cni/net.d"), n.disk("etc/containerd"), n.disk("root"), n.disk("var"), n.disk(n.o.KubeletDir)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.Symlink("/run", n.disk("var/run")); err != nil && !os.IsExist(err) {
		return err
	}
	for _, name := range []string{"passwd", "group", "nsswitch.conf", "ld.so.cache", "ld.so.conf"} {
		b, err := os.ReadFile(filepath.Join("/etc", name))
		if err == nil {
			err = os.WriteFile(n.disk("etc", name), b, 0o644)
		}
		if err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	for name, text := range configFiles() {
		if err := os.WriteFile(n.disk(name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := writePKI(n.disk("etc/kubernetes")); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", n.Kubeconfig())
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 1000, 1000
	n.config = config
	n.client, err = kubernetes.NewForConfig(config)
	return err
}

// up starts a machine on the disk, and in it what needs no image.
func (n *Node) up(ctx context.Context) error {
	groups, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range groups {
		if err := h.makeGroup(n.run); err != nil {
			return err
		}
	}
	n.boot = bootID()
	spec := machineSpec{
		Run: n.run, Disk: n.disk(), BootID: n.boot, Private: n.o.PrivateMounts,
		Programs: map[string]string{kubernetesDir: n.o.Assets, debianDir: n.o.Debs},
		Folders:  map[string]string{logDir: n.log()},
	}
	for at, from := range n.o.Folders {
		spec.Folders[at] = from
	}
	if n.machine, err = startMachine(ctx, spec, filepath.Join(n.log(), "machine.log")); err != nil {
		return err
	}
	for _, name := range []string{Etcd, APIServer, Containerd} {
		if err := n.launch(ctx, name); err != nil {
			return err
		}
	}
	return errors.Join(n.ready(ctx, Containerd), n.ready(ctx, APIServer))
}

// launchRest starts the components that need the API, and waits for the node.
func (n *Node) launchRest(ctx context.Context) error {
	for _, name := range []string{Controllers, Scheduler, Kubelet} {
		if err := n.launch(ctx, name); err != nil {
			return err
		}
	}
	if err := n.ready(ctx, Kubelet); err != nil {
		return err
	}
	return n.WaitReady(ctx)
}

// WaitReady waits until the node is Ready in this boot, and Pods can be made.
func (n *Node) WaitReady(ctx context.Context) error {
	err := Until(ctx, "the node to be Ready", func(ctx context.Context) error {
		node, err := n.client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		// What a kubelet of an earlier boot said stands until this one's says more.
		if node.Status.NodeInfo.BootID != n.boot {
			return errors.New("kubelet has not said anything since the boot")
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				return errors.New(c.Message)
			}
		}
		// A new Pod would be refused or stay away from a node that has taints still.
		if len(node.Spec.Taints) > 0 {
			return fmt.Errorf("it has taints: %v", node.Spec.Taints)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return Until(ctx, "the default service account", func(ctx context.Context) error {
		_, err := n.client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// Reboot ends the machine as a power cut does and starts another one on its disk.
// It returns when the node is Ready again; its Pods may not be.
func (n *Node) Reboot(ctx context.Context) error {
	if err := n.down(); err != nil {
		return fmt.Errorf("ending the machine: %w", err)
	}
	err := n.up(ctx)
	if err == nil {
		err = n.launchRest(ctx)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("starting the machine again: %w", err), n.tails())
	}
	return nil
}

// Stop ends the node. Its Dir stays.
func (n *Node) Stop() error { return n.down() }

// down ends the machine, and takes away what outlives its processes and mounts.
func (n *Node) down() error {
	if n.machine == nil {
		return removeRun(n.run)
	}
	n.machine.kill()
	n.machine = nil
	return errors.Join(removeRun(n.run), unplug())
}

// Name is the node's name in the API.
func (n *Node) Name() string { return nodeName }

// Address is where Pods and the lab find the node.
func (n *Node) Address() string { return nodeAddress }

// Config is the administrator's, without a limit that matters.
func (n *Node) Config() *rest.Config { return rest.CopyConfig(n.config) }

// Client is the administrator's.
func (n *Node) Client() kubernetes.Interface { return n.client }

// Kubeconfig is the administrator's file. What is in it serves in the lab, in the
// machine and in Pods.
func (n *Node) Kubeconfig() string { return n.disk("etc/kubernetes/admin.kubeconfig") }

// KubeletDir is kubelet's folder, in the machine.
func (n *Node) KubeletDir() string { return n.o.KubeletDir }

// BootID is the id of this boot, as the node tells it.
func (n *Node) BootID() string { return n.boot }

// Path is how the lab reaches a path of the machine, through every mount there.
func (n *Node) Path(elem ...string) string {
	return filepath.Join(append([]string{fmt.Sprintf("/proc/%d/root", n.machine.pid())}, elem...)...)
}

// MountInfo is the mount table of the machine.
func (n *Node) MountInfo() (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", n.machine.pid()))
	return string(b), err
}

// Logs is what a component has written since the node was made.
func (n *Node) Logs(component string) (string, error) {
	b, err := os.ReadFile(filepath.Join(n.log(), component+".log"))
	return string(b), err
}

// KubeletLog is what kubelet has written.
func (n *Node) KubeletLog() (string, error) { return n.Logs(Kubelet) }

func (n *Node) disk(elem ...string) string {
	return filepath.Join(append([]string{n.o.Dir, "disk"}, elem...)...)
}

func (n *Node) log() string { return filepath.Join(n.o.Dir, "log") }

// tails is the end of every log, as an error.
func (n *Node) tails() error {
	return errors.New("the ends of its logs:\n" + n.Tail(15))
}

// Tail is the last lines of the log of each component.
func (n *Node) Tail(lines int) string {
	names, _ := filepath.Glob(filepath.Join(n.log(), "*.log"))
	var b strings.Builder
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		all := strings.Split(strings.TrimSpace(string(text)), "\n")
		all = slices.DeleteFunc(all, func(s string) bool { return s == "" })
		if len(all) == 0 {
			continue
		}
		fmt.Fprintf(&b, "--- %s\n%s\n", filepath.Base(name), strings.Join(all[max(0, len(all)-lines):], "\n"))
	}
	return b.String()
}

func bootID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // it cannot fail
	s := hex.EncodeToString(b)
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}

// Until calls what until it returns no error, many times a second. It gives up
// with the context, and says then what was waited for and what was wrong last.
func Until(ctx context.Context, what string, done func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	start := time.Now()
	var last error
	for {
		err := done(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil && !absence.Unsent(err) {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %s for %s: %w", time.Since(start).Round(time.Millisecond), what, last)
		case <-tick.C:
		}
	}
}
