package install

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/kube/absence"
	"github.com/datalayer/node-mounts/internal/verify"
)

// Names of the checks before anything is installed.
const (
	rowNamespace = "Release namespace"
	rowRuntimes  = "Runtimes namespace"
	rowClaim     = "Shared filesystem claim"
	rowRights    = "Your permissions"
	rowNode      = "Node can serve"
)

// enforceLabel is what a namespace enforces of its Pods.
const enforceLabel = "pod-security.kubernetes.io/enforce"

// preflight finds out what would go wrong. Nothing of the release has been sent.
func (c Cluster) preflight(ctx context.Context, r Request, t *todo, report *Report) error {
	c.tell("preflight: the cluster")
	nodes, err := c.nodes(ctx)
	if err != nil {
		return err
	}
	for _, check := range []func() ([]Row, error){
		func() ([]Row, error) { return c.checkNamespaces(ctx, r, t) },
		func() ([]Row, error) { return c.checkClaim(ctx, r.Namespace, t.agent, nodes) },
		func() ([]Row, error) { return c.checkRights(ctx, r, t) },
	} {
		rows, err := check()
		report.Preflight = append(report.Preflight, rows...)
		if err != nil {
			return err
		}
	}
	// A probe needs what was just checked: its namespace, the claim and the right to
	// make Pods.
	if failed(report.Preflight) == 0 {
		rows, err := c.probe(ctx, r, t, nodes)
		report.Preflight = append(report.Preflight, rows...)
		if err != nil {
			return err
		}
	}
	if n := failed(report.Preflight); n > 0 {
		return advice.With(
			fmt.Errorf("nothing was installed: %w: %s", verify.ErrFailed, of(n, "row of the preflight", "fails", "fail")),
			"each row says what to do; --skip-preflight installs all the same",
		)
	}
	return nil
}

func (c Cluster) nodes(ctx context.Context) ([]corev1.Node, error) {
	list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing the nodes: %w", err)
	}
	return list.Items, nil
}

func (c Cluster) checkNamespaces(ctx context.Context, r Request, t *todo) ([]Row, error) {
	own, err := c.namespace(ctx, r.Namespace)
	if err != nil {
		return nil, err
	}
	row := Row{Check: rowNamespace, Status: verify.OK, Detail: r.Namespace}
	if own == nil {
		row.Status, row.Detail = verify.Fail, r.Namespace+" does not exist"
		row.Hint = "the release goes where the claim is: choose that namespace with -n, or make it and the claim"
	} else if level := own.Labels[enforceLabel]; level != "" && level != "privileged" {
		row.Status, row.Detail = verify.Fail, fmt.Sprintf("%s enforces the Pod Security level %q, and the agent is privileged", r.Namespace, level)
		row.Hint = fmt.Sprintf("`kubectl label namespace %s --overwrite %s=privileged`, or install into a namespace of its own with a claim of its own", r.Namespace, enforceLabel)
	}
	rows := []Row{row}
	if t.serving.Namespace == "" || t.serving.Namespace == r.Namespace {
		return rows, nil
	}
	other, err := c.namespace(ctx, t.serving.Namespace)
	if err != nil {
		return rows, err
	}
	row = Row{Check: rowRuntimes, Status: verify.OK, Detail: t.serving.Namespace}
	if other == nil && r.CreateNamespace {
		row.Detail += " is made"
	} else if other == nil {
		row.Status, row.Detail = verify.Fail, t.serving.Namespace+" does not exist"
		row.Hint = "`kubectl create namespace " + t.serving.Namespace + "`, or --create-namespace; --set " + namespaceValue + " serves another one"
	}
	return append(rows, row), nil
}

// namespace is nil where it does not exist.
func (c Cluster) namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	found, err := c.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if absence.Said(err, "namespaces", name) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for the namespace %s: %w", name, err)
	}
	return found, nil
}

func (c Cluster) createNamespace(ctx context.Context, name string) error {
	if name == "" {
		return nil
	}
	_, err := c.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("making the namespace %s: %w", name, err)
	}
	return nil
}

// checkClaim looks at every claim that the agents mount.
func (c Cluster) checkClaim(ctx context.Context, namespace string, a *agentSet, nodes []corev1.Node) ([]Row, error) {
	var rows []Row
	for _, v := range a.Spec.Template.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		name := v.PersistentVolumeClaim.ClaimName
		claim, err := c.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case absence.Said(err, "persistentvolumeclaims", name):
			rows = append(rows, rowOf(
				rowClaim, "", verify.Fail, fmt.Sprintf("%s does not exist in namespace %s", name, namespace),
				"a Pod mounts claims of its own namespace alone: make the claim there, or choose the claim's namespace with -n",
			))
		case err != nil:
			return rows, fmt.Errorf("looking for the claim %s: %w", name, err)
		default:
			late := claim.Status.Phase == corev1.ClaimPending && c.waitsForConsumer(ctx, claim)
			rows = append(rows, judgeClaim(claim, late, len(nodes)))
		}
	}
	return rows, nil
}

// waitsForConsumer tells whether the claim is bound when a Pod first uses it.
func (c Cluster) waitsForConsumer(ctx context.Context, claim *corev1.PersistentVolumeClaim) bool {
	if claim.Spec.StorageClassName == nil || *claim.Spec.StorageClassName == "" {
		return false
	}
	class, err := c.Client.StorageV1().StorageClasses().Get(ctx, *claim.Spec.StorageClassName, metav1.GetOptions{})
	// Who may not read classes is told that the claim is not bound, which is true.
	return err == nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// judgeClaim says whether a claim can be mounted on every node. late: it is bound
// when a Pod first uses it.
func judgeClaim(claim *corev1.PersistentVolumeClaim, late bool, nodes int) Row {
	var modes []string
	for _, m := range claim.Spec.AccessModes {
		modes = append(modes, string(m))
	}
	row := Row{Check: rowClaim, Status: verify.OK, Detail: fmt.Sprintf("%s, %s, %s", claim.Name, claim.Status.Phase, strings.Join(modes, "+"))}
	many := slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany)
	one := slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOnce)
	switch {
	case claim.DeletionTimestamp != nil:
		row.Status, row.Hint = verify.Fail, "it is being deleted: make another one"
	case !many && one && nodes == 1:
		row.Status, row.Hint = verify.Warn, "it serves this one node: a second one would not get it, which needs ReadWriteMany"
	case !many:
		row.Status, row.Hint = verify.Fail, "every node mounts it for writing: it must be ReadWriteMany"
	}
	switch {
	case row.Status == verify.Fail, claim.Status.Phase == corev1.ClaimBound:
	case late:
		row.Status, row.Hint = verify.Warn, "its storage class binds it when the first Pod uses it"
	default:
		row.Status, row.Hint = verify.Fail, fmt.Sprintf("it is not bound: `kubectl -n %s describe pvc %s` says why", claim.Namespace, claim.Name)
	}
	return row
}
