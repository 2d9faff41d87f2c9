package dropin

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/coredns/caddy/caddyfile"
)

// reportPlainMetrics reports the addresses of prometheus directives that other hosts read without TLS in spite of -tls-enabled.
func (v values) reportPlainMetrics(blocks []caddyfile.ServerBlock) {
	if !v.metrics.TLS() {
		return
	}
	var addresses []string
	for _, b := range blocks {
		tokens := b.Tokens["prometheus"]
		if len(tokens) < 2 || slices.ContainsFunc(tokens, func(t caddyfile.Token) bool { return t.Text == "tls" }) {
			continue // the default address is localhost's
		}
		if address := tokens[1].Text; !isLoopback(address) && !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
	}
	if len(addresses) > 0 {
		v.report(message{info, fmt.Sprintf("prometheus %s is without TLS: -tls-enabled applies to -metrics-listen-address; set the option tls of prometheus, or an address of the loopback interface", strings.Join(addresses, " "))})
	}
}

// isLoopback reports whether only this host reaches an address with a port.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip, _ := netip.ParseAddr(host)
	return err != nil || host == "localhost" || ip.IsLoopback()
}
