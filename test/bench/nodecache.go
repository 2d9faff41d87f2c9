package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/fakeapi"
)

const (
	memoryRest  = "node cache at rest"
	memoryTrial = "node cache after the queries"
)

// stockCorefile is that of node-local-dns, without health: its two programs would share the port.
// Arguments: the DNS port, the metrics port, the port of cluster DNS.
const stockCorefile = `cluster.local:%[1]d {
    errors
    cache {
        success 9984 30
        denial 9984 5
    }
    reload
    loop
    bind 127.0.0.1
    forward . 127.0.0.1:%[3]d {
        force_tcp
    }
    prometheus 127.0.0.1:%[2]d
}
in-addr.arpa:%[1]d ip6.arpa:%[1]d .:%[1]d {
    errors
    cache 30
    reload
    loop
    bind 127.0.0.1
    forward . 127.0.0.1:%[3]d {
        force_tcp
    }
    prometheus 127.0.0.1:%[2]d
}
`

// cacheHit asks for few enough names that the cache has them all.
var cacheHit = kind{"node cache: cached A", func(g fakeapi.Generated, n int) (string, uint16, int, int) {
	const names = 1000
	return serviceName(clusterIP(g, n%names)), dns.TypeA, dns.RcodeSuccess, 1
}}

// startCaches starts the node caches, with clusterdns behind them.
func (b *bench) startCaches(ctx context.Context) error {
	upstream := 0
	for _, s := range b.servers {
		if s.name == "clusterdns" {
			upstream = s.port
		}
	}
	for name, path := range map[string]string{"nodecache": b.cache, "CoreDNS": b.coredns} {
		port := freePort()
		conf := filepath.Join(b.folder, name+"-cache.Corefile")
		if err := os.WriteFile(conf, fmt.Appendf(nil, stockCorefile, port, freePort(), upstream), 0o600); err != nil {
			return err
		}
		p, err := launch(ctx, serverCore, b.folder, path, "-conf", conf)
		if err != nil {
			return err
		}
		b.caches = append(b.caches, &server{name, port, p})
		first := b.cluster.Service(0)
		if err := await(ctx, time.Minute, name, func() bool { return answers(port, serviceName(first)) }); err != nil {
			return err
		}
	}
	return nil
}

// measureCaches fills in the results of the node caches.
func (b *bench) measureCaches(ctx context.Context) error {
	if err := b.startCaches(ctx); err != nil {
		return err
	}
	time.Sleep(settle / 4)
	if err := b.memoryOf(b.caches, memoryRest); err != nil {
		return err
	}
	questions, err := packets(b.cluster, cacheHit)
	if err != nil {
		return err
	}
	for round := range b.rounds {
		for i := range b.caches {
			s := b.caches[(i+round)%len(b.caches)]
			if err := b.measureCPU(ctx, cacheHit, s, questions); err != nil {
				return fmt.Errorf("%s, %s: %w", s.name, cacheHit.name, err)
			}
		}
	}
	return b.memoryOf(b.caches, memoryTrial)
}

func (b *bench) memoryOf(servers []*server, when string) error {
	for _, s := range servers {
		now, _, err := s.memory()
		if err != nil {
			return err
		}
		b.results.add(when, s.name, now)
	}
	return nil
}

// reportCaches writes the table of the node caches.
func (b *bench) reportCaches(text *strings.Builder) {
	text.WriteString("\n| node cache | nodecache | CoreDNS | ratio |\n|---|---|---|---|\n")
	b.row(text, cacheHit.name+", CPU per query, us", cacheHit.name, "nodecache", "%.1f")
	for _, when := range []string{memoryRest, memoryTrial} {
		b.row(text, when+", resident MiB", when, "nodecache", "%.1f")
	}
}
