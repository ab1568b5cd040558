// Package servertest runs a real etcd and a real kube-apiserver for tests.
//
// The binaries are found in KUBEBUILDER_ASSETS; `make test` builds them once and
// sets it.
package servertest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/datalayer/node-mounts/test/ports"
)

// assetsVariable names the folder of etcd and kube-apiserver.
const assetsVariable = "KUBEBUILDER_ASSETS"

// patience is how long a server may take for what takes it five seconds.
const patience = 2 * time.Minute

// Server is an API server with its etcd. It stops with the test.
type Server struct {
	env   *envtest.Environment
	Admin *rest.Config
}

// Start starts them, which takes about five seconds: share one among the tests of
// a package.
func Start(t testing.TB) *Server {
	t.Helper()
	assets := os.Getenv(assetsVariable)
	if assets == "" {
		t.Fatalf("%s is not set: run `make test`, or `make kubernetes` and set it to the folder that names", assetsVariable)
	}
	names := []string{"etcd", "kube-apiserver"}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(assets, name)); err != nil {
			t.Fatalf("%s: %v", assetsVariable, err)
		}
	}
	env := &envtest.Environment{
		BinaryAssetsDirectory: guarded(t, assets, names...),
		// envtest's own 20 s are too few on a machine that has much else to do.
		ControlPlaneStartTimeout: patience, ControlPlaneStopTimeout: patience,
	}
	// Pods are made without their service accounts, which a controller would make.
	env.ControlPlane.GetAPIServer().Configure().Append("disable-admission-plugins", "ServiceAccount")
	// It may leave and return, and nobody is to have its port meanwhile.
	serving := &env.ControlPlane.GetAPIServer().SecureServing.ListenAddr
	serving.Address, serving.Port = "127.0.0.1", ports.Free(t, "127.0.0.1")
	// Its own folder of certificates would go with the first Stop, and Return would
	// have to serve with others.
	env.ControlPlane.GetAPIServer().CertDir = t.TempDir()
	cfg, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Errorf("stopping the API server: %v", err)
		}
	})
	return &Server{env: env, Admin: cfg}
}

// Leave ends the API server as a crash does, and leaves etcd with what it has.
// Asked to end, it would wait for its watches.
func (s *Server) Leave(t testing.TB) {
	t.Helper()
	server := s.env.ControlPlane.GetAPIServer()
	pid, err := child("--secure-port=" + server.SecureServing.Port)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// It waits for the end. ESRCH: that has been.
	if err := server.Stop(); err != nil && !errors.Is(err, unix.ESRCH) {
		t.Fatal(err)
	}
}

// child finds the process that this one has started with the argument.
func child(argument string) (int, error) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	for _, line := range lines {
		text, err := os.ReadFile(line)
		if err != nil || !slices.Contains(strings.Split(string(text), "\x00"), argument) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(line)))
		if err != nil {
			return 0, err
		}
		if parent, err := parentOf(pid); err == nil && parent == os.Getpid() {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no process of ours has the argument %s", argument)
}

func parentOf(pid int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "\nPPid:\t")
	line, _, _ := strings.Cut(rest, "\n")
	return strconv.Atoi(line)
}

// Return starts it again, at the same address and with the same users.
func (s *Server) Return(t testing.TB) {
	t.Helper()
	if err := s.env.ControlPlane.GetAPIServer().Start(); err != nil {
		t.Fatal(err)
	}
}

// Client is a client with every right.
func (s *Server) Client(t testing.TB) kubernetes.Interface {
	t.Helper()
	return client(t, s.Admin)
}

// User is a client of a new user that may do what the rules say, in every
// namespace, and nothing else. It returns the user's configuration too.
func (s *Server) User(t testing.TB, name string, rules ...rbacv1.PolicyRule) (kubernetes.Interface, *rest.Config) {
	t.Helper()
	user, err := s.env.AddUser(envtest.User{Name: name}, nil)
	if err != nil {
		t.Fatal(err)
	}
	roles := s.Client(t).RbacV1()
	meta := metav1.ObjectMeta{Name: name}
	if _, err := roles.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = roles.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return client(t, user.Config()), user.Config()
}

// Kubeconfig writes a kubeconfig file for the configuration of a user.
func (s *Server) Kubeconfig(t testing.TB, name string) string {
	t.Helper()
	user, err := s.env.AddUser(envtest.User{Name: name}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := user.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func client(t testing.TB, cfg *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
