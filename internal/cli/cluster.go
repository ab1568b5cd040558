package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/operator"
)

// defaultRequestTimeout bounds one request, so that an API server that accepts
// connections and answers nothing does not hold the terminal for ever.
const defaultRequestTimeout = 20 * time.Second

// cluster is which API server a command talks to, and as whom: the flags of
// kubectl, with kubectl's meaning.
type cluster struct {
	namespace, context, kubeconfig string
	everywhere                     bool
	prefix                         string
	timeout                        time.Duration
}

// bind adds the flags to a command.
func (c *cluster) bind(cmd *cobra.Command) {
	c.bindNamespace(cmd, "", "namespace of the Pod; without it that of the kubeconfig")
	c.bindServer(cmd)
	cmd.Flags().StringVar(&c.prefix, "annotation-prefix", grant.DefaultPrefix, "domain of the annotations and the label")
}

// bindNamespace adds -n.
func (c *cluster) bindNamespace(cmd *cobra.Command, without, usage string) {
	cmd.Flags().StringVarP(&c.namespace, "namespace", "n", without, usage)
	completeWith(cmd, "namespace", c.namespaces)
}

// bindServer adds what says which API server it is.
func (c *cluster) bindServer(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&c.context, "context", "", "context of the kubeconfig; without it the current one")
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "kubeconfig to use; without it KUBECONFIG or ~/.kube/config")
	f.DurationVar(&c.timeout, "request-timeout", defaultRequestTimeout, "how long one request may take, 0 for ever")
	takesFile(cmd, "kubeconfig")
	completeWith(cmd, "context", c.contexts)
}

// bindEverywhere adds -A.
func (c *cluster) bindEverywhere(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&c.everywhere, "all-namespaces", "A", false, "the Pods of all namespaces")
}

// session is a connection as a command uses it.
type session struct {
	config    *rest.Config
	client    kubernetes.Interface
	api       corev1client.CoreV1Interface
	operator  *operator.Client
	namespace string // "" is all of them
	names     grant.Names
	// elsewhere are the flags that lead to this cluster, for the commands that hints
	// name; prefixed is the flag that leads to these annotations.
	elsewhere, prefixed string
}

// at names the Pod for a command of kubectl that a hint gives: pasted, it must find
// the same Pod. mine does so for a command of this program.
func (s *session) at(pod operator.Pod) string {
	return pod.Name + " -n " + pod.Namespace + s.elsewhere
}

func (s *session) mine(pod operator.Pod) string { return s.at(pod) + s.prefixed }

// given are flags as they were given, for a command that is pasted into a shell.
func given(flags ...[2]string) string {
	var b strings.Builder
	for _, f := range flags {
		value := f[1]
		if value == "" {
			continue
		}
		b.WriteString(" --" + f[0] + " " + word(value))
	}
	return b.String()
}

// word is the value as a word of a shell.
func word(value string) string {
	if strings.ContainsFunc(value, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("/._:@-", r)
	}) {
		return "'" + strings.ReplaceAll(value, "'", `'\''`) + "'"
	}
	return value
}

// connect makes the clients. It sends nothing.
func (c *cluster) connect() (*session, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	cfg, err := c.config() // before the namespace: sound looks at what both read
	if err != nil {
		return nil, err
	}
	namespace, _, err := c.loader().Namespace()
	if err != nil {
		return nil, unusable(err)
	}
	if namespaceProblem(namespace) != "" {
		return nil, unusable(fmt.Errorf("its namespace %.80q is no name of one", namespace))
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, unusable(err)
	}
	s := &session{config: cfg, client: client, api: client.CoreV1(), namespace: namespace, names: grant.NamesFor(c.prefix)}
	if c.everywhere {
		s.namespace = metav1.NamespaceAll
	}
	s.elsewhere = given([2]string{"context", c.context}, [2]string{"kubeconfig", c.kubeconfig})
	if c.prefix != grant.DefaultPrefix {
		s.prefixed = given([2]string{"annotation-prefix", c.prefix})
	}
	s.operator = operator.New(s.api, s.names)
	return s, nil
}

// check looks at the flags alone.
func (c *cluster) check() error {
	if problems := validation.IsDNS1123Subdomain(c.prefix); len(problems) > 0 {
		return advice.Usage(fmt.Errorf("--annotation-prefix %.80q is no domain: %s", c.prefix, problems[0]), "")
	}
	if c.timeout < 0 {
		return advice.Usage(fmt.Errorf("--request-timeout %s is no time: 0 is for ever", c.timeout), "")
	}
	return checkNamespace("--namespace", c.namespace)
}

// checkNamespace refuses what can be no namespace, where a flag has a value: whoever
// asks for Pods there would be told that there are none.
func checkNamespace(flag, value string) error {
	if value == "" {
		return nil
	}
	if problem := namespaceProblem(value); problem != "" {
		return advice.Usage(fmt.Errorf("%s %.80q is no name of a namespace: %s", flag, value, problem), "")
	}
	return nil
}

func namespaceProblem(value string) string {
	if problems := validation.IsDNS1123Label(value); len(problems) > 0 {
		return problems[0]
	}
	return ""
}

// config is how the API server is reached.
func (c *cluster) config() (*rest.Config, error) {
	loader := c.loader()
	raw, err := loader.RawConfig()
	if err != nil {
		return nil, unusable(err)
	}
	if err := c.sound(raw); err != nil {
		return nil, unusable(err)
	}
	cfg, err := loader.ClientConfig()
	if err != nil {
		return nil, unusable(err)
	}
	cfg.Timeout = c.timeout // of a watch too; who waits begins another
	cfg.UserAgent = programName
	cfg.WarningHandler = rest.NoWarnings{}
	return cfg, nil
}

// sound looks at the addresses that will be used, before those do who repeat in their
// errors what they cannot read: there may be a password in it.
func (c *cluster) sound(raw clientcmdapi.Config) error {
	in := raw.Contexts[cmp.Or(c.context, raw.CurrentContext)]
	if in == nil || raw.Clusters[in.Cluster] == nil {
		return nil // told by whoever looks for it
	}
	used := raw.Clusters[in.Cluster]
	if used.Server != "" {
		if _, _, err := rest.DefaultServerURL(used.Server, "", schema.GroupVersion{}, true); err != nil {
			return fmt.Errorf("the server of its cluster %.80q is no URL", in.Cluster)
		}
	}
	if u, err := url.Parse(used.ProxyURL); used.ProxyURL != "" && (err != nil || !slices.Contains([]string{"http", "https", "socks5"}, u.Scheme)) {
		return fmt.Errorf("the proxy-url of its cluster %.80q is no URL of a proxy (http, https or socks5)", in.Cluster)
	}
	return nil
}

func (c *cluster) loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: c.context}
	overrides.Context.Namespace = c.namespace
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
}

func unusable(err error) error {
	if clientcmd.IsEmptyConfig(err) {
		return advice.With(errors.New("there is no kubeconfig, and this is not a Pod"), "set --kubeconfig or KUBECONFIG")
	}
	return advice.With(fmt.Errorf("the kubeconfig cannot be used: %w", err), "check --kubeconfig, --context and KUBECONFIG: `kubectl config view` shows what is in them")
}

// pod is the Pod that an argument names: "sandbox", or "pod/sandbox" as kubectl
// prints it.
func (s *session) pod(arg string) (operator.Pod, error) {
	name := strings.TrimPrefix(strings.TrimPrefix(arg, "pods/"), "pod/")
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return operator.Pod{}, advice.Usage(fmt.Errorf("%.80q is no name of a Pod", arg), "give its name alone; -n chooses the namespace")
	}
	return operator.Pod{Namespace: s.namespace, Name: name}, nil
}

// open connects and finds out which Pod is meant.
func (c *cluster) open(arg string) (*session, operator.Pod, error) {
	s, err := c.connect()
	if err != nil {
		return nil, operator.Pod{}, err
	}
	pod, err := s.pod(arg)
	return s, pod, err
}

// namespaces and contexts are for completion.
func (c *cluster) namespaces(ctx context.Context) []string {
	s, err := c.connect()
	if err != nil {
		return nil
	}
	list, err := s.api.Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	var names []string
	for _, n := range list.Items {
		names = append(names, n.Name)
	}
	return names
}

func (c *cluster) contexts(context.Context) []string {
	raw, err := c.loader().RawConfig()
	if err != nil {
		return nil
	}
	var names []string
	for name := range raw.Contexts {
		names = append(names, name)
	}
	return names
}
