package arch

import (
	"fmt"
	"strings"
	"testing"
)

func TestModuleKeepsItsRules(t *testing.T) {
	dir, name := module(t)
	if name != modulePath {
		t.Fatalf("the rules name packages of %s, and this is %s", modulePath, name)
	}
	sources, err := walk(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules() {
		t.Run(r.name, func(t *testing.T) {
			for _, s := range sources {
				for _, found := range r.check(s) {
					t.Errorf("%s\n\twhy: %s", found, r.reason)
				}
			}
		})
	}
}

// A walk that finds nothing keeps every rule. It must have seen its own file, and
// must not have left the module.
func TestWalkSeesTheModuleAndNothingElse(t *testing.T) {
	dir, _ := module(t)
	sources, err := walk(dir)
	if err != nil {
		t.Fatal(err)
	}
	var own bool
	for _, s := range sources {
		own = own || s.path == "test/arch/arch_test.go"
		if s.in("tools", "runners") || strings.Contains(s.path, "testdata/") {
			t.Errorf("%s is not part of this module", s.path)
		}
	}
	if !own {
		t.Errorf("the walk over %s did not find this file among %d", dir, len(sources))
	}
}

// example is one small file. Broken ones must be found at the line that holds
// "<-", or at line 1 when none does; the others must pass.
type example struct {
	rule   string // the start of the rule's name
	path   string
	broken bool
	text   string
}

func TestEveryRuleFindsWhatBreaksItAndNothingElse(t *testing.T) {
	broken := map[string]int{}
	for i, e := range examples() {
		t.Run(fmt.Sprintf("%d %s %s", i, e.rule, e.path), func(t *testing.T) {
			s, err := parse(e.path, []byte(e.text))
			if err != nil {
				t.Fatal(err)
			}
			s.root, _ = module(t)
			r := find(t, e.rule)
			found := r.check(s)
			if !e.broken {
				if len(found) != 0 {
					t.Errorf("nothing here breaks the rule %q, but it says %q", r.name, found)
				}
				return
			}
			broken[r.name]++
			line := 1
			for i, l := range strings.Split(e.text, "\n") {
				if strings.Contains(l, "<-") {
					line = i + 1
					break
				}
			}
			if len(found) != 1 || !strings.HasPrefix(found[0], fmt.Sprintf("%s:%d: ", e.path, line)) {
				t.Errorf("the rule %q should find line %d and nothing else, and finds %q", r.name, line, found)
			}
		})
	}
	for _, r := range rules() {
		if broken[r.name] == 0 {
			t.Errorf("no example breaks the rule %q: it may be unable to fail", r.name)
		}
	}
}

func find(t *testing.T, start string) rule {
	t.Helper()
	for _, r := range rules() {
		if strings.HasPrefix(r.name, start) {
			return r
		}
	}
	t.Fatalf("no rule starts with %q", start)
	return rule{}
}

func examples() []example {
	long := func(head string, lines int, tail string) string {
		return head + strings.Repeat("\n", lines) + tail
	}
	const unix = "import \"golang.org/x/sys/unix\"\n"
	return []example{
		{"mounts", "internal/delivery/bind.go", true, "package delivery\n" + unix + "var e = unix.Mount(\"\", \"\", \"\", 0, \"\") // <-\n"},
		{"mounts", "internal/delivery/bind.go", true, "package delivery\nimport u \"golang.org/x/sys/unix\"\nfunc f() { u.FsconfigSetFD(0, \"fd\", 1) } // <-\n"},
		{"mounts", "internal/delivery/bind.go", true, "package delivery\n" + unix + "var call = unix.MoveMount // <-\n"},
		{"mounts", "cmd/node-mounts/main.go", true, "package main\nimport \"syscall\"\nfunc f() { syscall.Unmount(\"/\", 0) } // <-\n"},
		{"mounts", "internal/mntx/a.go", true, "package mntx\n" + unix + "const nr = unix.SYS_MOUNT_SETATTR // <-\n"},
		{"mounts", "internal/agent/a.go", true, "package agent\nimport . \"syscall\" // <-\nfunc f() { Unmount(\"/\", 0) }\n"},
		{"mounts", "internal/agent/a.go", true, "package agent\nimport \"os/exec\"\nvar c = exec.Command(\"/bin/umount\", \"-l\", \"/\") // <-\n"},
		{"mounts", "internal/agent/a.go", false, "package agent\nimport \"os/exec\"\nvar c = exec.Command(\"git\", \"fetch\")\n"},
		{"mounts", "internal/mnt/kernel.go", false, "package mnt\n" + unix + "var e = unix.Mount(\"\", \"\", \"\", 0, \"\")\n"},
		{"mounts", "internal/simnode/kubelet.go", false, "package simnode\n" + unix + "var e = unix.Unmount(\"\", 0)\n"},
		{"mounts", "internal/agent/agent_test.go", false, "package agent\n" + unix + "var e = unix.Unmount(\"\", 0)\n"},
		{"mounts", "internal/agent/a.go", false, "package agent\n" + unix + "const flag = unix.MOUNT_ATTR_RDONLY\nfunc f(t table) { t.Unmount() }\ntype table interface{ Unmount() }\n"},

		{"Kubernetes", "internal/agent/a.go", true, "package agent\nimport _ \"k8s.io/api/core/v1\" // <-\n"},
		{"Kubernetes", "internal/plan/a_test.go", true, "package plan\nimport _ \"k8s.io/apimachinery/pkg/types\" // <-\n"},
		{"Kubernetes", "internal/kubernetes/a.go", true, "package kubernetes\nimport _ \"k8s.io/client-go/rest\" // <-\n"},
		{"Kubernetes", "internal/kube/a.go", false, "package kube\nimport _ \"k8s.io/client-go/rest\"\n"},
		{"Kubernetes", "internal/kube/servertest/a.go", false, "package servertest\nimport _ \"k8s.io/client-go/rest\"\n"},
		{"Kubernetes", "internal/cli/a.go", false, "package cli\nimport _ \"k8s.io/client-go/tools/clientcmd\"\n"},
		{"Kubernetes", "internal/agentcmd/a.go", true, "package agentcmd\nimport _ \"k8s.io/client-go/rest\" // <-\n"},
		{"Kubernetes", "operator/a.go", false, "package operator\nimport _ \"k8s.io/api/core/v1\"\n"},
		{"Kubernetes", "internal/agent/a.go", false, "package agent\nimport _ \"k8s.io/utils/clock\"\n"},

		{"Helm is", "internal/agentcmd/a.go", true, "package agentcmd\nimport _ \"helm.sh/helm/v4/pkg/action\" // <-\n"},
		{"Helm is", "internal/cli/a.go", true, "package cli\nimport _ \"helm.sh/helm/v4/pkg/strvals\" // <-\n"},
		{"Helm is", "cmd/node-mounts-agent/main.go", true, "package main\nimport _ \"github.com/datalayer/node-mounts/internal/install\" // <-\n"},
		{"Helm is", "internal/cli/a.go", false, "package cli\nimport _ \"github.com/datalayer/node-mounts/internal/install\"\n"},
		{"Helm is", "internal/install/a.go", false, "package install\nimport _ \"helm.sh/helm/v4/pkg/action\"\n"},
		{"Helm is", "test/chart/a_test.go", false, "package chart\nimport _ \"helm.sh/helm/v4/pkg/engine\"\n"},

		{"Kubernetes", "internal/install/a.go", false, "package install\nimport _ \"k8s.io/client-go/rest\"\n"},
		{"grant and", "grant/a_test.go", true, "package grant\nimport _ \"github.com/rogpeppe/go-internal/txtar\" // <-\n"},
		{"grant and", "internal/bridge/wire/a.go", true, "package wire\nimport _ \"golang.org/x/crypto/hkdf\" // <-\n"},
		{"grant and", "grant/a.go", true, "package grant\nimport _ \"github.com/datalayer/node-mounts/internal/plan\" // <-\n"},
		{"grant and", "grant/a_test.go", true, "package grant_test\nimport _ \"github.com/datalayer/node-mounts/internal/plan\" // <-\n"},
		{"grant and", "grant/a_test.go", false, "package grant_test\nimport _ \"github.com/datalayer/node-mounts/grant\"\n"},
		{"grant and", "grant/a.go", false, "package grant\nimport _ \"encoding/json\"\n"},
		{"grant and", "internal/bridge/relay/a.go", false, "package relay\nimport _ \"golang.org/x/crypto/hkdf\"\n"},

		{"plan and", "internal/plan/a.go", true, "package plan\nimport _ \"os\" // <-\n"},
		{"plan and", "grant/a.go", true, "package grant\nimport _ \"os/exec\" // <-\n"},
		{"plan and", "internal/plan/a.go", true, "package plan\nimport _ \"net/http\" // <-\n"},
		{"plan and", "internal/plan/a.go", true, "package plan\nimport _ \"golang.org/x/sys/unix\" // <-\n"},
		{"plan and", "internal/plan/a.go", true, "package plan\nimport \"time\"\nfunc f() time.Time { return time.Now() } // <-\n"},
		{"plan and", "internal/plan/a.go", false, "package plan\nimport \"time\"\nimport _ \"net/netip\"\nconst limit = time.Second\n"},
		{"plan and", "grant/a_test.go", false, "package grant\nimport _ \"os\"\n"},

		{"internal/agent", "internal/agent/a_test.go", true, "package agent\nimport _ \"k8s.io/client-go/kubernetes/fake\" // <-\n"},
		{"internal/agent", "internal/agent/a.go", true, "package agent\nimport _ \"github.com/datalayer/node-mounts/internal/kube\" // <-\n"},
		{"internal/agent", "internal/agent/a.go", false, "package agent\nimport _ \"github.com/datalayer/node-mounts/internal/mnt\"\n"},

		{"package names", "internal/util/a.go", true, "package util\n"},
		{"package names", "internal/common/a.go", true, "package mounts\n"},
		{"package names", "pkg/mnt/a.go", true, "package mnt\n"},
		{"package names", "internal/mnt/utility.go", false, "package mnt\n"},

		{"files", "internal/mnt/a.go", true, long("package mnt", 500, "")},
		{"files", "cmd/node-mounts/main.go", true, long("package main", 100, "")},
		{"files", "internal/mnt/a.go", false, long("package mnt", 499, "")},
		{"files", "internal/mnt/a_test.go", false, long("package mnt", 900, "")},
		{"files", "cmd/node-mounts/main.go", false, long("package main", 99, "")},

		{"functions", "internal/mnt/a.go", true, long("package mnt\nfunc f() { // <-", 69, "}\n")},
		{"functions", "internal/mnt/a.go", false, long("package mnt\nfunc f() {", 68, "}\n")},
		{"functions", "internal/mnt/a_test.go", false, long("package mnt\nfunc f() {", 200, "}\n")},

		{"there is no init", "internal/mnt/a_test.go", true, "package mnt\nfunc init() {} // <-\n"},
		{"there is no init", "internal/mnt/a.go", false, "package mnt\ntype t int\nfunc (t) init() {}\n"},

		{"tests do not sleep", "internal/mnt/a_test.go", true, "package mnt\nimport clock \"time\"\nfunc f() { clock.Sleep(1) } // <-\n"},
		{"tests do not sleep", "internal/mnt/a.go", false, "package mnt\nimport \"time\"\nfunc f() { time.Sleep(1) }\n"},

		{"no package-level", "internal/mnt/a.go", true, "package mnt\nvar f func() // <-\n"},
		{"no package-level", "internal/mnt/a.go", true, "package mnt\nvar f = func() {} // <-\n"},
		{"no package-level", "internal/mnt/a.go", true, "package mnt\nfunc g() {}\nvar f = g // <-\n"},
		{"no package-level", "internal/mnt/a.go", true, "package mnt\nimport \"time\"\nvar now = time.Now // <-\n"},
		{"no package-level", "internal/mnt/a.go", true, "package mnt\n" + unix + "var sync = unix.Sync // <-\n"},
		{"no package-level", "internal/mnt/a.go", false, "package mnt\nimport \"io\"\nvar errEnd = io.EOF\nfunc g() int { return 1 }\nvar v = g()\n"},
		{"no package-level", "internal/mnt/a.go", false, "package mnt\nfunc g() { var f = func() {}; f() }\n"},

		{"plan.Mount", "internal/plan/a.go", true, "package plan\ntype Mount struct {\n\tsource string\n\tTarget string // <-\n}\n"},
		{"plan.Mount", "internal/beneath/a.go", true, "package beneath\nimport \"os\"\ntype Dir struct {\n\tos.File // <-\n}\n"},
		{"plan.Mount", "internal/plan/a.go", true, "package plan\ntype Mount = map[string]string // <-\n"},
		{"plan.Mount", "internal/plan/a.go", false, "package plan\ntype Mount struct{ source string }\ntype Step struct{ Target string }\n"},
	}
}
