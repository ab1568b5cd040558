package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/datalayer/node-mounts/internal/verify"
)

// defaultProbeTimeout is for one step: an image may have to be fetched.
const defaultProbeTimeout = 2 * time.Minute

// probing is --probe and what belongs to it.
type probing struct {
	on    bool
	nodes []string
	image string
	bound time.Duration
}

func (p *probing) bind(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&p.on, "probe", false, "prove each node: make a Pod there, grant it a folder, use it, and take all away again")
	f.StringSliceVar(&p.nodes, "node", nil, "probe these nodes alone")
	f.StringVar(&p.image, "probe-image", "", "image of the probe's Pod, with sh, cat and ls; without it the agent's own")
	f.DurationVar(&p.bound, "probe-timeout", defaultProbeTimeout, "how long one step of the probe may take")
}

func (p *probing) check() error {
	switch {
	case !p.on && (len(p.nodes) > 0 || p.image != ""):
		return usageError{errors.New("--node and --probe-image go with --probe")}
	case p.bound <= 0:
		return usageError{fmt.Errorf("--probe-timeout %s is no time", p.bound)}
	}
	return nil
}

// run probes the nodes. An interrupted probe has put away what it made, and its
// results are told.
func (p *probing) run(ctx context.Context, errOut io.Writer, c verify.Cluster, cfg *rest.Config, f verify.Facts) ([]verify.Result, error) {
	probe := verify.ProbeOf(f)
	probe.API, probe.Exec, probe.Bound = c.API, containers{c.API, cfg}, p.bound
	if p.image != "" {
		probe.Image, probe.PullPolicy = p.image, ""
	}
	nodes := verify.ProbeNodes(f)
	if len(p.nodes) > 0 {
		nodes = slices.Compact(slices.Sorted(slices.Values(p.nodes)))
	}
	switch {
	case len(nodes) == 0:
		return nil, hinted{errors.New("there is no node to probe: no agent was found"), "--node names one"}
	case probe.Image == "":
		return nil, hinted{errors.New("there is no image for the probe's Pod: no agent was found"), "--probe-image names one"}
	}
	fmt.Fprintf(errOut, "Probing %s in namespace %s.\n", strings.Join(nodes, ", "), probe.Namespace)
	results := probe.Run(ctx, nodes)
	return results, ctx.Err()
}

// containers runs commands in containers.
type containers struct {
	api    kubernetes.Interface
	config *rest.Config
}

// maxOutput bounds what is kept of a command's output: a mount table is the longest.
const maxOutput = 8 << 20

// Run implements verify.Executor. It asks by a WebSocket, and by SPDY where something
// on the way knows none.
func (c containers) Run(ctx context.Context, namespace, pod, container string, command ...string) (string, error) {
	request := c.api.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	config := rest.CopyConfig(c.config)
	config.Timeout = 0 // ctx has the bound
	socket, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, request.URL().String())
	if err != nil {
		return "", err
	}
	spdy, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, request.URL())
	if err != nil {
		return "", err
	}
	executor, err := remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return "", err
	}
	ctx = klog.NewContext(ctx, logr.Discard()) // else it logs on the user's terminal
	var out, complaint bytes.Buffer
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &most{&out}, Stderr: &most{&complaint}})
	var exit exec.CodeExitError
	if errors.As(err, &exit) {
		return out.String(), &verify.ExitError{Status: exit.Code, Stderr: complaint.String()}
	}
	if err != nil {
		return "", fmt.Errorf("run a command in %s/%s: %w", namespace, pod, err)
	}
	return out.String(), nil
}

// most keeps so much of what is written, and says where it is more.
type most struct{ to *bytes.Buffer }

func (m *most) Write(p []byte) (int, error) {
	if m.to.Len()+len(p) > maxOutput {
		return 0, errors.New("the command's output is too large")
	}
	return m.to.Write(p)
}
