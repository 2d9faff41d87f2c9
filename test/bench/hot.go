package main

import (
	"context"
	"fmt"

	"github.com/nearside-dns/nearside/test/bench/child"
)

// hotCorefile is a cache for an hour, so that names remain in it for a whole run. Arguments: the DNS port, the port of the
// upstream server, the metrics port, further directives.
const hotCorefile = `.:%d {
    bind 127.0.0.1
    errors
    cache 3600
    reload
    loop
    forward . 127.0.0.1:%d {
        force_tcp
    }
    prometheus 127.0.0.1:%d%s
}
`

// unboundHot has Unbound accept as many connections as the loads open, and continue to query a dead upstream server.
const unboundHot = `    incoming-num-tcp: 1000
    so-rcvbuf: 4m
    tcp-upstream: yes
    infra-keep-probing: yes
`

// hotServers are the node caches of the parts with cached names.
var hotServers = []cache{
	{nameNodeCache, (*bench).startNodeCacheHot, true},
	{nameCoreDNS, (*bench).startCoreDNSHot, false},
	{nameUnbound, (*bench).startUnboundHot, false},
}

// hotConf is hotCorefile, with the zone of the dead upstream server if there is one.
func (b *bench) hotConf(s *server) string {
	return fmt.Sprintf(hotCorefile, s.port, s.upstream, child.FreePort(), b.profiled(s)) + b.dead.block(s.port)
}

func (b *bench) startNodeCacheHot(ctx context.Context, s *server) error {
	return b.run(ctx, s, b.nodecache, b.hotConf(s), "-conf")
}

func (b *bench) startCoreDNSHot(ctx context.Context, s *server) error {
	return b.run(ctx, s, b.coredns, b.hotConf(s), "-conf")
}

func (b *bench) startUnboundHot(ctx context.Context, s *server) error {
	path, err := b.unbound()
	if err != nil {
		return err
	}
	conf := fmt.Sprintf(unboundConf, s.port, unboundHot, b.folder, s.upstream)
	if b.dead != nil {
		conf += fmt.Sprintf(unboundDead, b.dead.port)
	}
	return b.run(ctx, s, path, conf, "-d", "-c")
}

// measureHot calls a function with the node caches, and with names that they have.
func (b *bench) measureHot(ctx context.Context, tag string, measure func(context.Context, []*server, *load) error) error {
	defer b.stopForwarders()
	if err := b.startForwarders(ctx, hotServers); err != nil {
		return err
	}
	names, err := b.hotLoad(tag)
	if err != nil {
		return err
	}
	return measure(ctx, b.forwarders, names)
}

// hotLoad makes questions for names that a cache has after each was queried once.
func (b *bench) hotLoad(tag string) (*load, error) {
	l, err := freshNames(b.folder, tag, hitQuestions)
	if err != nil {
		return nil, err
	}
	l.cached = true
	return l, nil
}
