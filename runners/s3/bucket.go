package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	_ "github.com/rclone/rclone/backend/local" // the cache directory
	_ "github.com/rclone/rclone/backend/s3"    // newRclone asks for it by name
	"github.com/rclone/rclone/fs"
	"github.com/rclone/rclone/fs/config"
	"github.com/rclone/rclone/fs/config/configmap"
	"github.com/rclone/rclone/vfs"
	"github.com/rclone/rclone/vfs/vfscommon"
)

// dirCacheTime is for how long a listing is believed: what others write beside this
// process is seen after that long. After twice as long rclone forgets the folder, which is
// why tests shorten it.
var dirCacheTime = 60 * time.Second

const (
	// answerTimeout bounds a read, and each page of a listing.
	answerTimeout = 10 * time.Second
	// storeTimeout bounds the wait for the answer to what was sent: a server may put a
	// large object together before it answers.
	storeTimeout = 60 * time.Second
)

// bucket is what the filesystem is made of.
type bucket struct {
	vfs    *vfs.VFS
	over   *transport
	client *s3.Client
	name   string
	prefix string
	// encodesKeys says that the server writes keys in the encoding of URLs.
	encodesKeys bool
}

// openBucket asks the server for one key, so that what is wrong is said now and a
// wrong bucket is never an empty folder.
func openBucket(ctx context.Context, o options, b *broker) (*bucket, error) {
	over, err := newTransport(o)
	if err != nil {
		return nil, err
	}
	made := &bucket{over: over, client: newClient(o, b, over), name: o.bucket, prefix: o.prefix}
	answer, err := made.ask(ctx, 3*answerTimeout)
	if err != nil {
		return nil, o.explain(err)
	}
	made.encodesKeys = answer.EncodingType == types.EncodingTypeUrl
	if !made.carries(o.prefix) {
		return nil, &exitError{exitBucketWrong, fmt.Sprintf("the prefix %.64q has a character that this server cannot list", o.prefix)}
	}
	files, err := newRclone(ctx, o, over, made.encodesKeys)
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

func newClient(o options, b *broker, over *transport) *s3.Client {
	settings := s3.Options{
		Region: o.region, UsePathStyle: o.pathStyle, Credentials: b, RetryMaxAttempts: 3,
		HTTPClient:                 over.client(),
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
	}
	if o.endpointURL != "" {
		settings.BaseEndpoint = &o.endpointURL
	}
	return s3.New(settings)
}

func newRclone(ctx context.Context, o options, over *transport, encodesKeys bool) (fs.Fs, error) {
	ci := fs.GetConfig(ctx)
	ci.LogLevel = fs.LogLevelEmergency // report.go says what went wrong
	ci.UseServerModTime = true         // another request for each file otherwise
	ci.NoUnicodeNormalization = true   // two keys are two files, however alike they look
	ci.LowLevelRetries = 2
	ci.BufferSize = 8 * fs.Mebi
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
	files, err := info.NewFs(ctx, "bucket", o.bucket+"/"+standardPath(o.prefix), fs.ConfigMap(info.Prefix, info.Options, "bucket", settings))
	if err != nil {
		return nil, err
	}
	return files, over.under(files)
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

// keys is the bucket as rclone sees it, with folders that last: S3 has none, so an
// object whose key ends in a slash is made for each that is made here.
type keys struct {
	fs.Fs
	bucket *bucket
	late   atomic.Int64 // when a listing was last not answered, in ns since 1970; 0: the last was
}

// latePause is how long nobody asks again after that.
const latePause = 100 * time.Millisecond

// Mkdir makes the folder's own object.
func (k *keys) Mkdir(ctx context.Context, dir string) error {
	if dir == "" {
		return nil
	}
	key := k.bucket.key(dir) + "/"
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	_, err := k.bucket.client.PutObject(ctx, &s3.PutObjectInput{Bucket: &k.bucket.name, Key: &key, Body: http.NoBody, ContentLength: aws.Int64(0)})
	return err
}

// Rmdir removes the folder's own object, if there is one.
func (k *keys) Rmdir(ctx context.Context, dir string) error {
	key := k.bucket.key(dir) + "/"
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	_, err := k.bucket.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &k.bucket.name, Key: &key})
	return err
}

// List fails when a page of the listing does not come in time, and when there is no
// bucket any more: rclone takes that for an empty folder.
func (k *keys) List(ctx context.Context, dir string) (fs.DirEntries, error) {
	if k.silent(ctx) {
		return nil, errLate
	}
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
	if late.Load() || errors.Is(err, errLate) {
		k.late.Store(time.Now().UnixNano())
		return nil, errLate
	}
	if errors.Is(err, fs.ErrorDirNotFound) {
		_, err = k.bucket.ask(ctx, 3*answerTimeout)
	}
	return entries, err
}

// silent says whether the server that was late at the last listing still is. Those who
// wait for the folder come one after the other: each would wait as long as the first.
func (k *keys) silent(ctx context.Context) bool {
	late := k.late.Load()
	if late == 0 {
		return false
	}
	if time.Since(time.Unix(0, late)) < latePause {
		return true
	}
	if _, err := k.bucket.ask(ctx, healthTimeout); err != nil {
		k.late.Store(time.Now().UnixNano())
		return true
	}
	k.late.Store(0)
	return false
}

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
