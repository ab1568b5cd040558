// Package checkout produces the content of git grants: one commit of a repository
// on the node's disk, made once and shared by every Pod that may see it.
//
// Three parties meet here and none trusts the other. A tenant chose the URL, a
// server chose the bytes, and the node runs git between them. So:
//
//   - git runs as a user that owns nothing, without capabilities, in namespaces of
//     its own in which the agent's credentials are covered (confine.go);
//   - the server's address is looked up once, checked, and pinned (address.go);
//   - a credential is answered to git's question over a socket, and an ssh key
//     stays in this process, which signs for ssh (helper.go, sshagent.go);
//   - what came is measured before it is written out and inspected afterwards, by
//     descriptor, when no process of git is left (clone.go, publish.go);
//   - a checkout appears in the store by one rename, complete, and belongs to the
//     sandbox's user from then on: no later git can change it.
//
// A store is a folder:
//
//	Root/lock          held by the one store that uses the folder
//	Root/jobs/NAME     work that is under way, or rubbish of work that was killed
//	Root/ready/KEY     checkout.json and tree/, published
package checkout
