// Package node runs a real Kubernetes node for tests: etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler, kubelet, containerd and runc, on this
// machine, in namespaces of their own.
//
// There are three places. The *host* is the machine the tests were started on;
// nothing of a run is seen there. The *lab* is the test binary, executed again in
// its own mount, network and host name namespaces (Main): it shares the network
// with the node, so tests speak to the API directly. The *machine* is the node:
// its own pid, mount, IPC and cgroup namespaces below the lab's, a first process
// that starts the components, and a root filesystem of its own, which is a folder
// (the disk) with the host's /usr mounted into it.
//
// A machine that ends takes every process and mount with it, because its first
// process does. It ends when told to, and when the lab dies in any way: its
// standard input ends then. Reboot ends it and starts another on the same disk.
package node
