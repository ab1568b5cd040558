package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/datalayer/node-mounts/internal/nodeview"
)

const (
	// maxDocument bounds what one agent may send: 20,000 mounts of a long source.
	maxDocument = 64 << 20
	// maxComplaint bounds what is kept of its errors.
	maxComplaint = 4 << 10
)

// ErrForbidden says that who asks may not run commands in the agents' Pods, which
// needs create on pods/exec there.
var ErrForbidden = errors.New("you may not run commands in the agents' Pods (create on pods/exec)")

// errTooMuch says that a command writes more than it may.
var errTooMuch = errors.New("its answer is too large")

// command is what is run in the agent's container. It is the agent's own program: an
// image has no other that is certain to be there.
func command() []string { return []string{"node-mounts-agent", "gateway"} }

// Ask implements Agents.
func (c *Cluster) Ask(ctx context.Context, a Agent) (nodeview.Node, error) {
	out := &bounded{most: maxDocument}
	complaint := &bounded{most: maxComplaint, drop: true}
	if err := c.exec(ctx, a, out, complaint); err != nil {
		return nodeview.Node{}, explained(err, complaint.String())
	}
	var view nodeview.Node
	if err := json.Unmarshal(out.Bytes(), &view); err != nil {
		return nodeview.Node{}, fmt.Errorf("the agent's answer cannot be read: %w", err)
	}
	return view, nil
}

// exec runs the command by a WebSocket, and by SPDY where the server or something on
// the way to it knows no WebSockets (before Kubernetes 1.31).
func (c *Cluster) exec(ctx context.Context, a Agent, out, complaint io.Writer) error {
	request := c.Client.CoreV1().RESTClient().Post().Namespace(a.Namespace).Resource("pods").Name(a.Pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: Container, Command: command(), Stdout: true, Stderr: true}, scheme.ParameterCodec)
	config := rest.CopyConfig(c.Config)
	config.Timeout = 0 // ctx has the bound; this one would break the connection off
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
	return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out, Stderr: complaint})
}

// explained adds what the command complained of: its error, and not the hint.
func explained(err error, complaint string) error {
	// The refusal of an upgrade has lost its type on the way.
	if strings.Contains(err.Error(), " is forbidden: ") {
		return fmt.Errorf("%w: %w", ErrForbidden, err)
	}
	line, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(complaint), "error: "), "\n")
	if line == "" {
		return fmt.Errorf("run a command in the agent's container: %w", err)
	}
	return fmt.Errorf("ask the agent in its container: %s (%w)", line, err)
}

// bounded keeps what is written, up to a bound; beyond it Write fails, or drops.
type bounded struct {
	bytes.Buffer
	most int
	drop bool
}

func (b *bounded) Write(p []byte) (int, error) {
	room := b.most - b.Len()
	if len(p) <= room {
		return b.Buffer.Write(p)
	}
	if !b.drop {
		return 0, errTooMuch
	}
	b.Buffer.Write(p[:max(room, 0)])
	return len(p), nil
}
