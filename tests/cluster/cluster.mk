# Files of the tests in `tests/cluster`: a real Kubernetes, Helm, programs of Debian, and images.
CLUSTER := build/cluster
CLUSTER_SOURCES := tests/cluster/programs
KUBERNETES := kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubectl kubelet
KUBERNETES_VERSION := $(shell sed -n 's|^\tk8s.io/kubernetes ||p' $(CLUSTER_SOURCES)/kubernetes/go.mod)
VERSION_FLAG := -X k8s.io/component-base/version.gitVersion=$(KUBERNETES_VERSION)
# Version of Kubernetes for which `helm template` renders a chart.
HELM_FLAGS := -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 \
  -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=$(word 2,$(subst ., ,$(KUBERNETES_VERSION)))
CLUSTER_PACKAGES := containerd containernetworking-plugins etcd-server iptables libip4tc2 libip6tc2 libmnl0 \
  libnetfilter-conntrack3 libnfnetlink0 libnftnl11 libxtables12 mmdebstrap runc
BUILD_IMAGE := PATH="$(abspath $(CLUSTER)/debian/usr/bin):$$PATH" $(PYTHON) deploy/container/build_image.py --cache $(CLUSTER)/layers

.PHONY: test-cluster cluster-proofs cluster-files
test-cluster: build ## The tests on a real Kubernetes of two nodes (15 minutes, first time: 27 minutes)
	@$(MAKE) --no-print-directory --jobs 3 cluster-files
	$(BIN)/pytest -m "cluster and not proof" -n 0 tests/cluster tests/placement

cluster-proofs: build ## The long proofs on that Kubernetes: lost nodes, kills, an API server that is away
	@$(MAKE) --no-print-directory --jobs 3 cluster-files
	$(BIN)/pytest -m "cluster and proof" -n 0 tests/cluster

cluster-files: $(addprefix $(CLUSTER)/bin/,kubernetes helm pause) $(addprefix $(CLUSTER)/images/,pause.tar runner.tar service.tar)

# One file for all programs. Their links have its name.
$(CLUSTER)/bin/kubernetes: $(addprefix $(CLUSTER_SOURCES)/kubernetes/,main.go go.mod go.sum)
	@mkdir -p $(@D)
	@CGO_ENABLED=0 scripts/step "Kubernetes" $(CLUSTER)/kubernetes.log go build -C $(<D) -trimpath -ldflags "-s -w $(VERSION_FLAG)" -o $(abspath $@) .
	@for name in $(KUBERNETES); do ln -sf $(@F) $(@D)/$$name; done

$(CLUSTER)/bin/helm: $(addprefix $(CLUSTER_SOURCES)/helm/,go.mod go.sum)
	@mkdir -p $(@D)
	@CGO_ENABLED=0 scripts/step "Helm" $(CLUSTER)/helm.log go build -C $(<D) -trimpath -ldflags "-s -w $(HELM_FLAGS)" -o $(abspath $@) helm.sh/helm/v3/cmd/helm

# Simulated nodes for the benchmark `kubernetes-nodes`. The tests do not need them.
$(CLUSTER)/bin/kwok: $(addprefix $(CLUSTER_SOURCES)/kwok/,go.mod go.sum)
	@mkdir -p $(@D)
	@CGO_ENABLED=0 scripts/step "kwok" $(CLUSTER)/kwok.log go build -C $(<D) -trimpath -ldflags "-s -w" -o $(abspath $@) sigs.k8s.io/kwok/cmd/kwok

$(CLUSTER)/bin/pause: $(CLUSTER_SOURCES)/pause.c
	@mkdir -p $(@D)
	@cc -std=c11 -D_DEFAULT_SOURCE -Os -static -s -Wall -Wextra -Werror -o $@ $<

$(CLUSTER)/debian/.fetched: tests/cluster/fetch-packages tests/cluster/cluster.mk
	@scripts/step "programs of Debian" $(CLUSTER)/debian.log tests/cluster/fetch-packages $(@D) $(CLUSTER_PACKAGES)
	@touch $@

$(CLUSTER)/images/pause.tar: $(CLUSTER_SOURCES)/pause.Containerfile $(CLUSTER)/bin/pause
	@$(BUILD_IMAGE) $< $@ --name localhost/pause:1 --add $(CLUSTER)/bin/pause=/pause

$(CLUSTER)/images/runner.tar: deploy/container/runner.Containerfile deploy/container/build_image.py $(CLUSTER)/debian/.fetched
	@$(BUILD_IMAGE) $< $@ --name localhost/hosting-runner:1 >$(CLUSTER)/runner.log 2>&1 || { cat $(CLUSTER)/runner.log; exit 1; }

# The packages that the Containerfile installs in its first stage. The service is that of `make build`.
$(CLUSTER)/packages/.installed: requirements/run.lock $(shell find clients/cli/src -name '*.py')
	@rm -rf $(@D)
	@scripts/step "packages of the image" $(CLUSTER)/packages.log $(BIN)/pip install --disable-pip-version-check --target $(@D) --require-hashes -r requirements/run.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --upgrade --target $(@D) --no-deps --no-build-isolation clients/cli
	@touch $@

$(CLUSTER)/images/service.tar: deploy/container/service.Containerfile deploy/container/build_image.py $(CLUSTER)/debian/.fetched $(CLUSTER)/packages/.installed $(shell find pyservice -name '*.py' -o -name '*.so' -o -path '*/bin/*')
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m compileall -q pyservice
	@$(BUILD_IMAGE) $< $@ --name localhost/hosting:1 --add $(CLUSTER)/packages=/opt/hosting/packages --add pyservice=/opt/hosting/packages/pyservice >$(CLUSTER)/service.log 2>&1 || { cat $(CLUSTER)/service.log; exit 1; }
