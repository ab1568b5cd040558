package agentcmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/datalayer/node-mounts/internal/delivery"
)

// Bounds of the soft timeout of NFS mounts. Beneath the least, a busy server would
// fail writes that it was about to do; the kernel's own limit is ten minutes.
const (
	leastNFSTimeout = time.Second
	mostNFSTimeout  = 10 * time.Minute
)

// kindOptions say which kinds are served beside those of the claim, and how.
func kindOptions() []Option {
	return []Option{
		{
			Flag: "credentials", Env: "DATALAYER_NODE_MOUNT_GATEWAY_CREDENTIALS", Default: "false", Type: "true|false",
			Help: "read the Secrets that grants name and their Pods own; needs secrets: get",
			set:  func(s *settings, v string) error { return truth(&s.credentials, v) },
		},
		{
			Flag: "nfs", Env: "DATALAYER_NODE_MOUNT_GATEWAY_NFS", Default: "false", Type: "true|false",
			Help: "serve the kind nfs; needs hostPID",
			set:  func(s *settings, v string) error { return truth(&s.nfs, v) },
		},
		{
			Flag: "nfs-servers", Env: "DATALAYER_NODE_MOUNT_GATEWAY_NFS_SERVERS", Type: "list",
			Help: "hosts, addresses and networks that exports may be mounted from; empty: any that is not the node itself or local to its link",
			set: func(s *settings, v string) (err error) {
				s.nfsServers, err = delivery.ParseServers(list(v))
				return err
			},
		},
		{
			Flag: "nfs-timeout", Env: "DATALAYER_NODE_MOUNT_GATEWAY_NFS_TIMEOUT", Default: delivery.DefaultSoftTimeout.String(), Type: "duration",
			Help: "how long a call into an export waits for its server before it fails with EIO",
			set: func(s *settings, v string) error {
				d, err := time.ParseDuration(v)
				if err != nil || d < leastNFSTimeout || d > mostNFSTimeout {
					return fmt.Errorf("want a duration from %s to %s", leastNFSTimeout, mostNFSTimeout)
				}
				s.nfsTimeout = d
				return nil
			},
		},
	}
}

func truth(to *bool, v string) error {
	on, err := strconv.ParseBool(v)
	if err != nil {
		return errors.New("want true or false")
	}
	*to = on
	return nil
}

// exports are the settings of NFS, on a node whose processes the agent sees.
func (s settings) exports() delivery.NFS {
	return delivery.NFS{
		Servers: s.nfsServers, SoftTimeout: s.nfsTimeout, HostProc: delivery.HostProc,
		Resolve: func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		},
	}
}
