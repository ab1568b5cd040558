// Package keeper hosts the processes that serve FUSE mounts, so that they outlive
// the agent that made the mounts.
//
// The server (Server) is the first process of a container of its own. It is asked
// over a socket, by root alone, to start a program that it is handed as a
// descriptor: a new agent's children run the new agent's code in an old keeper. A
// child has the descriptors, arguments and environment it was given and nothing
// else, is an unprivileged user without a capability or a way to one, and ends with
// the keeper (confine.go).
//
// The protocol: one request per connection, SOCK_SEQPACKET, one JSON object a
// packet, descriptors as SCM_RIGHTS beside it (wire.go). It only grows: a field that
// is not known is ignored, an operation that is not known is refused in words, and
// every answer says what the keeper is.
//
// A child is named by the keeper's Instance and the child's ID together. The agent
// gets a pidfd: it tells the child's end and nothing else, because a process of
// another pid namespace cannot be signalled. Its exit is read with Child, and is
// there as soon as the pidfd says that the child has ended.
package keeper
