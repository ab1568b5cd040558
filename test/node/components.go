package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"syscall"
	"time"
)

// The components, by the names of their logs too.
const (
	Etcd        = "etcd"
	APIServer   = "kube-apiserver"
	Controllers = "kube-controller-manager"
	Scheduler   = "kube-scheduler"
	Kubelet     = "kubelet"
	Containerd  = "containerd"
)

// program is how a component is started.
type program struct {
	name string
	args []string
}

const (
	etcDir  = "/etc/kubernetes/"
	etcdURL = "http://127.0.0.1:2379"
)

func programs(o Options) []program {
	return []program{
		{Etcd, []string{
			kubernetesDir + "/etcd", "--data-dir=/var/lib/etcd", "--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
			"--listen-peer-urls=http://127.0.0.1:2380", "--unsafe-no-fsync", "--log-level=warn",
		}},
		{APIServer, append([]string{
			kubernetesDir + "/kube-apiserver", "--etcd-servers=" + etcdURL, "--bind-address=0.0.0.0", "--secure-port=443",
			"--advertise-address=" + nodeAddress, "--service-cluster-ip-range=10.96.0.0/16",
			"--client-ca-file=" + etcDir + "ca.crt", "--tls-cert-file=" + etcDir + "apiserver.crt", "--tls-private-key-file=" + etcDir + "apiserver.key",
			"--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file=" + etcDir + "tokens.pub", "--service-account-signing-key-file=" + etcDir + "tokens.key",
			"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
			"--kubelet-client-certificate=" + etcDir + "apiserver-kubelet.crt", "--kubelet-client-key=" + etcDir + "apiserver-kubelet.key",
			// By name it would ask a name server, of which there is none: exec and logs would hang.
			"--kubelet-preferred-address-types=InternalIP",
			"--profiling=false",
		}, o.APIServerFlags...)},
		{Containerd, []string{debianDir + "/usr/bin/containerd", "--config=/etc/containerd/config.toml"}},
		{Controllers, []string{
			kubernetesDir + "/kube-controller-manager", "--kubeconfig=" + etcDir + "controllers.kubeconfig", "--leader-elect=false",
			"--service-account-private-key-file=" + etcDir + "tokens.key", "--root-ca-file=" + etcDir + "ca.crt", "--use-service-account-credentials=true",
			"--cluster-signing-cert-file=" + etcDir + "ca.crt", "--cluster-signing-key-file=" + etcDir + "ca.key",
		}},
		{Scheduler, []string{kubernetesDir + "/kube-scheduler", "--kubeconfig=" + etcDir + "scheduler.kubeconfig", "--leader-elect=false"}},
		{Kubelet, append([]string{
			kubernetesDir + "/kubelet", "--config=/etc/kubernetes/kubelet.yaml", "--kubeconfig=" + etcDir + "kubelet.kubeconfig",
			"--root-dir=" + o.KubeletDir, "--cert-dir=" + o.KubeletDir + "/pki",
			"--node-ip=" + nodeAddress, "--hostname-override=" + nodeName, "--v=2",
		}, o.KubeletFlags...)},
	}
}

// configFiles are the components' files, by their paths on the disk.
func configFiles() map[string]string {
	return map[string]string{
		"etc/hosts": "127.0.0.1 localhost\n" + nodeAddress + " " + nodeName + "\n",
		// Look-ups fail at once: nothing listens there.
		"etc/resolv.conf":             "nameserver 127.0.0.1\n",
		"etc/hostname":                nodeName + "\n",
		"etc/containerd/config.toml":  containerdConfig(),
		"etc/kubernetes/kubelet.yaml": kubeletConfig(),
		"etc/cni/net.d/10-node.conflist": `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{
  "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "` + podRange + `"}]], "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "/run/cni-ipam"}
}]}
`,
	}
}

// containerdConfig is for containerd 1.6. restrict_oom_score_adj: in a container
// this root may not lower a score below its own.
func containerdConfig() string {
	return `version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + PauseImage + `"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "` + debianDir + `/usr/sbin/runc"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "` + debianDir + `/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
`
}

// kubeletConfig never evicts: the disk of a machine that runs tests may be nearly
// full. The times are short, so that tests need not wait for the usual ones.
func kubeletConfig() string {
	return `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /
enforceNodeAllocatable: []
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: /etc/kubernetes/ca.crt}}
authorization: {mode: Webhook}
failSwapOn: false
oomScoreAdj: 0
resolvConf: ""
volumePluginDir: /var/lib/kubelet-plugins
evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
syncFrequency: 10s
nodeStatusUpdateFrequency: 5s
volumeStatsAggPeriod: 5s
`
}

// StartComponent starts a component that does not run, and waits until it serves.
func (n *Node) StartComponent(ctx context.Context, name string) error {
	if err := n.launch(ctx, name); err != nil {
		return err
	}
	return n.ready(ctx, name)
}

// StopComponent asks a component to end, and kills it after two seconds: the API
// server would wait a minute for its watches, and etcd for the API server.
func (n *Node) StopComponent(ctx context.Context, name string) error {
	return n.end(ctx, name, syscall.SIGTERM)
}

// KillComponent ends a component as a crash does. Nothing starts it again.
func (n *Node) KillComponent(ctx context.Context, name string) error {
	return n.end(ctx, name, syscall.SIGKILL)
}

// Restart stops a component, starts it and waits until it serves.
func (n *Node) Restart(ctx context.Context, name string) error {
	if err := n.StopComponent(ctx, name); err != nil {
		return err
	}
	return n.StartComponent(ctx, name)
}

func (n *Node) end(ctx context.Context, name string, s syscall.Signal) error {
	_, err := n.machine.tell(ctx, order{Do: "end", Name: name, Signal: s, Patience: 2 * time.Second})
	return err
}

func (n *Node) launch(ctx context.Context, name string) error {
	for _, p := range n.programs {
		if p.name == name {
			_, err := n.machine.tell(ctx, order{Do: "start", Name: name, Args: p.args, Log: logDir + "/" + name + ".log"})
			return err
		}
	}
	return fmt.Errorf("no component is called %q", name)
}

// ready waits until a component serves.
func (n *Node) ready(ctx context.Context, name string) error {
	return Until(ctx, name+" to serve", func(ctx context.Context) error {
		switch name {
		case Etcd:
			return healthy(ctx, etcdURL+"/health")
		case APIServer:
			return n.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		case Containerd:
			_, err := n.Run(ctx, "ctr", "version")
			return err
		case Kubelet:
			return healthy(ctx, "http://127.0.0.1:10248/healthz")
		}
		return nil // nothing is asked of the others
	})
}

func healthy(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status + ": " + string(body))
	}
	return nil
}
