// Package kube is the agent's side of the Kubernetes API: the Pods of this node
// as facts, the queue that hands them to the agent one at a time, and the one
// write the agent makes, the ready annotation. Nothing else in the agent knows
// client-go.
//
// Three rules hold throughout:
//
//   - What the informer lacks is not gone. Its list may come from a lagging API
//     server, so a release is preceded by Controller.Confirm, which asks the
//     quorum. A failed request never reads as absence.
//   - Nothing is reconciled before the first complete list: an agent that starts
//     while the API is away leaves the node as it found it.
//   - An answer is bound to the Pod and to the grant it answers: it carries the
//     UID and the resource version that were reconciled, and the API refuses it
//     when either has changed.
package kube
