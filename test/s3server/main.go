// Command s3server serves S3 over a folder on this machine, for tests: a real
// implementation of the protocol, sessions that expire after seconds, counts of
// what was asked, and faults on request.
//
// When it is ready it prints one line of JSON, [ready], and it serves until its
// standard input ends, so that it cannot outlive the test that started it. A
// bucket is a folder beneath --dir, an object is a file in it: a test may make
// both by writing files. README.md lists what the control port answers.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
	"github.com/versity/versitygw/s3api"
)

// ready is what a test needs to know of the server.
type ready struct {
	// Endpoint is the URL of S3, path-style.
	Endpoint string `json:"endpoint"`
	// Control is the URL of the control port.
	Control string `json:"control"`
	Region  string `json:"region"`
	// CA is the certificate that Endpoint is to be verified by, PEM; empty without TLS.
	CA string `json:"ca,omitempty"`
	// Credentials never expire and may do everything.
	Credentials credentials `json:"credentials"`
}

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string, stdin io.Reader, stdout io.Writer) error {
	flags := flag.NewFlagSet("s3server", flag.ContinueOnError)
	dir := flags.String("dir", "", "the folder whose folders are the buckets (its filesystem must have user.* attributes)")
	listen := flags.String("listen", "127.0.0.1:0", "where S3 listens")
	control := flags.String("control", "127.0.0.1:0", "where the control port listens")
	region := flags.String("region", "us-east-1", "the region of every bucket")
	secure := flags.Bool("tls", false, "serve TLS with a certificate of the server's own making")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *dir == "" {
		return errors.New("--dir is missing")
	}
	private, err := os.MkdirTemp("", "s3server-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(private) }()

	front, err := newFront(*listen, filepath.Join(private, "s3"))
	if err != nil {
		return err
	}
	controls, err := net.Listen("tcp", *control)
	if err != nil {
		return err
	}
	// One session for the whole life of the server is its permanent key.
	sessions := newSessions()
	permanent := sessions.add(scope{}, 0)
	what := ready{
		Endpoint: "http://" + front.addr.String(), Control: "http://" + controls.Addr().String(),
		Region: *region, Credentials: permanent,
	}
	config := &embedgw.Config{
		RootUserAccess: "root-" + random(8), RootUserSecret: random(20), IAMService: sessions,
		Region: *region, Ports: []string{front.backend},
		MaxConnections: 4096, MaxRequests: 2048, MultipartMaxParts: 10_000, KeepAlive: true, Quiet: true,
	}
	if *secure {
		host, _, err := net.SplitHostPort(front.addr.String())
		if err != nil {
			return err
		}
		files, err := newCertificate(private, host)
		if err != nil {
			return err
		}
		config.CertFile, config.KeyFile = files.certificate, files.key
		what.Endpoint, what.CA = "https://"+front.addr.String(), files.pem
	}
	backend, err := posix.New(*dir, meta.XattrMeta{}, posix.PosixOpts{NewDirPerm: 0o755, Concurrency: 2048, CopyObjectThreshold: 5 << 30})
	if err != nil {
		return err
	}
	faults := newFaults(front)
	gate := &gate{faults: faults, sessions: sessions, counts: map[string]int{}}
	listening := make(chan struct{})
	config.S3Options = []s3api.Option{
		s3api.WithMiddleware("/", gate.serve),
		s3api.WithOnListen(func() { close(listening) }),
	}

	ended := make(chan error, 3)
	go func() { ended <- embedgw.RunVersityGW(context.Background(), backend, config) }()
	go func() {
		server := &http.Server{Handler: controlHandler(sessions, faults, gate), ReadHeaderTimeout: 10 * time.Second}
		ended <- server.Serve(controls)
	}()
	select {
	case <-listening:
	case err := <-ended:
		return err
	}
	front.open()
	if err := json.NewEncoder(stdout).Encode(what); err != nil {
		return err
	}
	go func() {
		_, err := io.Copy(io.Discard, stdin)
		ended <- err
	}()
	return <-ended
}
