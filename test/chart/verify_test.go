package chart

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/datalayer/node-mounts/internal/verify"
)

// silent are agents that nobody can ask: here is no kubelet to run a command.
type silent struct{}

func (silent) Nodes(context.Context) ([]verify.NodeAnswer, error) {
	return []verify.NodeAnswer{{Node: nodeOne}}, nil
}

// testsAccount gathers what `node-mounts verify` judges with the rights that `helm
// test` gives it, and no others.
func testsAccount(t *testing.T, j *judge) {
	ctx, r := t.Context(), must(t, least)
	install(t, j, r)
	ok(t, j.admin.RbacV1().ClusterRoleBindings().Delete(ctx, "everybody", metav1.DeleteOptions{}))
	account := j.as(t, serviceAccount(namespace, fullname+"-verify", ""))
	j.until(t, "the account's rights", func(ctx context.Context) error {
		_, err := account.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err
	})
	j.await(t, "the end of everybody's rights", func(ctx context.Context) error {
		_, err := account.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{})
		return err
	}, forbidden)
	facts := verify.Gather(ctx, verify.Cluster{API: account, Agents: silent{}})
	if len(facts.DaemonSets.Value) != 1 {
		t.Errorf("verify finds %d DaemonSets by the chart's labels", len(facts.DaemonSets.Value))
	}
	if facts.Claim.Value == nil || len(facts.May) == 0 {
		t.Errorf("it does not get as far as the claim (%v) and the rights (%d)", facts.Claim, len(facts.May))
	}
	for name, err := range failures(reflect.ValueOf(facts), "") {
		t.Errorf("%s: %v", name, err)
	}
}

// everyObject has the API server judge all that is rendered by its own rules too.
func everyObject(t *testing.T, j *judge) {
	c, err := client.New(j.config, client.Options{Scheme: scheme.Scheme})
	ok(t, err)
	files, err := filepath.Glob("testdata/values/*.yaml")
	ok(t, err)
	taken := 0
	for _, file := range files {
		values, err := os.ReadFile(file)
		ok(t, err)
		r := must(t, string(values), "{fullnameOverride: dry-run, nodeMountGateway: {namespace: "+runtimes+"}}")
		for _, o := range slices.Concat(r.objects, r.hooks) {
			object, isObject := o.(client.Object)
			if !isObject {
				t.Fatalf("a %T is no object", o)
			}
			if err := c.Create(t.Context(), object, client.DryRunAll); err != nil {
				t.Errorf("%s: %v", file, err)
			}
			taken++
		}
	}
	if taken < 20 {
		t.Errorf("%d objects were tried", taken)
	}
}

// failures finds the errors in what was gathered.
func failures(v reflect.Value, at string) map[string]error {
	found := map[string]error{}
	add := func(more map[string]error) {
		for name, err := range more {
			found[name] = err
		}
	}
	switch v.Kind() {
	case reflect.Struct:
		if e := v.FieldByName("Err"); e.IsValid() {
			if err, isError := e.Interface().(error); isError && err != nil {
				found[at] = err
			}
			return found
		}
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				add(failures(v.Field(i), at+"."+f.Name))
			}
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			add(failures(v.MapIndex(key), at+"[...]"))
		}
	default: // what a fact is made of
	}
	return found
}

// install creates what verify looks at: the agents, their claim, the rights.
func install(t *testing.T, j *judge, r rendered) {
	t.Helper()
	ctx, opts := t.Context(), metav1.CreateOptions{}
	_, err := j.admin.CoreV1().ServiceAccounts(runtimes).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "datalayer-runtimes-sa"}}, opts)
	ok(t, err)
	_, err = j.admin.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "shared-fs"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, opts)
	ok(t, err)
	for _, o := range all[*appsv1.DaemonSet](r.objects) {
		_, err = j.admin.AppsV1().DaemonSets(o.Namespace).Create(ctx, o, opts)
		ok(t, err)
	}
	for _, o := range all[*rbacv1.ClusterRole](r.hooks) {
		_, err = j.admin.RbacV1().ClusterRoles().Create(ctx, o, opts)
		ok(t, err)
	}
	for _, o := range all[*rbacv1.ClusterRoleBinding](r.hooks) {
		_, err = j.admin.RbacV1().ClusterRoleBindings().Create(ctx, o, opts)
		ok(t, err)
	}
	for _, o := range all[*rbacv1.Role](r.hooks) {
		_, err = j.admin.RbacV1().Roles(o.Namespace).Create(ctx, o, opts)
		ok(t, err)
	}
	for _, o := range all[*rbacv1.RoleBinding](r.hooks) {
		_, err = j.admin.RbacV1().RoleBindings(o.Namespace).Create(ctx, o, opts)
		ok(t, err)
	}
}
