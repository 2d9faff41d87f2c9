package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nearside-dns/nearside/test/bench/child"
)

// startSmallAPI starts an API server with the small cluster. It returns its URL, and the path of a resolv.conf.
func (b *bench) startSmallAPI(ctx context.Context) (url, resolvConf string, err error) {
	if b.searchAPI, url, err = b.startAPI(ctx, searchCluster, true); err != nil {
		return "", "", err
	}
	resolvConf = filepath.Join(b.folder, "resolv.conf")
	text := "nameserver 127.0.0.1\nsearch " + strings.TrimSuffix(hostDomain, ".") + "\n"
	return url, resolvConf, os.WriteFile(resolvConf, []byte(text), 0o644)
}

// measureSmall calls a function with both cluster DNS servers, and with names of the cluster.
func (b *bench) measureSmall(ctx context.Context, measure func(context.Context, []*server, *load) error) error {
	defer b.stopSearch()
	if err := b.startSmallCluster(ctx); err != nil {
		return err
	}
	names, err := firstOnes(searchCluster, hitKinds[0], b.folder)
	if err != nil {
		return err
	}
	return measure(ctx, b.small, names)
}

// startSmallCluster starts both cluster DNS servers with kubeadm's Corefile.
func (b *bench) startSmallCluster(ctx context.Context) error {
	url, _, err := b.startSmallAPI(ctx)
	if err != nil {
		return err
	}
	for _, name := range []string{nameClusterDNS, nameClusterCoreDNS} {
		if name == nameClusterCoreDNS && b.coredns == "" {
			continue // find has recorded the reason
		}
		s := &server{name: name, port: child.FreePort()}
		if s.upstream, err = b.startUpstream(ctx); err != nil {
			return err
		}
		conf := fmt.Sprintf(kubeadmCorefile, s.port, child.FreePort(), child.FreePort(), child.FreePort(), url, s.upstream, b.profiled(s)) + b.dead.block(s.port)
		if err := b.run(ctx, s, b.binary(name), conf, "-conf"); err != nil {
			return err
		}
		b.small = append(b.small, s)
		last := serviceName(searchCluster.Service(searchCluster.Services - 1))
		if err := child.Await(ctx, time.Minute, name, func() bool { return answers(s.port, last) }); err != nil {
			return err
		}
	}
	return nil
}
