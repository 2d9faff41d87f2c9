package kubernetes

import (
	"testing"

	"github.com/miekg/dns"
)

func zonal(t *testing.T, block string) *Kubernetes {
	db := service("shop", "db", headless, tcp("sql", 5432))
	down := service("shop", "down", headless, tcp("sql", 5432))
	web := service("shop", "web", []string{"10.0.0.1"}, tcp("http", 80))
	return answering(t, block, namespace("shop"), db, down, web, externalName("shop", "ext", "db.shop.svc.cluster.local"),
		slice(db, "a",
			endpoint("10.1.0.1", hostname("db-0"), inZone("east-1")),
			endpoint("10.1.0.2", hostname("db-1"), inZone("West-2")),
			endpoint("10.1.0.3", hostname("db-2"), inZone("corp.example.com")),
			endpoint("10.1.0.4", hostname("db-3")),
			endpoint("10.1.0.5", hostname("db-4"), inZone("down-3"), notReady)),
		slice(db, "b", endpoint("2001:db8::1", hostname("db-0"), inZone("east-1"))),
		slice(down, "a", endpoint("10.1.0.6", inZone("east-1"), notReady)),
		slice(web, "a", endpoint("10.1.0.7", inZone("east-1"))))
}

func TestZonal(t *testing.T) {
	const db = "._zone.db.shop.svc.cluster.local"
	a := func(name string, ips ...string) lookup {
		l := lookup{name: name, ask: name + db + " A"}
		for _, ip := range ips {
			l.answer = append(l.answer, name+db+". 5 IN A "+ip)
		}
		return l
	}
	nothing := func(name, ask string) lookup { return lookup{name: name, ask: ask, rcode: dns.RcodeNameError} }
	check(t, zonal(t, "kubernetes cluster.local {\nzonal\n}"),
		a("east-1.pin", "10.1.0.1"),
		a("east-1.prefer", "10.1.0.1"),
		a("west-2.pin", "10.1.0.2"),
		a("WEST-2.Pin", "10.1.0.2"),
		a("corp.example.com.pin", "10.1.0.3"),
		a("example.com.pin"),
		a("north-9.pin"),
		a("down-3.pin"),
		a("north-9.prefer", "10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4"),
		a("down-3.prefer", "10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4"),
		a("pin.pin"),
		lookup{name: "AAAA", ask: "east-1.pin" + db + " AAAA", answer: []string{"2001:db8::1"}},
		lookup{name: "AAAA, the zone has A only", ask: "west-2.prefer" + db + " AAAA"},
		lookup{name: "SRV", ask: "west-2.pin" + db + " SRV", answer: []string{"0 100 5432 db-1.db.shop.svc.cluster.local."},
			extra: []string{"db-1.db.shop.svc.cluster.local. 5 IN A 10.1.0.2"}},
		lookup{name: "SRV of none", ask: "north-9.pin" + db + " SRV"},
		lookup{name: "TXT", ask: "east-1.pin" + db + " TXT"},
		lookup{name: "TXT of none", ask: "north-9.pin" + db + " TXT"},
		lookup{name: "HTTPS of none", ask: "north-9.pin" + db + " HTTPS"},
		lookup{name: "none ready, pin", ask: "east-1.pin._zone.down.shop.svc.cluster.local A"},
		lookup{name: "none ready, prefer", ask: "east-1.prefer._zone.down.shop.svc.cluster.local A"},
		nothing("ClusterIP", "east-1.pin._zone.web.shop.svc.cluster.local A"),
		nothing("ClusterIP, prefer", "east-1.prefer._zone.web.shop.svc.cluster.local A"),
		nothing("ExternalName", "east-1.pin._zone.ext.shop.svc.cluster.local A"),
		nothing("no such Service", "east-1.pin._zone.none.shop.svc.cluster.local A"),
		nothing("unknown word", "east-1.only"+db+" A"),
		nothing("no zone", "pin"+db+" A"),
		nothing("no word", "_zone.db.shop.svc.cluster.local A"),
		nothing("underscore of a port name", "east-1.pin.zone.db.shop.svc.cluster.local A"),
		nothing("of a pod", "east-1.pin._zone.10-1-0-1.shop.pod.cluster.local A"),
		lookup{name: "the Service as ever", ask: "db.shop.svc.cluster.local AAAA", answer: []string{"2001:db8::1"}},
	)
	t.Run("off", func(t *testing.T) {
		check(t, zonal(t, "kubernetes cluster.local"), nothing("pin", "east-1.pin"+db+" A"), nothing("prefer", "east-1.prefer"+db+" A"))
	})
}
