package fleet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
)

// Containers runs programs in the containers of a cluster.
type Containers struct {
	Client kubernetes.Interface
	Config *rest.Config
}

// Place is a container.
type Place struct{ Namespace, Pod, Container string }

// Streams are a program's. Those that are nil are not connected.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Exec runs a program and returns when it has ended, by a WebSocket, and by SPDY
// where the server or something on the way to it knows no WebSockets (before
// Kubernetes 1.31). A status that is not zero is an exec.CodeExitError of client-go.
// ctx alone bounds it.
func (c Containers) Exec(ctx context.Context, in Place, argv []string, s Streams) error {
	request := c.Client.CoreV1().RESTClient().Post().Namespace(in.Namespace).Resource("pods").Name(in.Pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: in.Container, Command: argv,
			Stdin: s.In != nil, Stdout: s.Out != nil, Stderr: s.Err != nil,
		}, scheme.ParameterCodec)
	config := rest.CopyConfig(c.Config)
	config.Timeout = 0 // this one would break the connection off
	socket, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, request.URL().String())
	if err != nil {
		return err
	}
	spdy, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, request.URL())
	if err != nil {
		return err
	}
	executor, err := remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return err
	}
	// Else a connection that ends at its bound would be logged, on the terminal of
	// whoever asks.
	ctx = klog.NewContext(ctx, logr.Discard())
	return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: s.In, Stdout: s.Out, Stderr: s.Err})
}

// ErrTooMuch says that a program writes more than is read from it.
var ErrTooMuch = errors.New("the output is too large")

// Bounded keeps what is written, up to Most bytes; beyond it Write fails with
// ErrTooMuch, or drops.
type Bounded struct {
	bytes.Buffer
	Most int
	Drop bool
}

// Write implements io.Writer.
func (b *Bounded) Write(p []byte) (int, error) {
	room := b.Most - b.Len()
	if len(p) <= room {
		return b.Buffer.Write(p)
	}
	if !b.Drop {
		return 0, ErrTooMuch
	}
	b.Buffer.Write(p[:max(room, 0)])
	return len(p), nil
}
