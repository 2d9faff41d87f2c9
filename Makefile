# Each target says what it installs or builds. Nothing but Go, make and a Debian package manager is
# assumed; see test/install.sh.

SHELL := /bin/bash
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo untracked)
LDFLAGS := -s -w -X github.com/nearside-dns/nearside/cmd/internal/daemon.Version=$(VERSION)
GOBUILD := CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)'

.PHONY: build image run test e2e unit lint fuzz properties bench clean

build: ## both programs, into bin/
	$(GOBUILD) -o bin/ ./cmd/...

IMAGES ?= bin/image
REPOSITORY ?= nearside
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null)
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

# Nothing of this machine and its clock gets in, so that the same commit gives the same digests.
image: ## images of both programs for linux/amd64 and linux/arm64, and what is in them, into bin/image/
	GOFLAGS=-buildvcs=false GOOS=linux GOARCH=amd64 GOAMD64=v1 $(GOBUILD) -o $(IMAGES)/linux-amd64/ ./cmd/...
	GOFLAGS=-buildvcs=false GOOS=linux GOARCH=arm64 GOARM64=v8.0 $(GOBUILD) -o $(IMAGES)/linux-arm64/ ./cmd/...
	cd deploy/image && GOWORK=off go run . -folder '$(abspath $(IMAGES))' -repository '$(REPOSITORY)' \
		-version '$(VERSION)' -revision '$(REVISION)' -created '$(SOURCE_DATE_EPOCH)'

run: build ## clusterdns on 127.0.0.1:1053 with the demo cluster of deploy/demo
	bin/clusterdns -conf Corefile.example

# Most tests run programs that they build; go does not know that, and would show what an older program did (-count=1).
# The lease of a node lasts for a second: what kills and stops its cache has the machine for itself.
test: ## every test, against real servers that are built or installed first
	test/install.sh
	NEARSIDE_REQUIRE_ALL=1 go test -count=1 -race -timeout 20m $$(go list ./... | grep -v '/test/nodelocal$$')
	NEARSIDE_REQUIRE_ALL=1 go test -count=1 -race -timeout 20m ./test/nodelocal

# A cluster of one node: etcd, the parts of Kubernetes and containerd, in namespaces of their own.
e2e: ## images and deploy/ on a real kubelet, asked from pods; needs root
	test/install.sh ip ps nft containerd runc cni etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl helm coredns
	NEARSIDE_REQUIRE_ALL=1 NEARSIDE_E2E=1 go test -count=1 -timeout 20m ./test/cluster

unit: ## the tests that need nothing installed
	go test ./...

lint: ## vet, formatting and a tidy go.mod
	@test -z "$$(gofmt -l .)" || { echo "gofmt needed:"; gofmt -l .; exit 1; }
	go vet ./...
	go mod tidy -diff
	cd deploy/image && GOWORK=off go vet ./... && GOWORK=off go mod tidy -diff

FUZZTIME ?= 1m
fuzz: ## every fuzz target for FUZZTIME
	test/fuzz.sh $(FUZZTIME)

TIME ?= 10m
properties: ## the random tests with new seeds, for TIME
	test/install.sh coredns
	test/properties.sh $(TIME)

# A peer that can't be had is named in the report; the rest is measured all the same.
bench: ## CPU per query and memory beside other servers, as printed in test/bench/RESULTS.md
	test/install.sh coredns dnsperf
	-test/install.sh unbound dnsdist
	go run ./test/bench $(BENCH)

clean:
	rm -rf bin
