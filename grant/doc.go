// Package grant is the contract between whoever grants mounts to a Pod and the
// agent that makes them: two annotations on the Pod, and nothing else.
//
// The grant annotation holds a mount set. A writer makes it with [Encode]; the
// agent reads it with [Decode]:
//
//	{"hash":"390f038b6f69688e","mounts":[{"allow_exec":true,"kind":"files",
//	 "mode":"rw","source":"home/users/01H-eric","target":"eric","uid":""}]}
//
// The ready annotation is the agent's answer, a [Status]. A writer that waits
// compares its hash with the hash it wrote: an answer to the previous set is no
// answer to this one.
//
//	{"failed":{},"hash":"390f038b6f69688e","mounted":["eric"],"state":"ready"}
//
// Reading is tolerant and never silent. An entry that cannot be used costs no
// other entry its mount, and appears as a [Refusal] with a [Code]. A set that
// cannot be read at all is one refusal under [WholeSet]; what stands then stays.
//
// Writing is canonical: the same mounts give the same bytes, and so the same
// hash, in any language. The form is compact JSON in ASCII, keys sorted, mounts
// sorted by target.
//
// [Kinds] and [Codes] are the tables that documentation, command help, chart
// switches and metrics are made from. The package has no state, uses the
// standard library alone, and is safe for concurrent use.
package grant
