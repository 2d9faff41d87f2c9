package external

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/coredns/plugin/transfer"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/exposed"
)

// transferred returns the records of a transfer.
func transferred(t *testing.T, e *External, zone string, serial uint32) (all []dns.RR) {
	t.Helper()
	out, err := e.Transfer(zone, serial)
	kit.Must(t, err)
	for records := range out {
		all = append(all, records...)
	}
	return all
}

func TestTransfer(t *testing.T) {
	const block = "k8s_external example.org 192.in-addr.arpa {\nheadless\n}"
	e, _ := serving(t, block)
	for _, tc := range []struct {
		name, zone string
		serial     uint32
		want       []string
	}{
		{"a zone", "example.org.", 0, []string{
			soa, soa,
			"10-1-0-2.db.shop.example.org. 5 IN A 10.1.0.2", "10-1-0-2.db.shop.example.org. 5 IN SRV 0 100 5432 10-1-0-2.db.shop.example.org.",
			"_http._tcp.host.shop.example.org. 5 IN SRV 0 100 80 lb.example.net.", "_http._tcp.web.shop.example.org. 5 IN SRV 0 50 80 web.shop.example.org.",
			"_https._tcp.host.shop.example.org. 5 IN SRV 0 100 443 lb.example.net.", "_https._tcp.web.shop.example.org. 5 IN SRV 0 50 443 web.shop.example.org.",
			"_sql._tcp.db.shop.example.org. 5 IN SRV 0 50 5432 10-1-0-2.db.shop.example.org.", "_sql._tcp.db.shop.example.org. 5 IN SRV 0 50 5432 db-0.db.shop.example.org.",
			"db-0.db.shop.example.org. 5 IN A 10.1.0.1", "db-0.db.shop.example.org. 5 IN SRV 0 100 5432 db-0.db.shop.example.org.",
			"db.shop.example.org. 5 IN A 10.1.0.1", "db.shop.example.org. 5 IN A 10.1.0.2",
			"db.shop.example.org. 5 IN SRV 0 50 5432 10-1-0-2.db.shop.example.org.", "db.shop.example.org. 5 IN SRV 0 50 5432 db-0.db.shop.example.org.",
			"example.org. 5 IN NS ns1.dns.example.org.",
			"host.shop.example.org. 5 IN CNAME lb.example.net.", "host.shop.example.org. 5 IN SRV 0 50 443 lb.example.net.", "host.shop.example.org. 5 IN SRV 0 50 80 lb.example.net.",
			"ns1.dns.example.org. 5 IN A 192.0.2.53", "ns1.dns.example.org. 5 IN AAAA 2001:db8::53",
			"portly.shop.example.org. 5 IN A 192.0.2.9",
			"web.shop.example.org. 5 IN A 192.0.2.1", "web.shop.example.org. 5 IN AAAA 2001:db8::1",
			"web.shop.example.org. 5 IN SRV 0 25 443 web.shop.example.org.", "web.shop.example.org. 5 IN SRV 0 25 80 web.shop.example.org.",
		}},
		{"a reverse zone", "192.in-addr.arpa.", 0, []string{
			"1.2.0.192.in-addr.arpa. 5 IN PTR hidden.dns.example.org.", "1.2.0.192.in-addr.arpa. 5 IN PTR web.shop.example.org.",
			"192.in-addr.arpa. 5 IN NS ns1.dns.192.in-addr.arpa.",
			"192.in-addr.arpa. 5 IN SOA ns1.dns.192.in-addr.arpa. hostmaster.dns.192.in-addr.arpa. 7 7200 1800 86400 5",
			"192.in-addr.arpa. 5 IN SOA ns1.dns.192.in-addr.arpa. hostmaster.dns.192.in-addr.arpa. 7 7200 1800 86400 5",
			"9.2.0.192.in-addr.arpa. 5 IN PTR portly.shop.example.org.",
			"ns1.dns.192.in-addr.arpa. 5 IN A 192.0.2.53", "ns1.dns.192.in-addr.arpa. 5 IN AAAA 2001:db8::53",
		}},
		{"the present serial", "example.org.", 7, []string{soa}},
		{"a newer serial", "example.org.", 8, []string{soa}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			all := transferred(t, e, tc.zone, tc.serial)
			slices.Sort(tc.want)
			if got := texts(all); !slices.Equal(got, tc.want) {
				t.Errorf("records\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
			if first, last := all[0].Header().Rrtype, all[len(all)-1].Header().Rrtype; first != dns.TypeSOA || last != dns.TypeSOA {
				t.Errorf("first and last record: %s, %s", dns.TypeToString[first], dns.TypeToString[last])
			}
		})
	}
	t.Run("an older serial", func(t *testing.T) {
		if n := len(transferred(t, e, "example.org.", 6)); n < 20 {
			t.Errorf("%d records", n)
		}
	})
}

// carries returns an error if a message cannot be sent, or not be read: names of more than 255 octets are packed.
func carries(m *dns.Msg) error {
	wire, err := m.Pack()
	if err != nil {
		return err
	}
	return new(dns.Msg).Unpack(wire)
}

// TestTransfer_LongNames: a name that is too long for a message does not keep the others from secondaries.
func TestTransfer_LongNames(t *testing.T) {
	n63 := strings.Repeat("n", 63)
	zone := strings.Repeat("z", 60) + ".example."
	e, c := serving(t, "k8s_external "+zone+" 10.in-addr.arpa {\nheadless\n}")
	deep := exposed.Name{Namespace: n63, Service: n63}
	c.headless[deep] = []exposed.Target{tcp(exposed.Target{Addr: addr("10.1.0.1"), Endpoint: n63}, n63[:62], 80)}
	c.targets[exposed.Name{Namespace: n63, Service: n63[:62]}] = []exposed.Target{tcp(exposed.Target{Addr: addr("10.1.0.2")}, n63[:62], 80)}
	for _, z := range []string{zone, "10.in-addr.arpa."} {
		records := transferred(t, e, z, 0)
		for _, r := range records {
			if err := carries(&dns.Msg{Answer: []dns.RR{r}}); err != nil {
				t.Errorf("AXFR of %s fails for %v: %v", z, r, err)
			}
		}
		if z == zone && !slices.Contains(texts(records), "_http._tcp.web.shop."+zone+" 5 IN SRV 0 50 80 web.shop."+zone) {
			t.Errorf("AXFR of %s lacks another Service:\n%s", z, strings.Join(texts(records), "\n"))
		}
	}
	if err := carries(ask(t, t.Context(), e, n63+"."+n63+"."+zone+" SRV")); err != nil {
		t.Errorf("the reply to a query: %v", err)
	}
}

func TestNoTransfer(t *testing.T) {
	for _, tc := range []struct {
		name, zone string
		unsynced   bool
		want       error
	}{
		{"another zone", "example.net.", false, transfer.ErrNotAuthoritative},
		{"a name in the zone", "shop.example.org.", false, transfer.ErrNotAuthoritative},
		{"not synced", "example.org.", true, errNotSynced},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, c := serving(t, "k8s_external example.org")
			c.unsynced = tc.unsynced
			if _, err := e.Transfer(tc.zone, 0); !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
		})
	}
}
