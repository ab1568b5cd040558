package bucket

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/datalayer/node-mounts/internal/awscreds"
	"github.com/datalayer/node-mounts/internal/beneath"
)

// Settings are those of a node.
type Settings struct {
	// Program is the file that is run, and MountS3 says that it is mount-s3 and not
	// the program of this project.
	Program string
	MountS3 bool

	// Region and EndpointURL are for Secrets that have none. Without an endpoint it is
	// that of AWS in the region.
	Region, EndpointURL string
	// PathStyle puts the bucket into the path of a URL and not before the host's
	// name, which most servers but those of AWS need. It changes nothing there.
	PathStyle bool

	// Owner is who files belong to in the Pod, never root.
	Owner beneath.Owner
	// CA are certificates in PEM that servers are trusted by beside the system's: for
	// mount-s3 instead of them. Empty: the system's.
	CA []byte
	// Proxy is the URL of a proxy for all requests to buckets, "" for none. It looks
	// names up then, and decides which addresses may be reached. mount-s3 uses none.
	Proxy string

	// CacheSize is how many bytes of the cache's folder may be used, and Memory how
	// many bytes of memory; 0 is no limit of ours.
	CacheSize, Memory int64

	// Endpoints are the rules for what a Secret names.
	Endpoints Endpoints
}

const (
	mebibyte = 1 << 20
	// leastTarget is the smallest that mount-s3 takes.
	leastTarget = 512 * mebibyte
	// defaultRegion is what S3's servers elsewhere take where they know no regions.
	defaultRegion = "us-east-1"
	// mountS3Lifetime is 10 seconds, by which its runtime comes back early, and one
	// minute.
	mountS3Lifetime = 70 * time.Second
)

// Check says what is wrong with the settings, for whoever made them.
func (s Settings) Check() error {
	switch {
	case s.Program == "":
		return errors.New("there is no program for buckets")
	case s.Owner.UID <= 0 || s.Owner.GID <= 0:
		return fmt.Errorf("files of buckets cannot belong to %d:%d: choose another owner than root", s.Owner.UID, s.Owner.GID)
	case s.CacheSize < 0 || s.CacheSize > 0 && s.CacheSize < mebibyte:
		return errors.New("the cache of buckets is smaller than 1 MiB")
	case s.Memory < 0:
		return errors.New("the memory of buckets is negative")
	case s.MountS3 && s.Memory > 0 && s.memoryTarget() < leastTarget:
		return fmt.Errorf("mount-s3 needs %d MiB of memory: give it more, or no limit", (leastTarget+leastTarget/3)/mebibyte+1)
	case strings.HasPrefix(s.Region, "-") || len(s.Region) > 64 || !within(s.Region, "._-"):
		return fmt.Errorf("the region %.80q is no name of one", s.Region)
	}
	if s.EndpointURL != "" {
		if _, problem := parseEndpoint(s.EndpointURL); problem != "" {
			return errors.New("the endpoint of buckets " + problem)
		}
	}
	if s.Proxy != "" {
		// What is wrong with it is not repeated: there may be a password in it.
		if u, err := url.Parse(s.Proxy); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return errors.New("the proxy for buckets is no URL such as http://proxy.example.org:3128")
		}
		if s.MountS3 {
			return errors.New("mount-s3 uses no proxy: leave it out, or use the built-in program")
		}
	}
	return checkCA(s.CA)
}

func checkCA(text []byte) error {
	if len(text) == 0 {
		return nil
	}
	found := false
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("the certificates for buckets have a %q among them", block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("the certificates for buckets: %w", err)
		}
		found = true
	}
	if !found {
		return errors.New("the certificates for buckets have none in PEM among them")
	}
	return nil
}

// memoryTarget is what mount-s3 is told to stay within. It is no limit to it, so that
// what ends a process that takes more lies above.
func (s Settings) memoryTarget() int64 { return s.Memory / 4 * 3 }

// Lifetime is for how long credentials are to be served, so that the program comes
// back for new ones every minute.
func (s Settings) Lifetime() time.Duration {
	if s.MountS3 {
		return mountS3Lifetime
	}
	return awscreds.DefaultLifetime
}
