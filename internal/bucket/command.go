package bucket

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/awscreds"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/secret"
)

// Place is where a program will run.
type Place struct {
	// Cache is a folder of its own that it may write to, "" for none.
	Cache string
	// CredentialsURL and Token are for its session.
	CredentialsURL, Token string
}

// Command is what is run. Descriptor 3 is the FUSE device, which is not among Files.
type Command struct {
	// Args[0] is the program's name.
	Args []string
	// Env is all of the environment. It holds the token.
	Env []string
	// Files are descriptors 4 and on. The caller closes them.
	Files []*os.File
}

// SourceError says what is wrong with the source of a grant.
type SourceError struct{ Reason string }

func (e *SourceError) Error() string { return e.Reason }

const (
	// maxKey is the longest key that S3 has.
	maxKey = 1024
	// caPath is the first of Files, as the program sees it.
	caPath = "/proc/self/fd/4"
)

// asked is what a grant and its Secret come to.
type asked struct {
	bucket, prefix   string // prefix: "" or ending in "/"
	region, endpoint string // endpoint: "" for that of AWS
	pathStyle        bool
	readOnly         bool
}

// Command makes the command for a grant and the session of its Secret. Errors:
// *secret.RefusedError where the Secret is wrong, *SourceError where the source is,
// others where the node is in want of something.
func (s Settings) Command(m plan.Mount, session awscreds.Session, at Place) (Command, error) {
	a, err := s.asked(m, session)
	if err != nil {
		return Command{}, err
	}
	c := Command{Args: []string{filepath.Base(s.Program)}, Env: s.environment(a, at)}
	if s.MountS3 {
		c.Args = append(c.Args, s.mountS3(a, at)...)
	} else {
		c.Args = append(c.Args, s.builtIn(a, at)...)
	}
	if len(s.CA) > 0 {
		f, err := sealed("buckets-ca", s.CA)
		if err != nil {
			return Command{}, fmt.Errorf("pass on the certificates for buckets: %w", err)
		}
		c.Files = append(c.Files, f)
	}
	return c, nil
}

func (s Settings) asked(m plan.Mount, session awscreds.Session) (asked, error) {
	if m.Kind() != grant.KindCloudStorage {
		return asked{}, &SourceError{fmt.Sprintf("the kind %q is no bucket", m.Kind())}
	}
	a := asked{readOnly: m.ReadOnly()}
	a.bucket, a.prefix, _ = strings.Cut(m.Source(), "/")
	if a.prefix != "" {
		a.prefix += "/"
	}
	// One byte is for the shortest name of a file.
	if len(a.prefix) >= maxKey {
		return asked{}, &SourceError{fmt.Sprintf("the source's prefix is longer than a key of S3 can be, %d bytes: use a shorter one", maxKey)}
	}
	e, err := s.endpoint(m, session)
	if err != nil {
		return asked{}, err
	}
	if a.region = cmp.Or(session.Region, s.Region); a.region == "" {
		if e.host == "" || e.amazon() {
			return asked{}, refuse("the Secret %q has no %q, and this node has none for it: add that key", m.Identity().Secret, awscreds.KeyRegion)
		}
		a.region = defaultRegion
	}
	if e.host != "" {
		a.endpoint = e.String()
		_, err := netip.ParseAddr(e.host)
		// Before an address nothing can stand.
		a.pathStyle = err == nil || s.PathStyle && !e.amazon()
	}
	return a, nil
}

// endpoint is the Secret's, by the rules for it, or the node's, whose administrator
// chose it; the zero value is that of AWS.
func (s Settings) endpoint(m plan.Mount, session awscreds.Session) (endpoint, error) {
	if session.EndpointURL != "" {
		e, problem := parseEndpoint(session.EndpointURL)
		if problem == "" {
			problem = s.Endpoints.check(e)
		}
		if problem != "" {
			return endpoint{}, refuse("the %q of the Secret %q %s", awscreds.KeyEndpointURL, m.Identity().Secret, problem)
		}
		return e, nil
	}
	if s.EndpointURL == "" {
		return endpoint{}, nil
	}
	e, problem := parseEndpoint(s.EndpointURL)
	if problem != "" {
		return endpoint{}, fmt.Errorf("the endpoint of this node %s", problem)
	}
	return e, nil
}

func refuse(format string, args ...any) error {
	return &secret.RefusedError{Reason: fmt.Sprintf(format, args...)}
}

// environment is all that a program finds. What it lacks, the SDKs look for in files,
// and in the metadata service of the node.
func (s Settings) environment(a asked, at Place) []string {
	env := []string{
		"AWS_CONTAINER_CREDENTIALS_FULL_URI=" + at.CredentialsURL,
		"AWS_CONTAINER_AUTHORIZATION_TOKEN=" + at.Token,
		"AWS_EC2_METADATA_DISABLED=true",
		"AWS_CONFIG_FILE=/dev/null",
		"AWS_SHARED_CREDENTIALS_FILE=/dev/null",
		"AWS_REGION=" + a.region,
	}
	if s.MountS3 && len(s.CA) > 0 {
		// By its flag it would be refused by versions before 1.23 before TLS is.
		env = append(env, "AWS_CA_BUNDLE="+caPath)
	}
	if s.Proxy != "" {
		// Not an argument: there may be a password in it. Nor the names that every library
		// reads: the program drops those.
		env = append(env, "NODE_MOUNTS_S3_PROXY="+s.Proxy)
	}
	return env
}

// A value is written after "=", for it may begin with a dash.

func (s Settings) builtIn(a asked, at Place) []string {
	args := []string{"--fuse-fd=3", "--bucket=" + a.bucket}
	if a.prefix != "" {
		args = append(args, "--prefix="+a.prefix)
	}
	args = append(args, "--region="+a.region)
	if a.endpoint != "" {
		args = append(args, "--endpoint-url="+a.endpoint)
	}
	if a.pathStyle {
		args = append(args, "--path-style")
	}
	if a.readOnly {
		args = append(args, "--read-only")
	}
	args = append(args, "--uid="+strconv.Itoa(s.Owner.UID), "--gid="+strconv.Itoa(s.Owner.GID))
	if at.Cache != "" {
		args = append(args, "--cache-dir="+at.Cache)
		if s.CacheSize > 0 {
			args = append(args, "--cache-size="+strconv.FormatInt(s.CacheSize, 10))
		}
	}
	if len(s.CA) > 0 {
		args = append(args, "--ca-file="+caPath)
	}
	if s.Memory > 0 {
		args = append(args, "--memory="+strconv.FormatInt(s.Memory, 10))
	}
	return args
}

// mountS3 has no --read-only, which versions before 1.24 refuse where a descriptor is
// passed: it is the mount that is read-only.
func (s Settings) mountS3(a asked, at Place) []string {
	args := []string{a.bucket, "/dev/fd/3", "--foreground", "--allow-other", "--region=" + a.region}
	if a.prefix != "" {
		args = append(args, "--prefix="+a.prefix)
	}
	if a.endpoint != "" {
		args = append(args, "--endpoint-url="+a.endpoint)
	}
	if a.pathStyle {
		args = append(args, "--force-path-style")
	}
	if !a.readOnly {
		args = append(args, "--allow-delete", "--allow-overwrite")
	}
	args = append(args, "--uid="+strconv.Itoa(s.Owner.UID), "--gid="+strconv.Itoa(s.Owner.GID))
	if at.Cache != "" {
		args = append(args, "--cache="+at.Cache)
		if s.CacheSize > 0 {
			args = append(args, "--max-cache-size="+strconv.FormatInt(s.CacheSize/mebibyte, 10))
		}
	}
	if s.Memory > 0 {
		args = append(args, "--memory-target="+strconv.FormatInt(s.memoryTarget()/mebibyte, 10))
	}
	return args
}
