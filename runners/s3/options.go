package main

import (
	"errors"
	"flag"
	"fmt"
	"net/url"
	"strings"
)

type options struct {
	fuseFD              int
	bucket, prefix      string // prefix is "" or ends in "/"
	region, endpointURL string
	pathStyle, readOnly bool
	uid, gid, umask     uint
	cacheDir            string
	cacheSize, memory   int64
	caFile              string
	proxy               *url.URL
}

const usage = `node-mounts-s3 --fuse-fd 3 --bucket BUCKET --region REGION --uid UID --gid GID [flags]

Serves a bucket on a FUSE mount whose /dev/fuse descriptor it was given.
Credentials come from AWS_CONTAINER_CREDENTIALS_FULL_URI, with the token in
AWS_CONTAINER_AUTHORIZATION_TOKEN. NODE_MOUNTS_S3_PROXY is the URL of a proxy
for all requests to the server.

`

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("node-mounts-s3", flag.ContinueOnError)
	var help strings.Builder
	flags.SetOutput(&help)
	flags.Usage = func() { help.WriteString(usage); flags.PrintDefaults() }
	flags.IntVar(&o.fuseFD, "fuse-fd", 0, "the `descriptor` of /dev/fuse, of a mount that has no server yet")
	flags.StringVar(&o.bucket, "bucket", "", "the bucket's `name`")
	flags.StringVar(&o.prefix, "prefix", "", "serve the keys that begin with this `prefix` and a slash")
	flags.StringVar(&o.region, "region", "", "the bucket's `region`")
	flags.StringVar(&o.endpointURL, "endpoint-url", "", "the `URL` of an S3 server other than AWS")
	flags.BoolVar(&o.pathStyle, "path-style", false, "ask ENDPOINT/BUCKET, not BUCKET.ENDPOINT")
	flags.BoolVar(&o.readOnly, "read-only", false, "refuse every change with EROFS")
	flags.UintVar(&o.uid, "uid", 0, "the owner of everything, a `number`")
	flags.UintVar(&o.gid, "gid", 0, "the group of everything, a `number`")
	flags.UintVar(&o.umask, "umask", 0o002, "what is taken from 0666 for files and 0777 for folders")
	flags.StringVar(&o.cacheDir, "cache-dir", "", "the `folder` in which written files are collected until they are closed; needed unless --read-only")
	flags.Int64Var(&o.cacheSize, "cache-size", 1<<30, "`bytes` that the folder may take, what is open for writing included")
	flags.StringVar(&o.caFile, "ca-file", "", "trust the certificates in this `file` (PEM) beside the system's")
	flags.Int64Var(&o.memory, "memory", 0, "`bytes` of memory to stay below; 0 is no limit")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return o, &exitError{exitUsage, "usage:\n" + help.String()}
		}
		return o, &exitError{exitUsage, err.Error()}
	}
	if err := o.check(flags.Args()); err != nil {
		return o, &exitError{exitUsage, err.Error()}
	}
	if o.prefix = strings.Trim(o.prefix, "/"); o.prefix == "" {
		return o, nil
	}
	err := checkPrefix(o.prefix)
	o.prefix += "/"
	return o, err
}

func (o options) check(rest []string) error {
	switch {
	case len(rest) != 0:
		return fmt.Errorf("%q is no flag", rest[0])
	case o.fuseFD <= 2:
		return errors.New("--fuse-fd is missing: the number of the descriptor of /dev/fuse, 3 or more")
	case o.bucket == "" || strings.Contains(o.bucket, "/"):
		return errors.New("--bucket is missing, or has a slash: what follows it belongs into --prefix")
	case o.region == "":
		return errors.New("--region is missing: us-east-1 is what most servers other than AWS take")
	case o.uid == 0 || o.gid == 0:
		return errors.New("--uid or --gid is missing, or 0: files in a sandbox do not belong to root")
	case o.umask > 0o777:
		return errors.New("--umask is more than 0777")
	case o.cacheDir == "" && !o.readOnly:
		return errors.New("--cache-dir is missing: written files are collected there; or say --read-only")
	case o.cacheSize <= 0 || o.memory < 0:
		return errors.New("--cache-size is not more than 0, or --memory is negative")
	}
	if o.endpointURL != "" {
		u, err := url.Parse(o.endpointURL)
		if err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http" {
			return errors.New("--endpoint-url is no http or https URL without user")
		}
	}
	return nil
}

// parseProxy never repeats what it was given: there may be a password in it.
func parseProxy(text string) (*url.URL, error) {
	if text == "" {
		return nil, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, &exitError{exitUsage, "NODE_MOUNTS_S3_PROXY is no http or https URL"}
	}
	return u, nil
}
