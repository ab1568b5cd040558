package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	_ "github.com/rclone/rclone/backend/local" // the cache directory
	_ "github.com/rclone/rclone/backend/s3"    // newRclone asks for it by name
	"github.com/rclone/rclone/fs"
	"github.com/rclone/rclone/fs/config"
	"github.com/rclone/rclone/fs/config/configmap"
	"github.com/rclone/rclone/vfs"
	"github.com/rclone/rclone/vfs/vfscommon"
)

const (
	// dirCacheTime is for how long a listing is believed: what others write beside this
	// process is seen after that long.
	dirCacheTime = 60 * time.Second
	// answerTimeout bounds a read, and each page of a listing.
	answerTimeout = 10 * time.Second
	// storeTimeout bounds the wait for the answer to what was sent: a server may put a
	// large object together before it answers.
	storeTimeout = 60 * time.Second
)

// bucket is what the filesystem is made of.
type bucket struct {
	vfs    *vfs.VFS
	client *s3.Client
	name   string
	prefix string
	// encodesKeys says that the server writes keys in the encoding of URLs.
	encodesKeys bool
}

// openBucket asks the server for one key, so that what is wrong is said now and a
// wrong bucket is never an empty folder.
func openBucket(ctx context.Context, o options, b *broker) (*bucket, error) {
	client, err := newClient(o, b)
	if err != nil {
		return nil, err
	}
	made := &bucket{client: client, name: o.bucket, prefix: o.prefix}
	answer, err := made.ask(ctx, 3*answerTimeout)
	if err != nil {
		return nil, o.explain(err)
	}
	made.encodesKeys = answer.EncodingType == types.EncodingTypeUrl
	if !made.carries(o.prefix) {
		return nil, &exitError{exitBucketWrong, fmt.Sprintf("the prefix %.64q has a character that this server cannot list", o.prefix)}
	}
	files, err := newRclone(ctx, o, made.encodesKeys)
	if err != nil {
		return nil, err
	}
	opt := vfscommon.Opt
	opt.NoChecksum, opt.ReadOnly = true, o.readOnly
	opt.DirCacheTime, opt.PollInterval = fs.Duration(dirCacheTime), 0
	opt.UID, opt.GID, opt.Umask = uint32(o.uid), uint32(o.gid), vfscommon.FileMode(o.umask)
	opt.WriteBack, opt.HandleCaching = 0, 0
	if !o.readOnly {
		opt.CacheMode = vfscommon.CacheModeWrites
		opt.CacheMaxSize = fs.SizeSuffix(o.cacheSize)
	}
	made.vfs = vfs.New(ctx, &keys{Fs: files, bucket: made}, &opt)
	if made.vfs.Opt.CacheMode != opt.CacheMode {
		return nil, fmt.Errorf("the folder of --cache-dir, %s, cannot be written to by user %d", o.cacheDir, os.Getuid())
	}
	return made, nil
}

func newClient(o options, b *broker) (*s3.Client, error) {
	roots := (*x509.CertPool)(nil)
	if o.caFile != "" {
		pem, err := os.ReadFile(o.caFile)
		if err != nil {
			return nil, fmt.Errorf("the file of --ca-file cannot be read: %w", err)
		}
		if roots = x509.NewCertPool(); !roots.AppendCertsFromPEM(pem) {
			return nil, errors.New("the file of --ca-file has no certificate in it")
		}
	}
	transport := &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout:   5 * time.Second,
		ResponseHeaderTimeout: answerTimeout,
		IdleConnTimeout:       time.Minute,
		ForceAttemptHTTP2:     true,
		TLSClientConfig:       &tls.Config{RootCAs: roots},
	}
	settings := s3.Options{
		Region: o.region, UsePathStyle: o.pathStyle, Credentials: b, RetryMaxAttempts: 3,
		HTTPClient:                 &http.Client{Transport: transport},
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
	}
	if o.endpointURL != "" {
		settings.BaseEndpoint = &o.endpointURL
	}
	return s3.New(settings), nil
}

func newRclone(ctx context.Context, o options, encodesKeys bool) (fs.Fs, error) {
	ci := fs.GetConfig(ctx)
	ci.LogLevel = fs.LogLevelEmergency // report.go says what went wrong
	ci.UseServerModTime = true         // another request for each file otherwise
	ci.NoUnicodeNormalization = true   // two keys are two files, however alike they look
	ci.LowLevelRetries = 2
	ci.ConnectTimeout = fs.Duration(5 * time.Second)
	ci.Timeout = fs.Duration(storeTimeout)
	ci.BufferSize = 8 * fs.Mebi
	if o.caFile != "" {
		ci.CaCert = []string{o.caFile}
	}
	if err := config.SetConfigPath(""); err != nil {
		return nil, err
	}
	if o.cacheDir != "" {
		if err := config.SetCacheDir(o.cacheDir); err != nil {
			return nil, err
		}
	}
	info, err := fs.Find("s3")
	if err != nil {
		return nil, err
	}
	settings := configmap.Simple{
		"provider": "AWS", "env_auth": "true", "region": o.region, "no_check_bucket": "true", "encoding": "Raw", "list_url_encode": fmt.Sprint(encodesKeys),
		"force_path_style": fmt.Sprint(o.pathStyle), "disable_checksum": "true",
	}
	if o.endpointURL != "" {
		settings["provider"], settings["endpoint"] = "Other", o.endpointURL
		settings["list_version"] = "2"
	}
	// With the slash it is a folder even where an object has its name.
	return info.NewFs(ctx, "bucket", o.bucket+"/"+standardPath(o.prefix), fs.ConfigMap(info.Prefix, info.Options, "bucket", settings))
}

// ask lists one key.
func (b *bucket) ask(ctx context.Context, limit time.Duration) (*s3.ListObjectsV2Output, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return b.client.ListObjectsV2(ctx, b.listing(b.prefix, 1))
}

// listing asks for keys in the encoding of URLs: XML has no way to write some of them,
// nor the prefix that an answer repeats.
func (b *bucket) listing(prefix string, keys int32) *s3.ListObjectsV2Input {
	return &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: &prefix, MaxKeys: &keys, EncodingType: types.EncodingTypeUrl}
}

var expecting = regexp.MustCompile(`expecting ['"]([a-z0-9-]+)['"]`)

// explain turns the server's answer into a status and a sentence.
func (o options) explain(err error) error {
	where := "AWS in " + o.region
	if o.endpointURL != "" {
		where = o.endpointURL
	}
	if refused := (*refusedError)(nil); errors.As(err, &refused) {
		return &exitError{exitCredentialRefused, fmt.Sprintf("there is no credential for the bucket %s: %v", o.bucket, refused)}
	}
	region := ""
	var response *smithyhttp.ResponseError
	if errors.As(err, &response) && response.Response != nil {
		region = response.Response.Header.Get("X-Amz-Bucket-Region")
	}
	code, message := "", ""
	var api smithy.APIError
	if errors.As(err, &api) {
		code, message = api.ErrorCode(), api.ErrorMessage()
		if m := expecting.FindStringSubmatch(message); m != nil {
			region = m[1]
		}
	}
	switch {
	case region != "" && region != o.region:
		return &exitError{exitBucketWrong, fmt.Sprintf("the bucket %s is in region %s, not in %s: set region to %s", o.bucket, region, o.region, region)}
	case code == "NoSuchBucket":
		return &exitError{exitBucketWrong, fmt.Sprintf("%s has no bucket %s", where, o.bucket)}
	case code == "InvalidBucketName":
		return &exitError{exitBucketWrong, fmt.Sprintf("%s is no name of a bucket", o.bucket)}
	case code == "PermanentRedirect":
		return &exitError{exitBucketWrong, fmt.Sprintf("the bucket %s is not in region %s", o.bucket, o.region)}
	case code == "ExpiredToken":
		return &exitError{exitCredentialRefused, fmt.Sprintf("the credential for the bucket %s has expired", o.bucket)}
	case response != nil && (response.HTTPStatusCode() == http.StatusForbidden || response.HTTPStatusCode() == http.StatusUnauthorized), code == "InvalidToken":
		return &exitError{exitCredentialRefused, fmt.Sprintf("%s refuses the credential for the bucket %s (%s)", where, o.bucket, code)}
	case code != "":
		return &exitError{exitFailed, fmt.Sprintf("%s answered %s: %s", where, code, message)}
	}
	return &exitError{exitFailed, fmt.Sprintf("%s cannot be asked: %v", where, innermost(err))}
}

// innermost is the error without the layers that name the request.
func innermost(err error) error {
	for {
		if api, ok := err.(smithy.APIError); ok { //nolint:errorlint // each layer is looked at
			return fmt.Errorf("%s: %s", api.ErrorCode(), api.ErrorMessage())
		}
		if _, ok := err.(*net.OpError); ok { //nolint:errorlint // each layer is looked at
			return err
		}
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

// keys is the bucket as rclone sees it, with folders that last: S3 has none, so an
// object whose key ends in a slash is made for each that is made here.
type keys struct {
	fs.Fs
	bucket *bucket
}

// Mkdir makes the folder's own object.
func (k *keys) Mkdir(ctx context.Context, dir string) error {
	if dir == "" {
		return nil
	}
	key := k.bucket.key(dir) + "/"
	_, err := k.bucket.client.PutObject(ctx, &s3.PutObjectInput{Bucket: &k.bucket.name, Key: &key, Body: http.NoBody, ContentLength: aws.Int64(0)})
	return err
}

// Rmdir removes the folder's own object, if there is one.
func (k *keys) Rmdir(ctx context.Context, dir string) error {
	key := k.bucket.key(dir) + "/"
	_, err := k.bucket.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &k.bucket.name, Key: &key})
	return err
}

// List fails when a page of the listing does not come in time, and when there is no
// bucket any more: rclone takes that for an empty folder.
func (k *keys) List(ctx context.Context, dir string) (fs.DirEntries, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var late atomic.Bool
	timer := time.AfterFunc(answerTimeout, func() { late.Store(true); cancel() })
	defer timer.Stop()
	var entries fs.DirEntries
	err := k.Fs.Features().ListP(ctx, dir, func(page fs.DirEntries) error {
		timer.Reset(answerTimeout)
		entries = append(entries, page...)
		return nil
	})
	if late.Load() {
		return nil, errLate
	}
	if errors.Is(err, fs.ErrorDirNotFound) {
		_, err = k.bucket.ask(ctx, 3*answerTimeout)
	}
	return entries, err
}

var errLate = errors.New("the server does not answer")

// Root is where rclone's cache keeps the files, in the cache directory: there is one
// prefix, and it may be longer than a path of the system.
func (*keys) Root() string { return "" }

// key is the object's key of rclone's path of a file.
func (b *bucket) key(name string) string { return b.prefix + keyPath(name) }

// moveFolders makes at the new place the folders' own objects of the old one, and
// removes those. Everything else has been moved.
func (b *bucket) moveFolders(ctx context.Context, from, to string) error {
	from, to = b.key(from)+"/", b.key(to)+"/"
	pages := s3.NewListObjectsV2Paginator(b.client, b.listing(from, 1000))
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, object := range page.Contents {
			old := aws.ToString(object.Key)
			if page.EncodingType == types.EncodingTypeUrl {
				if old, err = url.QueryUnescape(old); err != nil {
					return err
				}
			}
			if !strings.HasSuffix(old, "/") {
				continue
			}
			key := to + strings.TrimPrefix(old, from)
			if _, err := b.client.PutObject(ctx, &s3.PutObjectInput{Bucket: &b.name, Key: &key, Body: http.NoBody, ContentLength: aws.Int64(0)}); err != nil {
				return err
			}
			if _, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.name, Key: &old}); err != nil {
				return err
			}
		}
	}
	return nil
}
