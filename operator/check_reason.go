package operator

import (
	"fmt"
	"strings"
)

// Reason says which rule of [CheckTemplate] a Pod breaks. Programs may act on
// them: they are added, never renamed.
type Reason string

// The reasons, in the order of Reasons.
const (
	ReasonLabel             Reason = "LabelMissing"
	ReasonAnswered          Reason = "AnswerInTemplate"
	ReasonGrantInvalid      Reason = "GrantInvalid"
	ReasonMirror            Reason = "MirrorPod"
	ReasonUserNamespace     Reason = "UserNamespace"
	ReasonSandboxedRuntime  Reason = "SandboxedRuntime"
	ReasonSELinux           Reason = "SELinuxOptions"
	ReasonHostNamespace     Reason = "HostNamespace"
	ReasonSharedProcesses   Reason = "SharedProcesses"
	ReasonEphemeral         Reason = "EphemeralContainer"
	ReasonDuplicateName     Reason = "DuplicateName"
	ReasonVolumeMissing     Reason = "VolumeMissing"
	ReasonVolumeOnDisk      Reason = "VolumeOnDisk"
	ReasonVolumeSize        Reason = "VolumeSize"
	ReasonNotMounted        Reason = "NotMounted"
	ReasonUnknownVolume     Reason = "UnknownVolume"
	ReasonNoPropagation     Reason = "NoPropagation"
	ReasonSubPath           Reason = "SubPath"
	ReasonMountPath         Reason = "MountPath"
	ReasonOverlap           Reason = "OverlappingMounts"
	ReasonTokenAutomounted  Reason = "TokenAutomounted"
	ReasonTokenInReach      Reason = "TokenInReach"
	ReasonAnnotationInReach Reason = "AnnotationInReach"
	ReasonPrivileged        Reason = "Privileged"
	ReasonCapability        Reason = "Capability"
	ReasonSeccomp           Reason = "SeccompMissing"
	ReasonHostPath          Reason = "HostPath"
	ReasonMetadataOpen      Reason = "MetadataOpen"
)

// ReasonInfo explains one reason to the person who meets it.
type ReasonInfo struct {
	Reason Reason
	Why    string // what would happen, a clause that follows "because"
	Fix    string // what to do, one clause
}

// Reasons returns the table of rules: every reason, each once. The caller owns
// the returned slice.
func Reasons() []ReasonInfo {
	return append(podReasons(), containerReasons()...)
}

func podReasons() []ReasonInfo {
	return []ReasonInfo{
		{
			ReasonLabel, "whoever hands out a Pod tells by the label that it can be granted folders",
			`set the label to "true"`,
		},
		{
			ReasonAnswered, "an answer that was there before a grant passes for the answer to it",
			"remove the annotation: the agent writes it",
		},
		{
			ReasonGrantInvalid, "the agent answers every Pod of the template with that refusal",
			"write it with grant.Encode, or grant when a Pod is handed out",
		},
		{
			ReasonMirror, "a static Pod's mirror is not the Pod that runs: nothing arrives through it",
			"create the Pod through the API",
		},
		{
			ReasonUserNamespace, "in a user namespace of the Pod's own the granted folders would have the wrong owners",
			"remove hostUsers: false",
		},
		{
			ReasonSandboxedRuntime, "containers of this runtime have a kernel of their own and see nothing that is mounted later",
			"use a runtime class whose containers share the node's kernel",
		},
		{
			ReasonSELinux, "the container runtime would relabel the granted folders at every start of a container",
			"remove seLinuxOptions, and run the Pod on a node without SELinux",
		},
		{
			ReasonHostNamespace, "user code would be next to the node's own processes, sockets or memory, and what a container does to its network is done to the node",
			"remove it",
		},
		{
			ReasonSharedProcesses, "user code could reach the companion's token and environment through /proc",
			"remove shareProcessNamespace",
		},
		{
			ReasonEphemeral, "a container added to a running Pod was checked by nobody, and may share the processes of another",
			"hand out a Pod that nobody has debugged in",
		},
		{
			ReasonDuplicateName, "the API refuses two of one name, and what is checked of the one would pass for the other",
			"choose another name",
		},
		{
			ReasonVolumeMissing, "grants are mounted into this volume",
			"add the volume as an emptyDir",
		},
		{
			ReasonVolumeOnDisk, "kubelet empties a volume on disk by deleting recursively, through a mount that did not come down, in the user's own folder",
			"set emptyDir.medium to Memory",
		},
		{
			ReasonVolumeSize, "the volume is memory and holds mount points alone; without a small limit it is a place to fill",
			"set emptyDir.sizeLimit to 1Mi",
		},
		{
			ReasonNotMounted, "no container would see what is granted",
			"mount it in the runtime container with mountPropagation: HostToContainer",
		},
	}
}

func containerReasons() []ReasonInfo {
	return []ReasonInfo{
		{
			ReasonUnknownVolume, "the API refuses the Pod",
			"add the volume, or remove the mount",
		},
		{
			ReasonNoPropagation, "what is mounted after the container has started does not arrive in it",
			"set mountPropagation to HostToContainer",
		},
		{
			ReasonSubPath, "a sub-path is resolved when the container starts, and no later mount reaches it",
			"mount the whole volume",
		},
		{
			ReasonMountPath, "it would hide what the image and the runtime have there, or be hidden, and the container would not start",
			"mount it in a folder of its own, such as /mnt/datalayer",
		},
		{
			ReasonOverlap, "of two volumes in one place one hides the other, and whoever can remove the folder between them removes the mount",
			"mount the other volume elsewhere",
		},
		{
			ReasonTokenAutomounted, "kubelet puts the service account's token into every container, and whoever may patch the Pod may grant itself any folder",
			"set automountServiceAccountToken to false in the Pod's spec",
		},
		{
			ReasonTokenInReach, "whoever holds the token may patch the Pod, and so grant itself any folder",
			"mount the credential in the companion alone",
		},
		{
			ReasonAnnotationInReach, "the grant names folders of the claim and Secrets that the sandbox has no business knowing",
			"project the single annotations that the container needs",
		},
		{
			ReasonPrivileged, "a privileged container can make a read-only grant writable and reach every disk of the node",
			"remove privileged; the one privileged container is the init container that blocks the metadata service",
		},
		{
			ReasonCapability, "with it a container gets past what a grant allows, or past the other guards of the Pod",
			"remove it from capabilities.add",
		},
		{
			ReasonSeccomp, "without a filter user code can make namespaces of its own, in which a folder that was revoked lives on",
			"set seccompProfile.type to RuntimeDefault, for the Pod or the container",
		},
		{
			ReasonHostPath, "a folder of the node in reach of user code is outside every grant, and may be the way to all of them",
			"remove the hostPath volume from the container",
		},
		{
			ReasonMetadataOpen, "user code that runs before the metadata service is blocked gets the node's credentials from it",
			"make the blocking init container the first one",
		},
	}
}

// Problem is one rule that a Pod breaks.
type Problem struct {
	// Field is the path of what breaks it, as kubectl explains it:
	// "spec.containers[0].securityContext.privileged".
	Field  string
	Reason Reason
	// Message says what is there and why that cannot stay, in one sentence.
	Message string
	// Fix says what to do.
	Fix string
}

// String is the problem in one line.
func (p Problem) String() string { return fmt.Sprintf("%s: %s: %s", p.Field, p.Message, p.Fix) }

// TemplateError lists every problem of a Pod or a template, in the order of its
// fields.
type TemplateError struct {
	Problems []Problem
}

// Error has a line for each problem.
func (e *TemplateError) Error() string {
	lines := make([]string, 0, len(e.Problems)+1)
	lines = append(lines, "the Pod is not fit for grants:")
	for _, p := range e.Problems {
		lines = append(lines, "  "+p.String())
	}
	return strings.Join(lines, "\n")
}
