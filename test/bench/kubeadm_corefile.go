package main

import (
	"context"
	"fmt"

	"github.com/nearside-dns/nearside/test/bench/child"
)

// kubeadmCorefile is kubeadm's Corefile, on loopback. Arguments: the DNS port, the ports of health, ready and
// prometheus, the API server, the port of the upstream, further directives.
const kubeadmCorefile = `.:%d {
    bind 127.0.0.1
    errors
    health 127.0.0.1:%d {
        lameduck 5s
    }
    ready 127.0.0.1:%d
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        endpoint %[5]s
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }
    prometheus 127.0.0.1:%[4]d
    forward . 127.0.0.1:%[6]d {
        max_concurrent 1000
    }
    cache 30 {
        disable success cluster.local
        disable denial cluster.local
    }
    loop
    reload
    loadbalance%[7]s
}
`

// startStock starts the cluster DNS servers with kubeadm's Corefile. No query reaches the upstream, which echoes.
func (b *bench) startStock(ctx context.Context, w world) (err error) {
	outside := child.FreePort()
	if b.outside, err = b.launchEcho(ctx, child.LoadCore, outside); err != nil {
		return err
	}
	return b.startBeside(ctx, w, func(s *server) string {
		return w.corefile(fmt.Sprintf(kubeadmCorefile, s.port, child.FreePort(), child.FreePort(), child.FreePort(), w.url, outside, b.profiled(s)))
	})
}

// stockPrefix precedes the names of the figures with kubeadm's Corefile.
const stockPrefix = "kubeadm: "

// measureStock measures the servers with that Corefile.
func (b *bench) measureStock(ctx context.Context, w world, loads []*load) error {
	defer b.stopBeside()
	if err := b.startStock(ctx, w); err != nil {
		return err
	}
	for _, l := range loads {
		l.what = stockPrefix + l.what
	}
	return b.measureRounds(ctx, b.beside, loads, b.queries)
}
