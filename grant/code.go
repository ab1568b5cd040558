package grant

import "slices"

// Code says why a grant, or a whole set, was not mounted. Codes are part of the
// contract: a writer may act on them, so none changes its meaning.
type Code string

// The codes, in the order of Codes.
const (
	CodeUnsupportedKind    Code = "NODE_MOUNT_GATEWAY_UNSUPPORTED_KIND"
	CodeInvalidSource      Code = "NODE_MOUNT_GATEWAY_INVALID_SOURCE"
	CodeInvalidTarget      Code = "NODE_MOUNT_GATEWAY_INVALID_TARGET"
	CodeSecretRefused      Code = "NODE_MOUNT_GATEWAY_SECRET_REFUSED"
	CodeMountFailed        Code = "NODE_MOUNT_GATEWAY_MOUNT_FAILED"
	CodeMountDead          Code = "NODE_MOUNT_GATEWAY_MOUNT_DEAD"
	CodeProcessUnsupported Code = "NODE_MOUNT_GATEWAY_PROCESS_UNSUPPORTED"
	CodeTooManyMounts      Code = "NODE_MOUNT_GATEWAY_TOO_MANY_MOUNTS"
	CodeInvalidGrant       Code = "NODE_MOUNT_GATEWAY_INVALID_GRANT"
	CodePodUnsupported     Code = "NODE_MOUNT_GATEWAY_POD_UNSUPPORTED"
	CodeNotReady           Code = "NODE_MOUNT_GATEWAY_NOT_READY"
	CodeHeld               Code = "NODE_MOUNT_GATEWAY_HELD"
)

// CodeInfo explains one code to the person who meets it.
type CodeInfo struct {
	Code    Code
	Meaning string // one sentence: what happened
	Remedy  string // one sentence: what to do
	Passes  bool   // nothing is wrong: it takes its time, and the agent answers again by itself
}

// Passes tells whether an answer with this code is not the last word: nothing is
// wrong, and nobody has to do anything. It is false for every other code, also where
// the agent goes on trying: what has gone wrong may stay so. A code that is not in
// the table does not pass.
func (c Code) Passes() bool {
	table := Codes()
	i := slices.IndexFunc(table, func(info CodeInfo) bool { return info.Code == c })
	return i >= 0 && table[i].Passes
}

// Codes returns the code table: every code, each once. The caller owns the
// returned slice.
func Codes() []CodeInfo {
	return []CodeInfo{
		{
			Code:    CodeUnsupportedKind,
			Meaning: "The grant names a kind that this deployment does not serve, or that does not exist.",
			Remedy:  "Use a kind that the documentation lists as served, and turn its chart value on.",
		},
		{
			Code:    CodeInvalidSource,
			Meaning: "The source or the revision does not have the form its kind requires, or it leads out of the claim.",
			Remedy:  "Correct the source to the form of its kind; a git grant also needs a full commit id.",
		},
		{
			Code:    CodeInvalidTarget,
			Meaning: "The target is not a plain folder name.",
			Remedy:  "Use one path segment of letters, digits, '.', '_' and '-' that starts with a letter, a digit or '_', of at most 127 characters.",
		},
		{
			Code:    CodeSecretRefused,
			Meaning: "The Secret named by the grant was not used: its name is not valid, it does not exist, the Pod does not own it, or the agent may not read it.",
			Remedy:  "Create the Secret in the Pod's namespace with an owner reference to the Pod, and turn nodeMountGateway.credentials on.",
		},
		{
			Code:    CodeMountFailed,
			Meaning: "The mount was attempted and did not happen, or could not be seen from the container.",
			Remedy:  "Read the message for the cause the kernel or the server gave; the agent goes on trying.",
		},
		{
			Code:    CodeMountDead,
			Meaning: "The mount was made, and the filesystem behind it no longer answers.",
			Remedy:  "Close the files open in it and wait for the agent to start it again; if it stays dead, grant it again.",
		},
		{
			Code:    CodeProcessUnsupported,
			Meaning: "The kind needs a filesystem process, and this agent runs none of that kind.",
			Remedy:  "Turn the kind's chart value on if this release serves the kind, or use one that needs no process.",
		},
		{
			Code:    CodeTooManyMounts,
			Meaning: "The set is larger than a Pod or its node may hold, so nothing new of it was mounted.",
			Remedy:  "Grant fewer mounts, or raise nodeMountGateway.maxMountsPerPod or nodeMountGateway.maxMountsPerNode.",
		},
		{
			Code:    CodeInvalidGrant,
			Meaning: "The annotation, or one entry of it, cannot be read; a field that cannot be read is never taken for the weaker choice.",
			Remedy:  "Write the annotation with the grant package or to the documented format, and remove what is not part of it.",
		},
		{
			Code:    CodePodUnsupported,
			Meaning: "This Pod or its node cannot receive mounts.",
			Remedy:  "Read the message for what is missing, and create the Pod from the documented template.",
		},
		{
			Code:    CodeNotReady,
			Meaning: "The Pod's volume is not there yet, or what it mounts is still being made: the content is fetched, or the process is started.",
			Remedy:  "Wait, because the agent goes on trying; if it lasts, look at the Pod's events.",
			Passes:  true,
		},
		{
			Code:    CodeHeld,
			Meaning: "The mount was revoked and taken from the tree, but a process of the Pod still holds it, or it cannot be told whether one does.",
			Remedy:  "End the process that has a file or its working directory there, or delete the Pod to be certain.",
		},
	}
}
