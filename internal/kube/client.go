package kube

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// ErrNoCluster: there is no kubeconfig, and the process does not run in a Pod.
var ErrNoCluster = errors.New("no kubeconfig, and not in a cluster")

// A node's agent patches each Pod once per change. client-go's 5 requests a
// second would make the last of 100 Pods that start together wait 20 s.
const (
	requestsPerSecond = 50
	requestBurst      = 100
)

// Connect makes a client from the kubeconfig files named (a list as in the
// KUBECONFIG variable), or from the Pod's service account when there are none.
// It sends nothing. ErrNoCluster when there is neither; any other error is a
// kubeconfig that cannot be used.
func Connect(kubeconfig, userAgent string) (kubernetes.Interface, error) {
	cfg, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	cfg.UserAgent = userAgent
	cfg.QPS, cfg.Burst = requestsPerSecond, requestBurst
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	cfg.WarningHandler = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("kube: make a client: %w", err)
	}
	return client, nil
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		cfg, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, fmt.Errorf("kube: %w", ErrNoCluster)
		} else if err != nil {
			return nil, fmt.Errorf("kube: read the service account: %w", err)
		}
		return cfg, nil
	}
	rules := &clientcmd.ClientConfigLoadingRules{}
	if files := filepath.SplitList(kubeconfig); len(files) == 1 {
		rules.ExplicitPath = files[0] // which has to exist
	} else {
		rules.Precedence = files
	}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kube: read the kubeconfig %q: %w", kubeconfig, err)
	}
	return cfg, nil
}

// RouteLogs sends what client-go logs outside of any request to log: without it,
// those lines go to standard error in a format of their own. It concerns the
// whole process: main calls it once.
func RouteLogs(log *slog.Logger) { klog.SetSlogLogger(log) }
