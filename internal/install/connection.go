package install

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// connection is one API server and one namespace, as Helm wants to be told of them.
type connection struct {
	config    *rest.Config
	namespace string

	once      sync.Once
	discovery discovery.CachedDiscoveryInterface
	mapper    meta.RESTMapper
	err       error
}

func newConnection(cfg *rest.Config, namespace string) *connection {
	cfg = rest.CopyConfig(cfg)
	// A preflight asks a hundred small questions; at client-go's own five a second it
	// would take twenty seconds.
	cfg.QPS, cfg.Burst = 100, 200
	return &connection{config: cfg, namespace: namespace}
}

// ToRESTConfig is the configuration, to keep.
func (c *connection) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(c.config), nil }

// ToDiscoveryClient knows what the server serves.
func (c *connection) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	c.open()
	return c.discovery, c.err
}

// ToRESTMapper knows which resource a kind is.
func (c *connection) ToRESTMapper() (meta.RESTMapper, error) {
	c.open()
	return c.mapper, c.err
}

func (c *connection) open() {
	c.once.Do(func() {
		client, err := discovery.NewDiscoveryClientForConfig(c.config)
		if err != nil {
			c.err = err
			return
		}
		c.discovery = memory.NewMemCacheClient(client)
		c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(c.discovery)
	})
}

// ToRawKubeConfigLoader is asked for the namespace of objects that name none.
func (c *connection) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	return loaded{c}
}

// loaded is a kubeconfig that has been read.
type loaded struct {
	c *connection
}

var _ clientcmd.ClientConfig = loaded{}

func (l loaded) ClientConfig() (*rest.Config, error)     { return l.c.ToRESTConfig() }
func (l loaded) Namespace() (string, bool, error)        { return l.c.namespace, true, nil }
func (l loaded) RawConfig() (clientcmdapi.Config, error) { return *clientcmdapi.NewConfig(), nil }
func (l loaded) ConfigAccess() clientcmd.ConfigAccess    { return clientcmd.NewDefaultPathOptions() }
