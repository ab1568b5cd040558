package grant

// Kind says what a mount is. It decides how the source is read and how the mount
// is delivered.
type Kind string

// The kinds, in the order of Kinds.
const (
	KindPlain        Kind = ""
	KindFiles        Kind = "files"
	KindSharedFolder Kind = "shared-folder"
	KindNFS          Kind = "nfs"
	KindGit          Kind = "git"
	KindCloudStorage Kind = "cloud-storage"
	KindLocalBridge  Kind = "local-bridge"
)

// Delivery says what the agent does to produce a mount. The four deliveries are
// the whole vocabulary; several kinds share one.
type Delivery string

const (
	// DeliveryBind binds a folder that is already on a filesystem of the node.
	DeliveryBind Delivery = "bind"
	// DeliveryFilesystem mounts a filesystem the kernel knows; no process stays.
	DeliveryFilesystem Delivery = "filesystem"
	// DeliveryProcess runs a userspace filesystem for as long as the mount stands.
	DeliveryProcess Delivery = "process"
	// DeliveryMaterialize produces the content on the node first, then binds it.
	DeliveryMaterialize Delivery = "materialize"
)

// KindInfo is one row of the kind table.
type KindInfo struct {
	Kind     Kind
	Delivery Delivery

	Summary    string // what it is, in one phrase
	SourceForm string // how a source is written, in one phrase

	Creates  bool   // a missing folder is made
	ReadOnly bool   // always mounted read-only, whatever the grant says
	Switch   string // chart value that turns the kind on; "" means it is always on
	Unserved bool   // this release has no way to mount it, and its chart refuses the Switch

	// source cleans a source of this kind, or returns what is wrong with it as
	// the second half of a sentence that starts with the source.
	source func(text string) (cleaned, problem string)
	// relative is set where white space may be part of a cleaned source.
	relative bool
}

// Kinds returns the kind table: every kind, each once. The caller owns the
// returned slice.
func Kinds() []KindInfo {
	return []KindInfo{
		{
			Kind: KindPlain, Delivery: DeliveryBind,
			Summary:    "a folder of the claim, bound as it is",
			SourceForm: "path beneath the claim",
			source:     relativeSource, relative: true,
		},
		{
			Kind: KindFiles, Delivery: DeliveryBind,
			Summary:    "the home folder of a person, team or organization",
			SourceForm: "path beneath the claim",
			Creates:    true,
			source:     relativeSource, relative: true,
		},
		{
			Kind: KindSharedFolder, Delivery: DeliveryBind,
			Summary:    "a dataset that an administrator put on the claim",
			SourceForm: "path beneath the claim",
			source:     relativeSource, relative: true,
		},
		{
			Kind: KindNFS, Delivery: DeliveryFilesystem,
			Summary:    "an NFS export other than the claim",
			SourceForm: "host:/export",
			Switch:     "nodeMountGateway.nfs",
			source:     nfsSource,
		},
		{
			Kind: KindGit, Delivery: DeliveryMaterialize,
			Summary:    "a repository at a pinned commit",
			SourceForm: "https://host/path, ssh://git@host/path or git@host:path, with the full commit id as revision",
			ReadOnly:   true,
			Switch:     "nodeMountGateway.repositories",
			source:     gitSource,
		},
		{
			Kind: KindCloudStorage, Delivery: DeliveryProcess,
			Summary:    "a bucket of an object store, or a prefix in it",
			SourceForm: "bucket or bucket/prefix",
			Switch:     "nodeMountGateway.buckets",
			source:     bucketSource, relative: true,
		},
		{
			Kind: KindLocalBridge, Delivery: DeliveryProcess,
			Summary:    "a folder on a person's own computer",
			SourceForm: "bridge uid",
			Switch:     "nodeMountGateway.localBridges",
			Unserved:   true,
			source:     bridgeSource,
		},
	}
}

// Info returns the row of the kind table for k, and whether there is one.
func (k Kind) Info() (KindInfo, bool) {
	for _, info := range Kinds() {
		if info.Kind == k {
			return info, true
		}
	}
	return KindInfo{}, false
}
