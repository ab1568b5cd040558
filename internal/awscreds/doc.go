// Package awscreds serves the credentials of buckets to the processes that read
// them, by the protocol of AWS for containers.
//
// A process is started with AWS_CONTAINER_CREDENTIALS_FULL_URI, an address of
// loopback that ends in [Path], and AWS_CONTAINER_AUTHORIZATION_TOKEN, a token of
// its own. Its SDK asks with GET and the token, as it is, in Authorization, and
// gets a JSON object with AccessKeyId, SecretAccessKey, Token and Expiration. What
// is served is made of the Secret that the grant names, so that a refreshed Secret
// refreshes a mount that stands, and a credential is in no argument, environment or
// file.
//
// # Answers
//
//	200  credentials
//	400  the Secret may not be used (code SecretRefused), or its session has
//	     expired (code SessionExpired)
//	403  no token, or one that belongs to no process; an empty body
//	404  another path; an empty body
//	405  another method than GET; an empty body
//	503  the Secret could not be read, and no earlier session is left (code
//	     SecretUnavailable)
//
// Bodies of 400 and 503 are JSON with code and message, which SDKs repeat in their
// errors. A status below 500 is one that SDKs give up at, and tell whoever reads the
// bucket; at 503 they try again.
//
// # When a change takes effect
//
// The Expiration that is served is never further away than [Server.Lifetime], also
// where the Secret says more or nothing. An SDK comes back before it: that for Go 5
// minutes before, and from then on for each request; the runtime that Mountpoint for
// Amazon S3 is built on 10 seconds before. By [DefaultLifetime], 6 minutes, a rotated
// Secret takes effect in the former after a minute and the age of the copy here,
// which is 5 seconds at most. In a session's last minute, and while a Secret is
// refused, the Secret is read again for each question, but at most once a second.
// A session that S3 has been shown lives on in S3 for as long as its issuer said,
// whatever happens to the Secret.
//
// While the API does not answer, the last session is served until it expires. While
// nobody serves at all, an SDK waits at the listener with the first request after it
// wanted to come back: whoever holds the listener decides how long an agent may be
// away, and a longer Lifetime buys time for it with a later change.
package awscreds
