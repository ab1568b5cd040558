package facts

import (
	"testing"

	"github.com/datalayer/node-mounts/internal/nodeview"
)

func TestAContainersOwnSharedMountReachesTheNodeOnlyInItsPeerGroup(t *testing.T) {
	own := table(t, `1 0 0:9 / / rw - overlay overlay rw
2 1 8:1 /k /var/lib/kubelet rw shared:7 - ext4 /dev/sda1 rw
3 1 8:1 /root /srv/root rw shared:1 - ext4 /dev/sda1 rw
`)
	const rest = "3 1 8:1 /k /var/lib/kubelet rw shared:7 - ext4 /dev/sda1 rw\n"
	for name, c := range map[string]struct {
		host          string
		kubelet, root nodeview.Propagation
	}{
		"the node shares both":                 {"1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n" + rest, nodeview.Shared, nodeview.Shared},
		"the node made all private since":      {"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n3 1 8:1 /k /var/lib/kubelet rw - ext4 /dev/sda1 rw\n", nodeview.Private, nodeview.Private},
		"the node made it shared anew":         {"1 0 8:1 / / rw shared:20 - ext4 /dev/sda1 rw\n" + rest, nodeview.Shared, nodeview.Private},
		"the node mounted another thing there": {"1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n4 1 8:9 / /var/lib/kubelet rw shared:8 - ext4 /dev/sdb rw\n", nodeview.Private, nodeview.Shared},
		"the node hid it since":                {"1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n" + rest + "4 3 8:9 / /var/lib/kubelet rw - ext4 /dev/sdb rw\n", nodeview.Private, nodeview.Shared},
		"its path is a link on the node":       {"1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n4 1 8:1 /k /data/kubelet rw shared:7 - ext4 /dev/sda1 rw\n", nodeview.Shared, nodeview.Shared},
		"another part of it is all there is":   {"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n4 1 8:1 /k/pods/x /x rw shared:7 - ext4 /dev/sda1 rw\n", nodeview.Private, nodeview.Private},
	} {
		host := table(t, c.host)
		if kubelet, root := Propagation(own, host, "/var/lib/kubelet"), Propagation(own, host, "/srv/root"); kubelet != c.kubelet || root != c.root {
			t.Errorf("%s: %s and %s, want %s and %s", name, kubelet, root, c.kubelet, c.root)
		}
	}
	if got := Propagation(own, nil, "/var/lib/kubelet"); got != nodeview.Shared {
		t.Errorf("where the node's table cannot be seen: %s", got)
	}
	if got := Propagation(own, table(t, "1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"), "/srv/root/pods"); got != nodeview.Shared {
		t.Errorf("a folder of a host path that lies deeper on the node: %s", got)
	}
}
