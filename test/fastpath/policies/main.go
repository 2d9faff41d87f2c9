// Command policies is clusterdns built with plugins of CoreDNS that change which datagrams a server accepts. Input is a
// Corefile (-conf) and SIGUSR1, for a reload.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/multisocket"
	_ "github.com/coredns/coredns/plugin/proxyproto"
	_ "github.com/coredns/coredns/plugin/timeouts"
	_ "github.com/coredns/coredns/plugin/transfer"
	_ "github.com/coredns/coredns/plugin/tsig"
	_ "github.com/coredns/coredns/plugin/view"
	_ "github.com/coredns/coredns/plugin/whoami"
	"github.com/miekg/dns"

	_ "github.com/nearside-dns/nearside/plugin/cache"
	"github.com/nearside-dns/nearside/plugin/fastpath"
	_ "github.com/nearside-dns/nearside/plugin/forward"
	_ "github.com/nearside-dns/nearside/plugin/kubernetes"
)

var directives = []string{
	"timeouts", "multisocket", "bind", "proxyproto", "view", "prometheus", "errors", "loadbalance", "tsig", "fastpath", "cache", "update",
	"transfer", "kubernetes", "forward", "whoami",
}

func init() { plugin.Register("update", setupUpdate) }

// setupUpdate is the plugin update, which accepts RFC 2136 messages.
func setupUpdate(c *caddy.Controller) error {
	c.Next()
	config := dnsserver.GetConfig(c)
	config.AllowOpcode(dns.OpcodeUpdate)
	config.AddPlugin(func(next plugin.Handler) plugin.Handler { return update{next} })
	return nil
}

type update struct{ next plugin.Handler }

func (update) Name() string { return "update" }

// ServeDNS answers an update and does nothing.
func (u update) ServeDNS(ctx context.Context, w dns.ResponseWriter, m *dns.Msg) (int, error) {
	if m.Opcode != dns.OpcodeUpdate {
		return plugin.NextOrFailure(u.Name(), u.next, ctx, w, m)
	}
	return dns.RcodeSuccess, w.WriteMsg(new(dns.Msg).SetReply(m))
}

func main() {
	if len(os.Args) != 3 || os.Args[1] != "-conf" {
		log.Fatal("usage: policies -conf FILE")
	}
	if err := run(os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

// run serves until SIGTERM.
func run(conf string) error {
	if err := dnsserver.SetDirectives(directives); err != nil {
		return err
	}
	corefile, err := os.ReadFile(conf) // #nosec G304 -- of the test
	if err != nil {
		return err
	}
	input := caddy.CaddyfileInput{Filepath: conf, Contents: corefile, ServerTypeName: "dns"}
	inst, err := caddy.Start(input)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGTERM)
	for s := range signals {
		if s == syscall.SIGTERM {
			break
		}
		if input.Contents, err = os.ReadFile(conf); err != nil { // #nosec G304 -- of the test
			return err
		}
		if inst, err = inst.Restart(input); err != nil {
			return err
		}
	}
	fastpath.Stop()
	return inst.Stop()
}
