# Everything a contributor runs. `make help` lists it; CONTRIBUTING.md explains it.
#
# One set of build flags everywhere: two sets would compile every dependency
# twice. No cgo: the binaries are static, and a machine needs Go and nothing else.

export CGO_ENABLED := 0

GO      ?= go
CACHE   ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/node-mounts
BINS    := $(notdir $(wildcard cmd/*))

# Programs of modules of their own: their dependencies are many, and the agent, whose
# code is as root, has none of them.
RUNNERS := $(notdir $(patsubst %/,%,$(dir $(wildcard runners/*/go.mod))))
PROGRAMS := $(BINS) $(RUNNERS:%=node-mounts-%)

# Every module but the first, whose tests and code are looked at as its are; by
# tools/gotest too.
export MODULES := tools runners/s3 test/s3server

# The tools are built once per set of versions and Go release, outside the tree:
# compiling the linter takes minutes, and a clean checkout should not pay twice.
TOOLS_ID := $(shell { cat tools/go.sum; $(GO) env GOVERSION; } | sha256sum | cut -c1-12)
TOOLS    := $(CACHE)/tools-$(TOOLS_ID)

# etcd, kube-apiserver and the other components of Kubernetes, for tests. They are
# one program, compiled once per set of versions; where KUBEBUILDER_ASSETS is set
# already, what lies there is used.
KUBERNETES_ID      := $(shell { cat test/kubernetes/go.sum test/kubernetes/main.go; $(GO) env GOVERSION; } | sha256sum | cut -c1-12)
KUBERNETES         := $(CACHE)/kubernetes-$(KUBERNETES_ID)
KUBERNETES_VERSION  = $(shell cd test/kubernetes && $(GO) list -m -f '{{.Version}}' k8s.io/kubernetes)
KUBERNETES_NAMES   := etcd kube-apiserver kubelet kube-controller-manager kube-scheduler kubectl
KUBEBUILDER_ASSETS ?= $(KUBERNETES)

# The image of `make image`, and for which machines: amd64 or arm64.
IMAGE   ?= ghcr.io/datalayer/node-mounts
VERSION  = $(or $(shell git describe --tags --always --dirty 2>/dev/null),unknown)
TAG     ?= $(VERSION)
ARCH    ?= $(shell $(GO) env GOARCH)

# promtool and Prometheus as Debian has them, unpacked beside it.
PROMETHEUS := $(CACHE)/debs-prometheus

# Seconds each fuzz target runs for in `make fuzz`.
FUZZTIME ?= 10s

.DEFAULT_GOAL := help

.PHONY: help
help: ## list what there is
	@awk 'BEGIN {FS = ":.*## "} /^[a-z][a-z0-9-]*:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# A runner is compiled with the flags that the tests use too: twice is once too often.
runner = $(GO) build -C runners/$(2) -trimpath -ldflags '-s -w' -o $(CURDIR)/$(1)/node-mounts-$(2) .

.PHONY: build
build: ## compile the commands and the runners into bin/
	@mkdir -p bin
	$(GO) build -o bin/ $(addprefix ./cmd/,$(BINS))
	@for r in $(RUNNERS); do $(call runner,bin,$$r) || exit; done

.PHONY: binaries
binaries: ## compile the programs as the image has them, into bin/linux-ARCH/ (ARCH=arm64)
	@mkdir -p bin/linux-$(ARCH) && find bin/linux-$(ARCH) -type f $(PROGRAMS:%=! -name %) -delete
	GOOS=linux GOARCH=$(ARCH) $(GO) build -ldflags '-s -w' -o bin/linux-$(ARCH)/ $(addprefix ./cmd/,$(BINS))
	@for r in $(RUNNERS); do GOOS=linux GOARCH=$(ARCH) $(call runner,bin/linux-$(ARCH),$$r) || exit; done

.PHONY: image
image: binaries ## build the container image without Docker: bin/image-ARCH.tar (root)
	@tools/agent-image $(ARCH) $(CACHE) $(IMAGE):$(TAG) bin/image-$(ARCH).tar

.PHONY: test-images
test-images: ## build the images of the tests' Pods into bin/test-images/
	@tools/testimages bin/test-images $(CACHE)

.PHONY: demo
demo: build ## grant, change and revoke folders in a running sandbox, on this machine (root)
	@bin/node-mounts demo

.PHONY: test
test: $(TOOLS)/gotestsum kubernetes ## run every test, on the kernel and a real API server too (root)
	@tools/debs $(PROMETHEUS) prometheus
	@KUBEBUILDER_ASSETS=$(KUBEBUILDER_ASSETS) PROMTOOL=$(PROMETHEUS)/usr/bin/promtool tools/test $(TOOLS)/gotestsum

# containerd, runc and the network plugins as Debian has them, unpacked beside it.
NODE_DEBS := $(CACHE)/debs-node
# The programs of an NFS server, for one of the virtual machines.
NFS_DEBS  := $(CACHE)/debs-nfs
# Kernels of other releases, for virtual machines.
KERNELS   := $(CACHE)/kernels

.PHONY: e2e
e2e: $(TOOLS)/gotestsum kubernetes image test-images ## run the tests on a real node (root; E2E="-run Reboot" for some)
	@tools/debs $(NODE_DEBS) containerd runc containernetworking-plugins
	@tools/debs $(PROMETHEUS) prometheus
	@tools/debs -r $(NFS_DEBS) nfs-kernel-server
	@test/vm/kernels $(KERNELS)
	@KUBEBUILDER_ASSETS=$(KUBEBUILDER_ASSETS) NODE_MOUNTS_DEBS=$(NODE_DEBS) NODE_MOUNTS_IMAGES=$(CURDIR)/bin/test-images \
		NODE_MOUNTS_AGENT_ARCHIVE=$(CURDIR)/bin/image-$(ARCH).tar NODE_MOUNTS_AGENT_IMAGE=$(IMAGE):$(TAG) \
		NODE_MOUNTS_COMMANDS=$(CURDIR)/bin/linux-$(ARCH) NODE_MOUNTS_KERNELS=$(KERNELS) NODE_MOUNTS_NFS=$(NFS_DEBS) NODE_MOUNTS_PROMETHEUS=$(PROMETHEUS) \
		tools/e2e $(TOOLS)/gotestsum $(E2E)

.PHONY: check
check: check-format check-vet check-lint check-modules check-docs ## format, vet, lint, modules and generated pages

.PHONY: check-format
check-format: $(TOOLS)/gofumpt
	@out=$$($(TOOLS)/gofumpt -l .); \
	if [ -n "$$out" ]; then \
		echo "not gofumpt-formatted; run 'make format':"; echo "$$out"; exit 1; \
	fi

.PHONY: check-vet
check-vet:
	$(GO) vet ./...
	@for m in $(MODULES); do (set -x; $(GO) -C $$m vet ./...) || exit; done

.PHONY: check-lint
check-lint: $(TOOLS)/golangci-lint
	$(TOOLS)/golangci-lint run ./...
	@for m in $(MODULES); do (set -x; cd $$m && $(TOOLS)/golangci-lint run ./...) || exit; done

.PHONY: check-modules
check-modules:
	$(GO) mod tidy -diff
	@for m in $(MODULES) test/kubernetes; do (set -x; $(GO) -C $$m mod tidy -diff) || exit; done

.PHONY: check-docs
check-docs:
	$(GO) run ./internal/docgen -check

.PHONY: format
format: $(TOOLS)/gofumpt ## gofumpt every Go file
	$(TOOLS)/gofumpt -w .

.PHONY: docs
docs: ## write docs/reference/ from the code's own tables
	$(GO) run ./internal/docgen

.PHONY: bench
bench: kubernetes ## compare a grant with the bare calls and a bare round trip: docs/performance.md (root)
	KUBEBUILDER_ASSETS=$(KUBEBUILDER_ASSETS) $(GO) test -run '^$$' -bench '^BenchmarkReport$$' -benchtime 1x -timeout 30m \
		./test/bench -args -report "$(CURDIR)/docs/performance.md"

.PHONY: fuzz
fuzz: ## run every fuzz target for a few seconds (FUZZTIME=10s)
	@tools/fuzz $(FUZZTIME)

.PHONY: soak
soak: ## repeat what only shows after many sessions, kills and replacements (root; about 15 minutes)
	NODE_MOUNTS_SOAK=1 $(GO) test -count=1 -timeout 30m ./test/buckets
	NODE_MOUNTS_SOAK=1 $(GO) -C runners/s3 test -count=1 -timeout 30m .

.PHONY: clean
clean: ## remove bin/ (the tools stay in the cache)
	rm -rf bin

.PHONY: kubernetes
kubernetes: ## compile the Kubernetes that tests run, once: 10 to 15 minutes on two cores
ifeq ($(KUBEBUILDER_ASSETS),$(KUBERNETES))
kubernetes: $(KUBERNETES)/kubernetes
endif

# The version is linked in as upstream's own build does: kubectl and the API
# server compare it. GOGC: memory is plenty here, cores are not.
$(KUBERNETES)/kubernetes:
	@mkdir -p $(KUBERNETES)
	@echo "building Kubernetes $(KUBERNETES_VERSION) (once, 10 to 15 minutes on two cores; kept in $(KUBERNETES))"
	@cd test/kubernetes && version=$(KUBERNETES_VERSION) && minor=$${version#v1.} && minor=$${minor%%.*} && \
	X=k8s.io/component-base/version && \
	GOGC=400 $(GO) build -ldflags "-s -w -X $$X.gitVersion=$$version -X $$X.gitMajor=1 -X $$X.gitMinor=$$minor" -o $@.$$$$ . && \
	for name in $(KUBERNETES_NAMES); do ln -sfn kubernetes $(KUBERNETES)/$$name; done && mv $@.$$$$ $@

# Built to a name of its own and renamed, so that an interrupted build leaves no
# half-written tool that a later run would take for a finished one.
$(TOOLS)/golangci-lint: PACKAGE = github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(TOOLS)/gofumpt:       PACKAGE = mvdan.cc/gofumpt
$(TOOLS)/gotestsum:     PACKAGE = gotest.tools/gotestsum
$(TOOLS)/%:
	@mkdir -p $(TOOLS)
	@echo "building $* (once; kept in $(TOOLS))"
	@cd tools && $(GO) build -o $(TOOLS)/.$*.$$$$ $(PACKAGE) && mv $(TOOLS)/.$*.$$$$ $(TOOLS)/$*
