package autopath

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/nearside"

	"github.com/miekg/dns"
)

func newController(serverType, input string) *caddy.Controller {
	return nearside.NewController(serverType, input)
}

func autoPathParse(c *caddy.Controller) (*AutoPath, string, error) {
	a, source, err := coreAutoPathParse(c)
	nearside.Parsed(c, err)
	return a, source, err
}

var program nearside.Program

// ServeDNS sends the query to the program, whose upstream is the next plugin of the test.
func (a *AutoPath) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	file, err := os.CreateTemp("", "resolv.conf-")
	if err != nil {
		return dns.RcodeServerFailure, err
	}
	fmt.Fprintf(file, "nameserver 127.0.0.1\nsearch %s\n", strings.Join(a.search, " "))
	if err := file.Close(); err != nil {
		return dns.RcodeServerFailure, err
	}
	upstream := nearside.Upstream(func() nearside.Handler { return a.Next })
	corefile := fmt.Sprintf(".:0 {\nerrors\nautopath %s %s\nforward . %s\n}\n", strings.Join(a.Zones, " "), file.Name(), upstream)
	if err := program.Use(corefile); err != nil {
		return dns.RcodeServerFailure, err
	}
	reply, err := program.Exchange(ctx, w, r)
	if err != nil {
		return dns.RcodeServerFailure, err
	}
	if plugin.ClientWrite(reply.Rcode) { // else CoreDNS's server writes the reply
		return reply.Rcode, w.WriteMsg(reply)
	}
	return reply.Rcode, nil
}
