package fastpath

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	_ "github.com/coredns/coredns/plugin/bind"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"

	"github.com/nearside-dns/nearside/plugin/internal/block"
)

// testPlugin is the name of a plugin of the tests that permits the fast path.
const testPlugin = "kubernetes"

func init() {
	plugin.Register(testPlugin, func(c *caddy.Controller) error {
		block.Of(c)
		dnsserver.GetConfig(c).AddPlugin(func(plugin.Handler) plugin.Handler { return answerer{} })
		return nil
	})
}

// answerer answers every query with an address.
type answerer struct{}

func (answerer) Name() string { return testPlugin }

func (answerer) ServeDNS(_ context.Context, w dns.ResponseWriter, m *dns.Msg) (int, error) {
	reply := addressReply(m.Question[0].Name, 1)
	reply.Id = m.Id
	return dns.RcodeSuccess, w.WriteMsg(reply)
}

// corefileOf returns a Corefile with one server block.
func corefileOf(lines ...string) caddy.CaddyfileInput {
	text := ".:53 {\n" + strings.Join(lines, "\n") + "\n" + testPlugin + "\n}\n"
	return caddy.CaddyfileInput{Contents: []byte(text), ServerTypeName: serverType}
}

// TestReloadWithDetachedSocket reloads after the listener of the present configuration was closed, as if the next one
// started later than stopTimeout: the next configuration inherits CoreDNS's sockets, which are detached.
func TestReloadWithDetachedSocket(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	kit.Must(t, dnsserver.SetDirectives([]string{"bind", pluginName, testPlugin}))
	for _, bind := range []string{"bind 127.0.0.1 ::1", "bind 0.0.0.0 ::", ""} {
		for _, next := range []string{"fastpath on", "fastpath off"} {
			t.Run(bind+", "+next, func(t *testing.T) {
				inst, err := caddy.Start(corefileOf(bind))
				if err != nil {
					t.Fatal(err)
				}
				for _, host := range []string{"127.0.0.1", "::1"} {
					if err := checkAnswer(host); err != nil {
						t.Errorf("at the start: %v", err)
					}
				}
				awaitListeners(t, max(1, strings.Count(bind, " ")))
				Stop()
				if checkAnswer("127.0.0.1") == nil {
					t.Error("CoreDNS's socket is not detached")
				}
				if inst, err = inst.Restart(corefileOf(bind, next)); err != nil {
					t.Fatal(err)
				}
				for _, host := range []string{"127.0.0.1", "::1"} {
					if err := checkAnswer(host); err != nil {
						t.Errorf("after a reload: %v", err)
					}
				}
				Stop()
				if err := inst.Stop(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// awaitListeners waits until a number of listeners is open.
func awaitListeners(t *testing.T, want int) {
	t.Helper()
	kit.Eventually(t, fmt.Sprintf("%d listeners", want), func() bool {
		process.mu.Lock()
		defer process.mu.Unlock()
		return len(process.listeners) == want
	})
}

// checkAnswer sends queries to an address from several ports until there is an answer to one.
func checkAnswer(host string) error {
	m := new(dns.Msg).SetQuestion("a.test.", dns.TypeA)
	var err error
	for range 5 {
		c := dns.Client{Timeout: patience / 10}
		var reply *dns.Msg
		if reply, _, err = c.Exchange(m, net.JoinHostPort(host, "53")); err == nil {
			if len(reply.Answer) != 1 {
				return fmt.Errorf("%s answers %v", host, reply)
			}
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}
