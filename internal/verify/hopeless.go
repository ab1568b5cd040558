package verify

import (
	"slices"
	"strings"
)

// ShareMounts is what to do about a node whose mounts are private.
const ShareMounts = "`mount --make-rshared /` on the node, and make it last: a systemd unit that runs it before kubelet"

// PrivateMounts tells whether a container runtime says of a container that it cannot
// start it because the node's mounts are private. containerd and CRI-O have the same
// words: HostToContainer needs "a shared or slave mount", Bidirectional "a shared mount".
func PrivateMounts(message string) bool {
	return strings.Contains(message, "is not a shared mount") || strings.Contains(message, "is not a shared or slave mount")
}

// NeverPulled tells whether a container waits for an image that kubelet will not even
// try to fetch.
func NeverPulled(reason string) bool {
	return slices.Contains([]string{"ErrImageNeverPull", "InvalidImageName"}, reason)
}
