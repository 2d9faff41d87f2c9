package kubernetes

import (
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"
)

// slowName is the oracle of parseName: the forms of the schema, one after the other. ok is false for a name outside of
// the schema.
func slowName(name, zone string, zonal bool) (n objectName, ok bool) {
	all, suffix := dns.SplitDomainName(name), dns.SplitDomainName(zone)
	left := all[:len(all)-len(suffix)]
	if len(left) == 0 {
		return n, true
	}
	if len(left) == 1 && (left[0] == "svc" || left[0] == "pod") {
		return n, true
	}
	slices.Reverse(left) // svc, namespace, Service, and the labels below it
	if left[0] != "svc" && left[0] != "pod" {
		return n, false
	}
	bare := func(label string) string {
		if label[0] == '_' {
			return label[1:]
		}
		return label
	}
	switch {
	case len(left) == 2:
		return objectName{kind: left[0], namespace: left[1]}, true
	case len(left) == 3:
		return objectName{kind: left[0], namespace: left[1], object: left[2]}, true
	case len(left) == 4:
		return objectName{kind: left[0], namespace: left[1], object: left[2], endpoint: left[3]}, true
	case len(left) == 5:
		return objectName{kind: left[0], namespace: left[1], object: left[2], protocol: bare(left[3]), port: bare(left[4])}, true
	case zonal && left[0] == "svc" && left[3] == "_zone" && (left[4] == "pin" || left[4] == "prefer"):
		zone := slices.Clone(left[5:])
		slices.Reverse(zone)
		return objectName{kind: "svc", namespace: left[1], object: left[2], zone: strings.Join(zone, "."), prefer: left[4] == "prefer"}, true
	}
	return n, false
}

// joined returns the text of a parsed name.
func joined(n objectName, zone string) string {
	parts := []string{n.endpoint, n.port, n.protocol}
	if n.zone != "" {
		word := "pin"
		if n.prefer {
			word = "prefer"
		}
		parts = []string{n.zone, word, "_zone"}
	}
	parts = append(parts, n.object, n.namespace, n.kind)
	if zone != "." {
		parts = append(parts, strings.TrimSuffix(zone, "."))
	}
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), ".") + "."
}

// withoutUnderscores removes one underscore of a port and a protocol, and omits those that are empty then.
func withoutUnderscores(name, zone string) string {
	labels := dns.SplitDomainName(name)
	if len(labels)-dns.CountLabel(zone) == 5 {
		labels[0], labels[1] = strings.TrimPrefix(labels[0], "_"), strings.TrimPrefix(labels[1], "_")
	}
	return strings.Join(slices.DeleteFunc(labels, func(l string) bool { return l == "" }), ".") + "."
}

func agrees(t *testing.T, name, zone string, zonal bool) {
	t.Helper()
	want, ok := slowName(name, zone, zonal)
	got, err := parseName(name, zone, grammar{zonal: zonal})
	if (err == nil) != ok || ok && got != want {
		t.Fatalf("%s in %s, zonal %v: got %+v, error %v, want %+v, %v", name, zone, zonal, got, err, want, ok)
	}
	if err != nil {
		if err != errName || got != (objectName{}) {
			t.Errorf("%s in %s: error %v and %+v", name, zone, err, got)
		}
		return
	}
	if got.kind == "" {
		return // the apex, svc and pod are parsed before
	}
	if again, want := joined(got, zone), withoutUnderscores(name, zone); again != want {
		t.Errorf("%s in %s: joined again it is %s, want %s", name, zone, again, want)
	}
}

var parsedNames = []string{
	"cluster.local.", "svc.cluster.local.", "pod.cluster.local.", "other.cluster.local.", "shop.svc.cluster.local.", "shop.other.cluster.local.",
	"web.shop.svc.cluster.local.", "db-0.db.shop.svc.cluster.local.", "_tcp.web.shop.svc.cluster.local.", "_http._tcp.web.shop.svc.cluster.local.",
	"http.tcp.web.shop.svc.cluster.local.", "_._.web.shop.svc.cluster.local.", "__a.__b.web.shop.svc.cluster.local.", "a.b.c.web.shop.svc.cluster.local.",
	"east.pin._zone.db.shop.svc.cluster.local.", "a.b.c.prefer._zone.db.shop.svc.cluster.local.", "east.only._zone.db.shop.svc.cluster.local.",
	"east.pin._zone.db.shop.pod.cluster.local.", "pin._zone.db.shop.svc.cluster.local.", "10-1-0-1.shop.pod.cluster.local.",
	`a\.b.shop.svc.cluster.local.`, `\\.shop.svc.cluster.local.`, `a\000b.shop.svc.cluster.local.`, "svc.svc.svc.svc.svc.cluster.local.",
}

func TestParseName(t *testing.T) { eachName(t, parsedNames, "cluster.local.", agreesBoth) }

func FuzzParseName(f *testing.F) { fuzzNames(f, parsedNames, "cluster.local.", agreesBoth) }

func agreesBoth(t *testing.T, name, zone string) {
	t.Helper()
	agrees(t, name, zone, false)
	agrees(t, name, zone, true)
}

// eachName parses names in their zone and in those above it.
func eachName(t *testing.T, names []string, zone string, agrees func(t *testing.T, name, zone string)) {
	for _, name := range names {
		for _, zone := range []string{zone, "local.", "."} {
			if dns.IsSubDomain(zone, name) {
				agrees(t, name, zone)
			}
		}
	}
}

// fuzzNames is eachName for names in wire form.
func fuzzNames(f *testing.F, names []string, zone string, agrees func(t *testing.T, name, zone string)) {
	for _, name := range names {
		f.Add(wireName(f, name))
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		name, _, err := dns.UnpackDomainName(wire, 0)
		if err != nil {
			t.Skip()
		}
		eachName(t, []string{strings.ToLower(name)}, zone, agrees)
	})
}

func wireName(t testing.TB, name string) []byte {
	t.Helper()
	wire := make([]byte, 256)
	n, err := dns.PackDomainName(name, wire, 0, nil, false)
	kit.Must(t, err)
	return wire[:n]
}
