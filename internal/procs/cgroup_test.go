package procs

import (
	"bufio"
	"slices"
	"strings"
	"testing"
)

const (
	uidA   = "8712f785-1a3e-41ec-a00b-e2dcc77431cb"
	uidB   = "0d0f4b2c-6a51-4f0e-9b1e-5f4f3f0c7a10"
	sliceA = "8712f785_1a3e_41ec_a00b_e2dcc77431cb"
	sliceB = "0d0f4b2c_6a51_4f0e_9b1e_5f4f3f0c7a10"
	static = "a8b1f1d2c3e4f5061728394a5b6c7d8e"

	id1 = "73051af271105c07e1f493b34856a77e665e3b0b4fc72f76c807dfbffeb881bd"
	id2 = "c5d80dfa7ae4c3b1d2f10b1c5e3c9a8f6d7e0b4a39281706f5e4d3c2b1a09f8e"
)

func TestACgroupFileNamesThePodAndTheContainer(t *testing.T) {
	type of struct{ pod, container string }
	for name, c := range map[string]struct {
		own, file string
		want      []of
	}{
		"containerd, systemd driver, v2, guaranteed": {
			file: "0::/kubepods.slice/kubepods-pod" + sliceA + ".slice/cri-containerd-" + id1 + ".scope",
			want: []of{{uidA, id1}},
		},
		"containerd, systemd driver, v2, burstable": {
			file: "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + sliceA + ".slice/cri-containerd-" + id1 + ".scope",
			want: []of{{uidA, id1}},
		},
		"containerd, systemd driver, v2, best effort, systemd as the container's init": {
			file: "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + sliceA + ".slice/cri-containerd-" + id1 + ".scope/init.scope",
			want: []of{{uidA, id1}},
		},
		"containerd, cgroupfs driver, v2": {
			file: "0::/kubepods/besteffort/pod" + uidA + "/" + id1,
			want: []of{{uidA, id1}},
		},
		"containerd, cgroupfs driver, v1": {
			file: "12:hugetlb:/kubepods/burstable/pod" + uidA + "/" + id1 + "\n" +
				"11:cpu,cpuacct:/kubepods/burstable/pod" + uidA + "/" + id1 + "\n" +
				"10:memory:/kubepods/burstable/pod" + uidA + "/" + id1 + "\n" +
				"2:rdma:/\n" +
				"1:name=systemd:/kubepods/burstable/pod" + uidA + "/" + id1 + "\n" +
				"0::/system.slice/containerd.service",
			want: []of{{uidA, id1}},
		},
		"containerd left at cgroupfs under a systemd kubelet": {
			file: "0::/system.slice/containerd.service/kubepods-burstable-pod" + sliceA + ".slice:cri-containerd:" + id1,
			want: []of{{uidA, id1}},
		},
		"CRI-O, systemd driver, v2": {
			file: "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + sliceA + ".slice/crio-" + id1 + ".scope",
			want: []of{{uidA, id1}},
		},
		"CRI-O with crun's sub-cgroup": {
			file: "0::/kubepods.slice/kubepods-pod" + sliceA + ".slice/crio-" + id1 + ".scope/container",
			want: []of{{uidA, id1}},
		},
		"CRI-O, cgroupfs driver": {
			file: "0::/kubepods/burstable/pod" + uidA + "/crio-" + id1,
			want: []of{{uidA, id1}},
		},
		"CRI-O's monitor is no process of the Pod": {
			file: "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + sliceA + ".slice/crio-conmon-" + id1 + ".scope",
		},
		"CRI-O's monitor, cgroupfs driver, v1": {
			file: "4:memory:/kubepods/burstable/pod" + uidA + "/crio-conmon-" + id1 + "\n" +
				"1:name=systemd:/kubepods/burstable/pod" + uidA,
		},
		"docker, systemd driver, v1": {
			file: "3:pids:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + sliceA + ".slice/docker-" + id1 + ".scope\n" +
				"0::/",
			want: []of{{uidA, id1}},
		},
		"docker, cgroupfs driver, v1": {
			file: "9:devices:/kubepods/besteffort/pod" + uidA + "/" + id1,
			want: []of{{uidA, id1}},
		},
		"kind, cgroupfs: the node is a container itself": {
			file: "0::/docker/" + id2 + "/kubelet/kubepods/burstable/pod" + uidA + "/" + id1,
			want: []of{{uidA, id1}},
		},
		"kind, systemd": {
			file: "0::/system.slice/docker-" + id2 + ".scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + sliceA + ".slice/cri-containerd-" + id1 + ".scope",
			want: []of{{uidA, id1}},
		},
		"kind on podman": {
			file: "0::/machine.slice/libpod-" + id2 + ".scope/container/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + sliceA + ".slice/cri-containerd-" + id1 + ".scope",
			want: []of{{uidA, id1}},
		},
		"k3s, rootless": {
			file: "0::/user.slice/user-1000.slice/user@1000.service/app.slice/k3s-rootless.service/k3s_evac/kubepods/burstable/pod" + uidA + "/" + id1,
			want: []of{{uidA, id1}},
		},
		"k3d": {
			file: "7:freezer:/docker/" + id2 + "/k3s/kubepods/besteffort/pod" + uidA + "/" + id1,
			want: []of{{uidA, id1}},
		},
		"rancher, cgroup root of its own": {
			file: "5:cpuset:/rancher/kubepods/burstable/pod" + uidA + "/" + id1,
			want: []of{{uidA, id1}},
		},
		"seen from a cgroup namespace": {
			own:  "0::/",
			file: "0::/../../kubepods-burstable-pod" + sliceA + ".slice/cri-containerd-" + id1 + ".scope",
			want: []of{{uidA, id1}},
		},
		"seen from a cgroup namespace, the whole way up": {
			own:  "0::/",
			file: "0::/../../../../kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + sliceA + ".slice/crio-" + id1 + ".scope",
			want: []of{{uidA, id1}},
		},
		"a static Pod, whose uid is a hash": {
			file: "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + static + ".slice/cri-containerd-" + id1 + ".scope",
			want: []of{{static, id1}},
		},
		"a static Pod, cgroupfs": {
			file: "0::/kubepods/burstable/pod" + static + "/" + id1,
			want: []of{{static, id1}},
		},
		"the Pod's own cgroup": {
			file: "6:memory:/kubepods/burstable/pod" + uidA,
			want: []of{{uidA, ""}},
		},
		"one hierarchy knows only the Pod": {
			file: "6:memory:/kubepods/burstable/pod" + uidA + "\n5:cpu:/kubepods/burstable/pod" + uidA + "/" + id1,
			want: []of{{uidA, id1}},
		},
		"removed while its last process was a zombie": {
			file: "0::/kubepods/burstable/pod" + uidA + "/" + id1 + " (deleted)",
			want: []of{{uidA, id1}},
		},
		"docker inside the container": {
			file: "0::/kubepods/burstable/pod" + uidA + "/" + id1 + "/docker/" + id2,
			want: []of{{uidA, id1}},
		},
		"a node in a Pod, seen from outside": {
			own:  "0::/kubepods/besteffort/pod" + static + "/" + id2,
			file: "0::/kubepods/burstable/pod" + uidA + "/" + id1 + "/kubelet/kubepods/burstable/pod" + uidB + "/" + id2,
			want: []of{{uidA, id1}},
		},
		"a node in a Pod, seen from inside": {
			own:  "0::/kubepods/burstable/pod" + uidA + "/" + id1 + "/kubelet/kubepods/besteffort/pod" + static + "/" + id2,
			file: "0::/kubepods/burstable/pod" + uidA + "/" + id1 + "/kubelet/kubepods/burstable/pod" + uidB + "/" + id2,
			want: []of{{uidA, id1}, {uidB, id2}},
		},
		"a node in a Pod, seen from its cgroup namespace": {
			own:  "0::/kubelet/kubepods/besteffort/pod" + static + "/" + id2,
			file: "0::/kubelet/kubepods/burstable/pod" + uidB + "/" + id1,
			want: []of{{uidB, id1}},
		},
		"a container that names a cgroup of its own after another Pod": {
			own:  "0::/kubepods/besteffort/pod" + static + "/" + id2,
			file: "0::/kubepods/burstable/pod" + uidA + "/" + id1 + "/pod" + uidB,
			want: []of{{uidA, id1}},
		},
		"the same under containerd's combined name": {
			file: "0::/system.slice/containerd.service/kubepods-pod" + sliceA + ".slice:cri-containerd:" + id1 + "/kubepods-pod" + sliceB + ".slice",
			want: []of{{uidA, id1}},
		},
		"services of a node": {
			file: "0::/system.slice/kubelet.service\n1:name=systemd:/kubepods.slice/kubepods-burstable.slice",
		},
		"a user's slice with pod in its name": {
			file: "0::/user.slice/user-libpod_pod_" + id1 + ".slice/libpod-" + id2 + ".scope",
		},
		"no format of the kernel's": {file: "kubepods/pod" + uidA + "\n:\n::\npod\n\x00"},
	} {
		t.Run(name, func(t *testing.T) {
			own := make(map[string]string)
			if controllers, path, ok := cutCgroup(c.own); ok {
				own[controllers] = path
			}
			ms, err := membersIn(bufio.NewReader(strings.NewReader(c.file+"\n")), own)
			check(t, err)
			var got []of
			for _, m := range ms {
				got = append(got, of{m.pod, m.container})
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestAContainersIDIsSixtyFourDigitsBehindASeparator(t *testing.T) {
	for part, want := range map[string]string{
		id1:                               id1,
		"crio-" + id1 + ".scope":          id1,
		"cri-containerd:" + id1:           id1,
		"kata_" + id1:                     id1,
		"x" + id1:                         "",
		id1[1:]:                           "",
		strings.ToUpper(id1):              "",
		"crio-" + id1 + ".mount":          "",
		"crio-" + strings.Repeat("g", 64): "",
	} {
		if got := containerID(part); got != want {
			t.Errorf("containerID(%q) = %q, want %q", part, got, want)
		}
	}
}

func FuzzMembers(f *testing.F) {
	f.Add("/kubepods/burstable/pod"+uidA+"/"+id1+"/pod"+uidB, "/kubepods/besteffort/pod"+static+"/"+id2)
	f.Add("/kubepods-pod"+sliceA+".slice:cri-containerd:"+id1, "/")
	f.Add("/../../kubepods-burstable-pod"+sliceA+".slice/crio-conmon-"+id1+".scope (deleted)", "")
	f.Fuzz(func(t *testing.T, path, own string) {
		for _, m := range members(path, own) {
			if m.container != "" && (len(m.container) != 64 || !strings.Contains(path, m.container)) {
				t.Errorf("container %q of %q", m.container, path)
			}
			// Whatever the path, a Pod's uid is a whole component, or all of one
			// between "pod" and ".slice".
			whole := slices.ContainsFunc(strings.Split(strings.TrimSuffix(path, " (deleted)"), "/"), func(part string) bool {
				name, _, _ := strings.Cut(strings.ReplaceAll(part, "_", "-"), ":")
				return name == "pod"+m.pod || name == "pod"+m.pod+".slice" || strings.HasSuffix(name, "-pod"+m.pod+".slice")
			})
			if !whole {
				t.Errorf("pod %q is no component of %q", m.pod, path)
			}
		}
	})
}
