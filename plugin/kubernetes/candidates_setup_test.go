package kubernetes

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	_ "github.com/nearside-dns/nearside/plugin/cache"
)

// standIn is a plugin of another name that passes every query to the next one.
type standIn struct {
	name string
	next plugin.Handler
}

func (s *standIn) Name() string { return s.name }

func (s *standIn) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	return plugin.NextOrFailure(s.name, s.next, ctx, w, r)
}

var registerStandIns = sync.OnceFunc(func() {
	for _, name := range []string{"hosts"} {
		plugin.Register(name, func(c *caddy.Controller) error {
			dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler { return &standIn{name, next} })
			return nil
		})
	}
})

// A server tries the candidates of a search list unless another plugin or another server block may answer one of them.
func TestSetup_Search(t *testing.T) {
	registerStandIns()
	dir := t.TempDir()
	kubernetes := "kubernetes cluster.local {\nmanifests " + dir + "\n}\n"
	for _, c := range []struct {
		name, corefile string
		tried          bool
	}{
		{"alone", "cluster.local:0 {\n" + kubernetes + "}", true},
		{"with a plugin that leaves names alone", "cluster.local:0 {\nlog\n" + kubernetes + "}", true},
		{"with a plugin that may have names", "cluster.local:0 {\nhosts\n" + kubernetes + "}", false},
		{"beside another block", "cluster.local:0 {\n" + kubernetes + "}\norg:0 {\nlog\n}", true},
		{"below another block", ".:0 {\nlog\n}\ncluster.local:0 {\n" + kubernetes + "}", true},
		{"with another block below one candidate", "cluster.local:0 {\n" + kubernetes + "}\nteam.svc.cluster.local:0 {\nlog\n}", false},
		{"with another block elsewhere below the zone", "cluster.local:0 {\n" + kubernetes + "}\nmail.svc.cluster.local:0 {\nlog\n}", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ask := askServer(t, c.corefile)
			m := ask(withList(t, new(dns.Msg).SetQuestion("web.team.shop.svc.cluster.local.", dns.TypeA), listShop...))
			if tried := resultOf(m) != notTried; tried != c.tried || m.Rcode != dns.RcodeNameError {
				t.Errorf("tried is %v, want %v, and NXDOMAIN; the reply is\n%v", tried, c.tried, m)
			}
		})
	}
}

// askServer starts a server and returns a function that queries it over TCP during the test.
func askServer(t *testing.T, corefile string) func(*dns.Msg) *dns.Msg {
	t.Helper()
	inst, err := run(t, corefile)
	kit.Must(t, err)
	t.Cleanup(func() {
		for _, err := range append(inst.ShutdownCallbacks(), inst.Stop()) {
			if err != nil {
				t.Error(err)
			}
		}
	})
	_, port, err := net.SplitHostPort(inst.Servers()[0].Addr().String())
	kit.Must(t, err)
	return func(r *dns.Msg) *dns.Msg {
		client := dns.Client{Net: "tcp", Timeout: 30 * time.Second}
		m, _, err := client.Exchange(r, net.JoinHostPort("127.0.0.1", port))
		kit.Must(t, err)
		return m
	}
}

// Plugin cache stores the answer to a query with a search list until its dependencies change, although its TTL is
// longer; it is not used for a query without the list, nor the other way round.
func TestSearch_BehindCache(t *testing.T) {
	dir := t.TempDir()
	manifest := func(namespace, ip string) {
		text := fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: %s}\nspec: {clusterIP: %s, ports: [{port: 80}]}\n", namespace, ip)
		kit.Must(t, os.WriteFile(dir+"/"+namespace+".yaml", []byte(text), 0o600))
	}
	manifest("team", "10.0.0.1")
	ask := askServer(t, "cluster.local:0 {\ncache 3600\nkubernetes cluster.local {\nmanifests "+dir+"\nttl 3600\n}\n}")
	plain := new(dns.Msg).SetQuestion("web.team.shop.svc.cluster.local.", dns.TypeA)
	list := withList(t, plain, listShop...)
	const behind = "web.team.shop.svc.cluster.local. 3600 IN CNAME web.team.svc.cluster.local. web.team.svc.cluster.local. 3600 IN A "
	is := func(r *dns.Msg, rcode int, says, answer string) bool {
		m := ask(r)
		return m.Rcode == rcode && resultOf(m) == says && strings.Join(texts(m.Answer), " ") == answer
	}
	for i := range 2 {
		if !is(list, dns.RcodeSuccess, listShop[1], behind+"10.0.0.1") {
			t.Errorf("with a list, time %d: %v", i, ask(list))
		}
	}
	until := time.Now().Add(time.Minute)
	manifest("team", "10.0.0.2")
	for !is(list, dns.RcodeSuccess, listShop[1], behind+"10.0.0.2") {
		if time.Now().After(until) {
			t.Fatalf("after the change: %v", ask(list))
		}
		time.Sleep(20 * time.Millisecond)
	}
	for i := range 2 {
		if !is(plain, dns.RcodeNameError, notTried, "") {
			t.Errorf("without a list, time %d: %v", i, ask(plain))
		}
		if !is(list, dns.RcodeSuccess, listShop[1], behind+"10.0.0.2") {
			t.Errorf("with a list again, time %d: %v", i, ask(list))
		}
	}
}
