package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/bench/child"
)

// searchSetup is the server of the pods: a node cache, or cluster DNS itself.
type searchSetup struct {
	name    string
	node    string // the node cache, if there is one
	cluster string // cluster DNS
	// autopath is set if the node cache, or else cluster DNS, expands search lists.
	autopath bool
	// coherent is set if the node cache opens sessions with cluster DNS, which accepts many.
	coherent bool
	// ttl is the TTL of names of the cluster in seconds, 0 for that of kubeadm.
	ttl int
}

// clusterExpands is set if cluster DNS does it.
func (s searchSetup) clusterExpands() bool { return s.autopath && s.node == "" }

// own is set if nothing can be measured without the setup.
func (s searchSetup) own() bool { return s.node == nameNodeCache && s.cluster == nameClusterDNS }

// The setups that budgets name.
const (
	nameExpanded    = "nodecache with autopath, clusterdns"
	nameWalked      = "nodecache, clusterdns"
	nameBothCoreDNS = "CoreDNS as node cache, CoreDNS"
)

var searchSetups = []searchSetup{
	{name: nameExpanded, node: nameNodeCache, cluster: nameClusterDNS, autopath: true},
	{name: nameWalked, node: nameNodeCache, cluster: nameClusterDNS},
	{name: "nodecache with autopath, CoreDNS", node: nameNodeCache, cluster: nameCoreDNS, autopath: true},
	{name: "nodecache, CoreDNS", node: nameNodeCache, cluster: nameCoreDNS},
	{name: nameBothCoreDNS, node: nameCoreDNS, cluster: nameCoreDNS},
	{name: "no node cache, clusterdns with autopath", cluster: nameClusterDNS, autopath: true},
	{name: "no node cache, CoreDNS with autopath", cluster: nameCoreDNS, autopath: true},
}

// nodeCorefile is that of node-local-dns, without health: the programs would share the port. Arguments: the DNS port,
// the metrics port, the ports of cluster DNS and of the upstream server, lines for the cluster's zone and for its
// forward, further directives.
const nodeCorefile = `cluster.local:%[1]d {
    errors
    cache {
        success 9984 30
        denial 9984 5
    }%[5]s
    reload
    loop
    bind 127.0.0.1
    forward . 127.0.0.1:%[3]d {
        force_tcp%[6]s
    }
    prometheus 127.0.0.1:%[2]d%[7]s
}
in-addr.arpa:%[1]d ip6.arpa:%[1]d {
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
.:%[1]d {
    errors
    cache 30
    reload
    loop
    bind 127.0.0.1
    forward . 127.0.0.1:%[4]d
    prometheus 127.0.0.1:%[2]d
}
`

// nodeCaller sends cluster DNS the node and the search list of the caller: a deployed nodecache adds it by itself.
// Argument: the node.
const nodeCaller = `
        caller %s`

// nodeAutopath reads the pods of the node from the API server. Arguments: the node, the API server, a resolv.conf.
const nodeAutopath = `
    autopath @nodelocal {
        node %s
        endpoint %s
        resolv_conf %s
    }`

// allPods and knownPods are lines of kubeadm's Corefile: with the second one the pods are watched, for *autopath*.
const (
	allPods   = "pods insecure"
	knownPods = "pods verified"
)

// searchServers are a running setup.
type searchServers struct {
	searchSetup
	cache    *server // the node cache, if there is one
	dns      *server // cluster DNS
	metrics  int     // port of cluster DNS's metrics
	upstream int     // port of the upstream server
}

// asked is the server of the pods.
func (s *searchServers) asked() *server {
	if s.cache != nil {
		return s.cache
	}
	return s.dns
}

// servers are the running ones.
func (s *searchServers) servers() []*server {
	return slices.DeleteFunc([]*server{s.cache, s.dns}, func(one *server) bool { return one == nil || one.Process == nil })
}

func (b *bench) binary(name string) string {
	switch name {
	case nameNodeCache:
		return b.nodecache
	case nameClusterDNS:
		return b.clusterdns
	}
	return b.coredns
}

// startSetups starts the API server and the setups, each with an upstream server.
func (b *bench) startSetups(ctx context.Context, setups []searchSetup) error {
	url, resolvConf, err := b.startSmallAPI(ctx)
	if err != nil {
		return err
	}
	for _, setup := range setups {
		if b.coredns == "" && (setup.node == nameCoreDNS || setup.cluster == nameCoreDNS) {
			continue // find has recorded the reason
		}
		s := &searchServers{searchSetup: setup}
		b.search = append(b.search, s)
		err := b.startSetup(ctx, s, url, resolvConf)
		if err != nil && setup.own() {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if err != nil {
			b.dropSetup(s, err)
		}
	}
	return nil
}

func (b *bench) startSetup(ctx context.Context, s *searchServers, api, resolvConf string) (err error) {
	if s.upstream, err = b.startUpstream(ctx); err != nil {
		return err
	}
	if err := b.startSearchCluster(ctx, s, api, resolvConf); err != nil {
		return err
	}
	if s.node != "" {
		if err := b.startSearchNode(ctx, s, api, resolvConf); err != nil {
			return err
		}
	}
	external, service := dns.Fqdn("started.example.com"), serviceName(searchCluster.Service(0))
	if s.autopath {
		external += podOf(0).searchList()[0]
	}
	return child.Await(ctx, 10*time.Second, "answers", func() bool {
		return answersFrom(podOf(0).address, s.asked().port, external) && answersFrom(podOf(0).address, s.asked().port, service)
	})
}

// startSearchCluster starts cluster DNS with our resolv.conf instead of the machine's: a mount that no other process
// sees.
func (b *bench) startSearchCluster(ctx context.Context, s *searchServers, api, resolvConf string) error {
	s.dns, s.metrics = &server{name: s.cluster, port: child.FreePort()}, child.FreePort()
	more, path, args := b.profiled(s.dns), b.binary(s.cluster), []string{"-conf"}
	if s.coherent {
		more += manyConnections
	}
	if s.clusterExpands() {
		more += "\n    autopath @kubernetes"
		args = append(unshare(), "sh", "-c", `mount --bind "$0" /etc/resolv.conf && exec "$@"`, resolvConf, path, "-conf")
		path, args = args[0], args[1:]
	}
	conf := fmt.Sprintf(kubeadmCorefile, s.dns.port, child.FreePort(), child.FreePort(), s.metrics, api, s.upstream, more)
	if s.clusterExpands() {
		conf = strings.Replace(conf, allPods, knownPods, 1)
	}
	if s.ttl != 0 {
		conf = strings.Replace(conf, "ttl 30", fmt.Sprintf("ttl %d", s.ttl), 1)
	}
	if s.coherent {
		conf = strings.Replace(conf, allPods, allPods+coherentOption, 1)
	}
	if err := b.run(ctx, s.dns, path, conf, args...); err != nil {
		return err
	}
	last := searchCluster.Service(searchCluster.Services - 1)
	return child.Await(ctx, time.Minute, s.cluster, func() bool { return answers(s.dns.port, serviceName(last)) })
}

// unshare is the command that runs a program with its own mounts. It needs a user namespace as well if the user is not
// root.
func unshare() []string {
	if os.Geteuid() == 0 {
		return []string{"unshare", "--mount"}
	}
	return []string{"unshare", "--map-root-user", "--mount"}
}

func (b *bench) startSearchNode(ctx context.Context, s *searchServers, api, resolvConf string) error {
	s.cache = &server{name: s.node, port: child.FreePort()}
	var expand, caller string
	if s.node == nameNodeCache {
		caller = fmt.Sprintf(nodeCaller, searchNode())
	}
	if s.coherent {
		caller += coherentOption
	}
	if s.autopath {
		expand = fmt.Sprintf(nodeAutopath, searchNode(), api, resolvConf)
	}
	conf := fmt.Sprintf(nodeCorefile, s.cache.port, child.FreePort(), s.dns.port, s.upstream, expand, caller, b.profiled(s.cache))
	return b.run(ctx, s.cache, b.binary(s.node), conf, "-conf")
}

// answersFrom is answers for a client with an address of its own.
func answersFrom(client net.IP, port int, name string) bool {
	c := dns.Client{Timeout: time.Second, Dialer: &net.Dialer{LocalAddr: &net.UDPAddr{IP: client}}}
	r, _, err := c.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	return err == nil && len(r.Answer) > 0
}

// dropSetup continues without a setup.
func (b *bench) dropSetup(s *searchServers, err error) {
	for _, one := range s.servers() {
		one.Stop()
		if text, readErr := os.ReadFile(one.Logs); readErr == nil && len(text) > 0 {
			first, _, _ := strings.Cut(string(text), "\n")
			err = fmt.Errorf("%w: %s: %s", err, one.name, first)
		}
	}
	b.miss(s.name, err)
	b.search = slices.DeleteFunc(b.search, func(other *searchServers) bool { return other == s })
}

func (b *bench) stopSearch() {
	for _, s := range b.search {
		for _, one := range s.servers() {
			one.Stop()
		}
	}
	for _, s := range b.small {
		s.Stop()
	}
	b.search, b.small = nil, nil
	b.stopUpstreams()
	if b.searchAPI != nil {
		b.searchAPI.Stop()
		b.searchAPI = nil
	}
}
