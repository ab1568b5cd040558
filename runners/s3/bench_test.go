package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// Sizes of what is measured.
const (
	benchObject = 1 << 30
	benchKeys   = 10_000
)

// BenchmarkBucket measures this filesystem, the SDK alone, and what else is installed
// (rclone mount, s3fs), each against the same server in the same run:
//
//	go test -run '^$' -bench . -benchtime 3x
//
// read is one object of 1 GiB from the beginning to the end, list the names and
// attributes of 10,000 files in one folder that was not looked at before.
func BenchmarkBucket(b *testing.B) {
	s := startServer(b)
	content := pattern(64 << 20)
	f, err := os.Create(filepath.Join(s.dir, "object"))
	if err != nil {
		b.Fatal(err)
	}
	for range benchObject / len(content) {
		if _, err := f.Write(content); err != nil {
			b.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
	for i := range benchKeys {
		s.put(fmt.Sprintf("many/file-%05d", i), []byte("x"))
	}
	b.Run("read/sdk", func(b *testing.B) { benchSDKRead(b, s) })
	b.Run("list/sdk", func(b *testing.B) { benchSDKList(b, s) })
	for _, program := range []struct {
		name  string
		mount func(b *testing.B, s *server) (dir string, pid int, end func())
	}{
		{"node-mounts-s3", benchOurs}, {"rclone", benchRclone}, {"s3fs", benchS3FS},
	} {
		b.Run("read/"+program.name, func(b *testing.B) { benchRead(b, s, program.mount) })
		b.Run("list/"+program.name, func(b *testing.B) { benchList(b, s, program.mount) })
	}
}

func benchClient(s *server) *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: &s.Endpoint, Region: s.Region, UsePathStyle: true,
		HTTPClient: &http.Client{Transport: &http.Transport{}},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: s.Credentials.AccessKeyID, SecretAccessKey: s.Credentials.SecretAccessKey}, nil
		}),
	})
}

func benchSDKRead(b *testing.B, s *server) {
	client := benchClient(s)
	b.SetBytes(benchObject)
	for b.Loop() {
		out, err := client.GetObject(b.Context(), &s3.GetObjectInput{Bucket: aws.String(bucketName), Key: aws.String("object")})
		if err != nil {
			b.Fatal(err)
		}
		n, err := io.CopyBuffer(onlyWriter{}, out.Body, make([]byte, 1<<20))
		out.Body.Close()
		if err != nil || n != benchObject {
			b.Fatal(n, err)
		}
	}
}

func benchSDKList(b *testing.B, s *server) {
	client := benchClient(s)
	for b.Loop() {
		n := 0
		pages := s3.NewListObjectsV2Paginator(client, &s3.ListObjectsV2Input{Bucket: aws.String(bucketName), Prefix: aws.String("many/"), Delimiter: aws.String("/")})
		for pages.HasMorePages() {
			page, err := pages.NextPage(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			n += len(page.Contents)
		}
		if n != benchKeys {
			b.Fatal(n)
		}
	}
}

type mounter func(b *testing.B, s *server) (dir string, pid int, end func())

// benchRead mounts anew each time: no page is in any cache.
func benchRead(b *testing.B, s *server, mount mounter) {
	b.SetBytes(benchObject)
	memory := 0
	for b.Loop() {
		b.StopTimer()
		dir, pid, end := mount(b, s)
		b.StartTimer()
		f, err := os.Open(filepath.Join(dir, "object"))
		if err != nil {
			b.Fatal(err)
		}
		n, err := io.CopyBuffer(onlyWriter{}, onlyReader{f}, make([]byte, 1<<20))
		if err != nil || n != benchObject {
			b.Fatal(n, err)
		}
		f.Close()
		b.StopTimer()
		memory = max(memory, peak(pid))
		end()
		b.StartTimer()
	}
	b.ReportMetric(float64(memory)/(1<<20), "MiB-peak")
}

func benchList(b *testing.B, s *server, mount mounter) {
	memory := 0
	for b.Loop() {
		b.StopTimer()
		dir, pid, end := mount(b, s)
		b.StartTimer()
		out, err := exec.Command("ls", "-l", filepath.Join(dir, "many")).Output()
		if n := strings.Count(string(out), "file-"); err != nil || n != benchKeys {
			b.Fatal(n, err)
		}
		b.StopTimer()
		memory = max(memory, peak(pid))
		end()
		b.StartTimer()
	}
	b.ReportMetric(float64(memory)/(1<<20), "MiB-peak")
}

// Without the methods that would copy in another way.
type (
	onlyWriter struct{}
	onlyReader struct{ from io.Reader }
)

func (onlyWriter) Write(p []byte) (int, error)  { return len(p), nil }
func (r onlyReader) Read(p []byte) (int, error) { return r.from.Read(p) }

// peak is the most memory that a process had, in bytes.
func peak(pid int) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "VmHWM:" {
			kilobytes, _ := strconv.Atoi(fields[1])
			return kilobytes << 10
		}
	}
	return 0
}

func benchOurs(b *testing.B, s *server) (string, int, func()) {
	m := start(b, s, startEndpoint(b, s.Credentials))
	return m.dir, m.command.Process.Pid, func() { _ = m.command.Process.Kill(); <-m.ended }
}

func benchRclone(b *testing.B, s *server) (string, int, func()) {
	return benchProgram(b, "rclone", func(dir string) *exec.Cmd {
		command := exec.Command("rclone", "mount", "--use-server-modtime", "--vfs-cache-mode", "writes", "--cache-dir", b.TempDir(), ":s3:"+bucketName, dir)
		command.Env = []string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + b.TempDir(), "RCLONE_S3_PROVIDER=Other", "RCLONE_S3_ENDPOINT=" + s.Endpoint, "RCLONE_S3_REGION=" + s.Region,
			"RCLONE_S3_ACCESS_KEY_ID=" + s.Credentials.AccessKeyID, "RCLONE_S3_SECRET_ACCESS_KEY=" + s.Credentials.SecretAccessKey,
		}
		return command
	})
}

func benchS3FS(b *testing.B, s *server) (string, int, func()) {
	return benchProgram(b, "s3fs", func(dir string) *exec.Cmd {
		command := exec.Command("s3fs", bucketName, dir, "-f", "-o", "url="+s.Endpoint, "-o", "use_path_request_style", "-o", "complement_stat")
		command.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.TempDir(), "AWSACCESSKEYID=" + s.Credentials.AccessKeyID, "AWSSECRETACCESSKEY=" + s.Credentials.SecretAccessKey}
		return command
	})
}

// benchProgram runs a program that mounts by itself, in the foreground.
func benchProgram(b *testing.B, name string, of func(dir string) *exec.Cmd) (string, int, func()) {
	if _, err := exec.LookPath(name); err != nil {
		b.Skipf("%s is not installed, to be compared with", name)
	}
	dir := b.TempDir()
	before, err := os.Stat(dir)
	if err != nil {
		b.Fatal(err)
	}
	command := of(dir)
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		b.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		if after, err := os.Stat(dir); err == nil && !os.SameFile(before, after) {
			break
		}
		if time.Now().After(deadline) {
			b.Fatalf("%s does not mount", name)
		}
		<-time.After(10 * time.Millisecond)
	}
	return dir, command.Process.Pid, func() {
		_ = exec.Command("umount", dir).Run()
		_ = command.Process.Kill()
		_ = command.Wait()
	}
}
