package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/bench/generated"
)

// withImports adds ServiceImports to a Corefile.
var withImports = strings.NewReplacer(
	"cluster.local in-addr.arpa", "cluster.local clusterset.local in-addr.arpa",
	"ttl 30", "ttl 30\n        multicluster clusterset.local")

// corefile returns the Corefile for servers that read this cluster.
func (w world) corefile(text string) string {
	if w.imports {
		return withImports.Replace(text)
	}
	return text
}

// importKinds are the queries for the cluster DNS servers that read imports.
var importKinds = []kind{
	{"ClusterSetIP A", true, nil, false, func(g generated.Cluster, n int) (string, uint16, int, int) {
		return importName(someImport(g, n, false)), dns.TypeA, dns.RcodeSuccess, 1
	}},
	{"headless import A, 10 endpoints", true, nil, false, func(g generated.Cluster, n int) (string, uint16, int, int) {
		return importName(someImport(g, n, true)), dns.TypeA, dns.RcodeSuccess, generated.ImportEndpoints
	}},
	{"host.cluster A", true, nil, false, func(g generated.Cluster, n int) (string, uint16, int, int) {
		i := someImport(g, n, true)
		host, cluster := i.Endpoint(n / g.Imports % generated.ImportEndpoints)
		return host + "." + cluster + "." + importName(i), dns.TypeA, dns.RcodeSuccess, 1
	}},
	{"headless import SRV, 10 endpoints", true, nil, false, func(g generated.Cluster, n int) (string, uint16, int, int) {
		return "_http._tcp." + importName(someImport(g, n, true)), dns.TypeSRV, dns.RcodeSuccess, generated.ImportEndpoints
	}},
	{"NXDOMAIN of a Service that is not imported", true, nil, false, func(g generated.Cluster, n int) (string, uint16, int, int) {
		s := g.Service(n % g.Services)
		return clustersetName(s.Name, s.Namespace), dns.TypeA, dns.RcodeNameError, 0
	}},
}

func clustersetName(name, namespace string) string {
	return name + "." + namespace + ".svc.clusterset.local."
}

func importName(i generated.Import) string { return clustersetName(i.Name, i.Namespace) }

// someImport returns the first import from the n-th on that is headless, or is not.
func someImport(g generated.Cluster, n int, headless bool) generated.Import {
	for ; ; n++ {
		if i := g.Import(n % g.Imports); i.Headless == headless {
			return i
		}
	}
}

// fewestImports is the number of imports of which one is headless.
const fewestImports = 10

const memoryImports = "after the first sync, with imports"

// measureImports compares servers that read a cluster with imports.
func (b *bench) measureImports(ctx context.Context) error {
	b.imported = world{imports: true}
	defer b.imported.stop()
	if err := b.startWorld(ctx, &b.imported); err != nil {
		return err
	}
	loads, err := b.drawAll(importKinds)
	if err != nil {
		return err
	}
	if err := b.measureImportsAlone(ctx, loads); err != nil {
		return err
	}
	return b.measureStock(ctx, b.imported, loads)
}

// measureImportsAlone measures the servers with *kubernetes* alone, and their memory.
func (b *bench) measureImportsAlone(ctx context.Context, loads []*load) error {
	defer b.stopBeside()
	if err := b.startBeside(ctx, b.imported, func(s *server) string { return b.alone(s, b.imported) }); err != nil {
		return err
	}
	if err := b.memoryAtRest(ctx, b.beside, memoryImports); err != nil {
		return err
	}
	return b.measureRounds(ctx, b.beside, loads, b.queries)
}

// reportImports writes the tables. Memory without imports is that of the first servers.
func (b *bench) reportImports(text *strings.Builder) {
	kinds := names(importKinds)
	title := fmt.Sprintf("%d imports, ", b.cluster.Imports)
	b.table(text, title+"*kubernetes* alone: CPU per query, us", nameClusterDNS, "%.2f", "", kinds)
	b.table(text, title+"kubeadm's Corefile: CPU per query, us", nameClusterDNS, "%.2f", stockPrefix, kinds)
	b.table(text, "resident memory, MiB", nameClusterDNS, "%.0f", "", []string{memorySync, memoryImports})
}
