package rules

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

var update = flag.Bool("update", false, "write the golden files")

func addresses(text ...string) (all []netip.Addr) {
	for _, a := range text {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

// configs are the cases of the golden files.
var configs = map[string]Config{
	"one-address":      {Interface: "nodelocaldns", Addresses: addresses("169.254.20.10"), Port: 53},
	"health":           {Interface: "nodelocaldns", Addresses: addresses("169.254.20.10"), Port: 53, Health: 8080},
	"other-port":       {Interface: "dns0", Addresses: addresses("169.254.20.10"), Port: 1053},
	"ipv6":             {Interface: "nodelocaldns", Addresses: addresses("fd00::a"), Port: 53, Health: 8080, Fallback: addresses("fd96::b")},
	"dual-stack":       {Interface: "nodelocaldns", Addresses: addresses("169.254.20.10", "10.96.0.10", "fd00::a"), Port: 53, Health: 8080, Fallback: addresses("10.96.0.11", "fd96::b")},
	"service":          {Interface: "nodelocaldns", Addresses: addresses("169.254.20.10", "10.96.0.10"), Port: 53, Fallback: addresses("10.96.0.11"), Services: addresses("10.96.0.10")},
	"only-a-service":   {Interface: "nodelocaldns", Addresses: addresses("10.96.0.10"), Port: 53, Fallback: addresses("10.96.0.11"), Services: addresses("10.96.0.10")},
	"link-local":       {Interface: "nodelocaldns", Addresses: addresses("169.254.20.10", "fe80::53"), Port: 53, Fallback: addresses("10.96.0.11", "fd96::b")},
	"without-features": {Interface: "nodelocaldns", Addresses: addresses("169.254.20.10"), Port: 53, without: sockets | routes | references},
	"question":         {Interface: "nodelocaldns", Addresses: addresses("169.254.20.10", "fd00::a", "fe80::53"), Port: 53, Question: Question{Out: "nodelocaldns-q0", In: "nodelocaldns-q1", Sources: addresses("192.0.0.8", "100:0:0:1::8")}},
	"itself":           {Interface: "nodelocaldns", Addresses: addresses("169.254.20.10", "10.96.0.10"), Port: 53, Fallback: addresses("10.96.0.10")},
}

func golden(name string) string { return filepath.Join("testdata", name+".nft") }

func TestTableText(t *testing.T) {
	for name, c := range configs {
		t.Run(name, func(t *testing.T) {
			got := c.TableText()
			if *update {
				kit.Must(t, os.WriteFile(golden(name), []byte(got), 0o644))
			}
			want := kit.Read(t, golden(name))
			if got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}
