# Requires Go, make and Debian's package manager; test/install.sh installs or builds the rest.

SHELL := /bin/bash
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo untracked)
LDFLAGS := -s -w -X github.com/nearside-dns/nearside/cmd/internal/daemon.Version=$(VERSION)
GOBUILD := go build -ldflags '$(LDFLAGS)'

# Go's cache then has one build of each package for programs, linters and tests without the race detector, which needs C.
export CGO_ENABLED := 0
export GOFLAGS := $(GOFLAGS) -trimpath
RACE := CGO_ENABLED=1 NEARSIDE_REQUIRE_ALL=1 go test -count=1 -race -vet=off -ldflags=-w

.PHONY: build image release-check release release-github release-test run test e2e conformance unit lint fuzz properties history mcs clients \
	curves lives mutations upstream bench scale slo clean

build: ## both programs, into bin/
	$(GOBUILD) -o bin/ ./cmd/...

IMAGES ?= bin/image
REPOSITORY ?= nearside.invalid/nearside
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null)
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

# The machine and the time have no effect, so that the same commit gives the same digests.
image: ## images of both programs for linux/amd64 and linux/arm64, with their bills of materials, into bin/image/
	GOOS=linux GOARCH=amd64 GOAMD64=v1 $(GOBUILD) -buildvcs=false -o $(IMAGES)/linux-amd64/ ./cmd/...
	GOOS=linux GOARCH=arm64 GOARM64=v8.0 $(GOBUILD) -buildvcs=false -o $(IMAGES)/linux-arm64/ ./cmd/...
	cd deploy/image && GOWORK=off go run . -folder '$(abspath $(IMAGES))' -repository '$(REPOSITORY)' \
		-version '$(VERSION)' -revision '$(REVISION)' -created '$(SOURCE_DATE_EPOCH)'

# KEY is a key of cosign, whose password is in COSIGN_PASSWORD.
KEY ?=
VULNDB ?=
BUILDER ?= $(if $(GITHUB_WORKFLOW_REF),$(GITHUB_SERVER_URL)/$(GITHUB_WORKFLOW_REF))
RELEASE := go run ./deploy/release -version '$(VERSION)' -repository '$(REPOSITORY)' -vulndb '$(VULNDB)' $(if $(BUILDER),-builder '$(BUILDER)')

release-check: ## the files of the release VERSION, into bin/release/, as docs/releases.md describes; pushes nothing
	$(RELEASE)

release: ## the same, then pushed to REPOSITORY and signed
	$(RELEASE) -push -key '$(KEY)'

# A draft is published only with all of its files; a second run replaces them.
release-github: ## the release VERSION on GitHub with the files of bin/release/, which make release has made
	gh release view '$(VERSION)' >/dev/null || gh release create '$(VERSION)' --verify-tag --draft --title '$(VERSION)' \
		--notes-file bin/release/changes.md $(if $(findstring -,$(VERSION)),--prerelease)
	gh release upload '$(VERSION)' --clobber bin/release/*
	gh release edit '$(VERSION)' --draft=false

release-test: ## a release of a clone of the last commit, pushed to a registry on 127.0.0.1 and verified; a quarter of an hour
	test/install.sh helm
	cd deploy/image && NEARSIDE_RELEASE=1 GOWORK=off go test -count=1 -timeout 1h -v -run TestRelease .

run: build ## clusterdns on 127.0.0.1:1053 with the demo cluster of deploy/demo
	bin/clusterdns -conf Corefile.example

# -count=1: most tests run programs that they build, which Go's cache of test results does not notice. vet has its own target.
# Tests that only drive programs without the race detector (DRIVERS) have none themselves; they mostly wait, so three run at a time.
# Tests of the lease, which expires after a second, and of answers in the kernel need the whole machine, so they run alone.
# The longest suite that mostly waits is the first, so that it is not the last alone.
DRIVERS := bundle|coherence|corefiles|differential|memory|upstream
test: ## every test, beside real servers, which it installs or builds first
	test/install.sh
	$(RACE) -timeout 30m ./test/search $$(go list ./... | grep -vE '/test/(nodelocal|inkernel|search|$(DRIVERS))$$')
	NEARSIDE_REQUIRE_ALL=1 go test -count=1 -vet=off -ldflags=-w -timeout 30m -p 3 $$(go list ./... | grep -E '/test/($(DRIVERS))$$')
	$(RACE) -timeout 20m -p 1 ./test/nodelocal ./test/inkernel
	cd deploy/image && GOWORK=off go test -count=1 ./...

# A cluster of one node: etcd, the parts of Kubernetes and containerd, in namespaces of their own.
e2e: ## images and deploy/ on a real kubelet, queried from pods; needs root
	test/install.sh ip ps nft containerd runc cni etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl helm coredns
	NEARSIDE_REQUIRE_ALL=1 NEARSIDE_E2E=1 go test -count=1 -timeout 20m ./test/cluster

# CASES, an expression of go test, limits them to a cluster and a group; RESULTS.md is not written then.
CASES ?=
REPORTS ?= bin/conformance
conformance: ## Kubernetes' own e2e cases for DNS on such nodes, with CoreDNS and with nearside; an hour; needs root
	test/install.sh ip ps nft containerd runc cni etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl helm coredns \
		e2e.test agnhost dig-image
	$(if $(CASES),,rm -rf -- '$(REPORTS)')
	NEARSIDE_REQUIRE_ALL=1 NEARSIDE_E2E=1 NEARSIDE_CONFORMANCE='$(abspath $(REPORTS))' \
		go test -count=1 -timeout 3h -v -run 'TestConformance/$(CASES)' ./test/cluster; status=$$?; \
		$(if $(CASES),,go run ./test/conformance -reports '$(REPORTS)' &&) exit $$status

unit: ## tests of packages that need neither root nor an API server; under two minutes
	go test $$(go list ./cmd/... ./internal/... ./plugin/... ./docs/floors ./test/words | grep -v '/source/apiserver$$')

MODULES = $(patsubst %/go.mod,%,$(shell find . -name go.mod -not -path './bin/*'))

lint: ## vet, formatting, wording, and a tidy go.mod of each module
	@test -z "$$(gofmt -l .)" || { echo "gofmt needed:"; gofmt -l .; exit 1; }
	go vet ./...
	go run ./test/words
	for module in deploy/image examples/geoip; do (cd $$module && GOWORK=off go vet ./...) || exit 1; done
	for module in $(MODULES); do (cd $$module && GOWORK=off go mod tidy -diff) || exit 1; done

FUZZTIME ?= 1m
fuzz: ## every fuzz target for FUZZTIME, a time or a number of inputs such as 300x, from the kept inputs on
	test/fuzz/fuzz.sh $(FUZZTIME)

TIME ?= 10m
properties: ## the random tests with new seeds, for TIME
	test/install.sh coredns etcd kube-apiserver
	test/properties.sh $(TIME)

history: ## random changes, queries and faults with new seeds, for TIME: no answer of a node's cache is older than a second
	test/install.sh etcd kube-apiserver
	test/properties.sh $(TIME) ./test/coherence

mcs: ## checks of DNS of the Multi-Cluster Services API's conformance suite, and controls, as printed in test/multicluster/RESULTS.md
	test/install.sh dig ip nft busybox etcd kube-apiserver kube-controller-manager coredns
	NEARSIDE_REQUIRE_ALL=1 NEARSIDE_MCS_RESULTS=$(abspath test/multicluster/RESULTS.md) go test -count=1 -timeout 20m -run TestConformance ./test/multicluster

MESSAGES ?= 500000
SEED ?= 1
clients: ## resolvers and tools of others, and MESSAGES random messages by dnspython to each server, as printed in test/clients/RESULTS.md
	test/install.sh dig gcc musl-gcc ip nft kdig drill delv libcares node javac dnspython systemd-resolved
	NEARSIDE_REQUIRE_ALL=1 NEARSIDE_CLIENT_RESULTS=$(abspath test/clients/RESULTS.md) NEARSIDE_MESSAGES=$(MESSAGES) NEARSIDE_SEED=$(SEED) \
		go test -count=1 -timeout 2h -v ./test/clients

curves: ## responses by rate of queries, by resperf, beside CoreDNS and Unbound, as printed in test/clients/CURVES.md
	test/install.sh dig ip nft unbound coredns resperf
	NEARSIDE_REQUIRE_ALL=1 NEARSIDE_CURVES=$(abspath test/clients/CURVES.md) go test -count=1 -timeout 1h -run TestCurves ./test/clients

lives: ## kernel on under load, with random pods, reloads, updates and SIGKILLs, for TIME: no answer wrong, none lost
	test/install.sh ip nft
	NEARSIDE_REQUIRE_ALL=1 NEARSIDE_LOAD=$(TIME) go test -count=1 -timeout 2h -v -run TestRandomChanges ./test/inkernel

mutations: ## defects of the programs, which the history checker has to detect
	test/install.sh etcd kube-apiserver
	NEARSIDE_REQUIRE_ALL=1 NEARSIDE_MUTATIONS=1 go test -count=1 -timeout 1h -v -run TestMutations ./test/coherence

upstream: ## CoreDNS's own tests against both programs, as printed in test/upstream/RESULTS.md
	test/install.sh coredns
	NEARSIDE_REQUIRE_ALL=1 NEARSIDE_UPSTREAM=all go test -count=1 -timeout 1h -v -run TestUpstream ./test/upstream

# The report lists peers that could not be installed; the others are measured.
bench: ## CPU per query and memory beside other servers, as printed in test/bench/RESULTS.md
	test/install.sh coredns dnsperf etcd kube-apiserver
	-test/install.sh unbound dnsdist
	go run ./test/bench $(BENCH)

# Sizes are in test/scale/sizes.go; SCALE='-size large' has 15,000 nodes and needs 16 GB of memory.
scale: ## cluster DNS beside CoreDNS on large clusters: start, relist, restart of the API server, rolling update, changes under load
	test/install.sh coredns dnsperf etcd kube-apiserver
	go run ./test/scale $(SCALE)

# Fifteen minutes. SLO='-size large' has 15,000 nodes.
slo: ## lookups and changes as ClusterLoader2 measures them, beside CoreDNS and node-local-dns's Corefile, as printed in docs/slo.md
	test/install.sh coredns dnsperf etcd kube-apiserver
	go run ./test/scale -slo $(SLO)

clean:
	rm -rf bin
