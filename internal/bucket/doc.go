// Package bucket says how the filesystem of a bucket is run: by which arguments, in
// which environment, with which descriptors. It starts nothing.
//
// There are two programs, the one of this project (runners/s3), and Mountpoint for
// Amazon S3, mount-s3, from version 1.24.0. Both get the FUSE device as descriptor 3
// and are told nothing of the credential but where it is served and the token for
// that (package awscreds). Their environment is made from nothing.
//
// # Endpoints
//
// A Secret may name its endpoint, and whoever writes Secrets is a tenant. The program
// runs in the network of its container, not in the tenant's: it must be no way to
// what is reached from there alone. So an endpoint of a Secret is https, and names no
// loopback, link-local, metadata or API server's address, see [Endpoints].
//
// What is looked at is the text. The program resolves a name itself, again for each
// connection, and a name may lead anywhere: what holds there is the NetworkPolicy of
// its Pod, and that what does not speak TLS with a certificate for this name is not
// talked to. An answer is shown to the tenant only as far as it is one of S3.
package bucket
