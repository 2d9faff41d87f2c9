package main

import (
	"context"
	"fmt"
)

// kubeadmCorefile is the one that kubeadm writes, on loopback. Arguments: the DNS port, the ports of
// health, ready and prometheus, the API server, the port of the world outside, what else is wanted.
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

// startStock starts the cluster DNS servers with kubeadm's Corefile. Nothing of what is asked is for
// the world outside, which echoes.
func (b *bench) startStock(ctx context.Context) (err error) {
	outside := freePort()
	if b.outside, err = b.launchEcho(ctx, loadCore, outside); err != nil {
		return err
	}
	for _, beside := range b.servers {
		s := &server{name: beside.name, port: freePort()}
		path := b.clusterdns
		if s.name == nameCoreDNS {
			path = b.coredns
		}
		conf := fmt.Sprintf(kubeadmCorefile, s.port, freePort(), freePort(), freePort(), b.url, outside, b.profiled(s))
		if err := b.run(ctx, s, path, conf, "-conf"); err != nil {
			return err
		}
		b.stock = append(b.stock, s)
		if err := b.synced(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) stopStock() {
	for _, s := range b.stock {
		s.stop()
	}
	b.stock = nil
	if b.outside != nil {
		b.outside.stop()
		b.outside = nil
	}
}
