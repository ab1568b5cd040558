package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"log/slog"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/action"
	helmcommon "helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/kube"
	releases "helm.sh/helm/v4/pkg/release"
	"helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/datalayer/node-mounts/internal/advice"
)

// hookTimeout bounds the hooks of a release, of which the chart has none but its
// tests. Helm wants one.
const hookTimeout = time.Minute

// renderedFor is the Kubernetes that manifests are rendered for where none is asked:
// the first that serves all the chart can make. Helm's own default is what it was
// compiled with, or 1.20.
const renderedFor = "v1.30.0"

// Helm is the releases of one namespace, stored as Helm's own command stores them:
// `helm list`, `upgrade`, `rollback` and `uninstall` work on what is made here.
type Helm struct {
	cfg        *action.Configuration
	connection *connection
	namespace  string
}

// NewHelm makes one. It sends nothing. What Helm says while it works goes to logs.
func NewHelm(cfg *rest.Config, namespace string, logs io.Writer) (*Helm, error) {
	// Objects are applied on the server, where each field has a manager. With another
	// name than Helm's own, the next `helm upgrade` would be told of conflicts.
	kube.ManagedFieldsManager = "helm"
	// Some of Helm writes to the standard logger, whatever it is given.
	log.SetOutput(logs)
	handler := slog.NewTextHandler(logs, nil)
	h := &Helm{connection: newConnection(cfg, namespace), namespace: namespace}
	h.cfg = action.NewConfiguration(action.ConfigurationSetLogger(handler))
	if err := h.cfg.Init(h.connection, namespace, "secrets"); err != nil {
		return nil, fmt.Errorf("preparing Helm: %w", err)
	}
	return h, nil
}

// todo is what an installation would do, found out without changing anything.
type todo struct {
	values    map[string]any // those given
	all       map[string]any // with the chart's own
	serving   Serving
	last      *release.Release
	unchanged bool
	objects   []object
	agent     *agentSet
}

// prepare renders the chart for this cluster and compares it with what is there.
func (h *Helm) prepare(ctx context.Context, r Request) (*todo, error) {
	c, err := load(r.Chart)
	if err != nil {
		return nil, err
	}
	t := &todo{values: r.Values}
	if t.last, err = h.newest(); err != nil {
		return nil, err
	}
	if t.last != nil && t.last.Info.Status.IsPending() {
		return nil, h.pending(t.last)
	}
	if r.ReuseValues && t.last != nil {
		t.values = loader.MergeMaps(t.last.Config, r.Values)
	}
	if t.all, err = sound(c, t.values); err != nil {
		return nil, err
	}
	t.serving = servingOf(t.all, h.namespace)
	made, err := h.run(ctx, r, t, action.DryRunServer)
	if err != nil {
		return nil, rendering(err)
	}
	if t.objects, err = parse(made.Manifest, h.namespace); err != nil {
		return nil, err
	}
	if t.agent, err = findAgent(t.objects); err != nil {
		return nil, err
	}
	t.unchanged, err = h.same(ctx, t.last, made)
	return t, err
}

// servingOf reads what the agents are told out of all values of a chart.
func servingOf(all map[string]any, namespace string) Serving {
	text := func(path string) string { s, _ := look(all, path).(string); return s }
	var sandboxed []string
	if list, ok := look(all, "nodeMountGateway.sandboxedRuntimes").([]any); ok {
		for _, one := range list {
			sandboxed = append(sandboxed, fmt.Sprint(one))
		}
	}
	return Serving{
		Namespace: text(namespaceValue), AgentNamespace: namespace,
		Prefix: text("nodeMountGateway.annotationPrefix"), Volume: text("nodeMountGateway.volumeName"),
		Sandboxed: sandboxed,
	}
}

// rendering tells errors of values from those of the cluster.
func rendering(err error) error {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return err
	}
	if said := chartSays(err); said.Error() != err.Error() { // the values are at fault
		return advice.Usage(said, "check --set, --values and the variables: the chart's README lists all values")
	}
	return advice.With(fmt.Errorf("preparing the release: %w", err), "check --set, --values and the variables: `node-mounts install --dry-run` renders without a cluster")
}

// chartSays is an error of values in the chart's own words. Helm puts around them
// what helps who writes charts. The schema has been asked before, by sound.
func chartSays(err error) error {
	if _, refusal, found := strings.Cut(err.Error(), "execution error at ("); found {
		if _, refusal, found = strings.Cut(refusal, "): "); found {
			return errors.New(refusal)
		}
	}
	return err
}

// newest is the release's last revision, nil when there is none.
func (h *Helm) newest() (*release.Release, error) {
	found, err := h.cfg.Releases.Last(ReleaseName)
	switch {
	case errors.Is(err, driver.ErrReleaseNotFound):
		return nil, nil
	case err != nil:
		return nil, advice.With(
			fmt.Errorf("reading the release %s in namespace %s: %w", ReleaseName, h.namespace, err),
			"releases are Secrets: this needs get, list, create, update and delete on them in that namespace",
		)
	}
	return revision(found)
}

func revision(found releases.Releaser) (*release.Release, error) {
	r, ok := found.(*release.Release)
	if !ok {
		return nil, fmt.Errorf("the release %s is of a kind this version does not know: %T", ReleaseName, found)
	}
	return r, nil
}

// installed tells whether there is a release to upgrade.
func installed(last *release.Release) bool {
	return last != nil && last.Info.Status != common.StatusUninstalled
}

// run installs or upgrades, or finds out what that would do.
func (h *Helm) run(ctx context.Context, r Request, t *todo, dry action.DryRunStrategy) (*release.Release, error) {
	c, err := load(r.Chart) // Helm changes the chart it is given
	if err != nil {
		return nil, err
	}
	var made releases.Releaser
	if installed(t.last) {
		up := action.NewUpgrade(h.cfg)
		up.Namespace, up.DryRunStrategy = h.namespace, dry
		up.ResetValues = true // the values are those given: the same command has the same result
		up.Timeout, up.WaitStrategy = hookTimeout, kube.HookOnlyStrategy
		up.MaxHistory = 10 // as Helm's command
		up.ForceConflicts = r.ForceConflicts
		made, err = up.RunWithContext(ctx, ReleaseName, c, t.values)
	} else {
		in := action.NewInstall(h.cfg)
		in.ReleaseName, in.Namespace, in.DryRunStrategy = ReleaseName, h.namespace, dry
		in.ForceConflicts = r.ForceConflicts
		in.Replace = t.last != nil // uninstalled, with its history kept
		in.Timeout, in.WaitStrategy = hookTimeout, kube.HookOnlyStrategy
		made, err = in.RunWithContext(ctx, c, t.values)
	}
	if err != nil {
		return nil, err
	}
	return revision(made)
}

// apply makes it so.
func (h *Helm) apply(ctx context.Context, r Request, t *todo, tell func(string, ...any)) (int, Change, error) {
	if t.unchanged {
		tell("nothing to change: revision %d is what was asked for", t.last.Version)
		return t.last.Version, Unchanged, nil
	}
	change := Installed
	if installed(t.last) {
		change = Upgraded
	}
	objects := "objects"
	if len(t.objects) == 1 {
		objects = "object"
	}
	tell("applying %d %s", len(t.objects), objects)
	made, err := h.run(ctx, r, t, action.DryRunNone)
	if err != nil {
		return 0, "", advice.With(fmt.Errorf("applying the release: %w", err), h.afterFailure(t, err))
	}
	return made.Version, change, nil
}

// Sound refuses values with which nothing would run or nothing could be mounted. It
// asks no cluster.
func Sound(from fs.FS, values map[string]any) error {
	c, err := load(from)
	if err == nil {
		_, err = sound(c, values)
	}
	return err
}

// Render is the chart as manifests. It needs no cluster: what the chart makes only
// where an API is served is made when Kubernetes itself serves it.
func Render(ctx context.Context, from fs.FS, namespace string, values map[string]any) (string, error) {
	c, err := load(from)
	if err != nil {
		return "", err
	}
	if _, err := sound(c, values); err != nil {
		return "", err
	}
	cfg := action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler))
	version, err := helmcommon.ParseKubeVersion(renderedFor)
	if err != nil {
		return "", fmt.Errorf("the version to render for: %w", err)
	}
	in := action.NewInstall(cfg)
	in.ReleaseName, in.Namespace, in.DryRunStrategy = ReleaseName, namespace, action.DryRunClient
	in.KubeVersion = version
	made, err := in.RunWithContext(ctx, c, values)
	if err != nil {
		return "", advice.Usage(fmt.Errorf("rendering the chart: %w", chartSays(err)), "check --set, --values and the variables")
	}
	r, err := revision(made)
	if err != nil {
		return "", err
	}
	return strings.TrimLeft(r.Manifest, "\n"), nil
}
