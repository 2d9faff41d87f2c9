//go:build linux

package topology

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// unknown is the column of a caller of whom nothing is known; those of callers on n1, n2 and n3 are 1, 2 and 3.
const unknown = 0

// row says what callers see of a Service: the numbers of endpoints, none if the name has no data, or the code of
// an error.
type row struct {
	service string
	seen    [1 + nodes]string
}

// views are what callers see of all headless Services.
type views []row

// atFirst is what the table in the plugin's README says of the objects as they are made.
var atFirst = views{
	{"keys", [...]string{"1 2 3", "1", "2", "3"}},
	{"rack", [...]string{"", "1 3", "", "1 3"}},
	{"local", [...]string{"", "1", "2", ""}},
	{"close", [...]string{"1 2 3", "1 2", "1 2", "3"}},
	{"same", [...]string{"1 2 3", "3", "1", "2"}},
	{"auto", [...]string{"1 2 3", "1", "1", "2 3"}},
	{"plain", [...]string{"1 2 3", "1 2 3", "1 2 3", "1 2 3"}},
}

// perCaller is how many of the questions have answers that depend on the caller: all but plain's by three types, and
// the alias by two.
const perCaller = 6*3 + 2

// but returns the views with other rows.
func (v views) but(rows ...row) views {
	v = slices.Clone(v)
	for _, r := range rows {
		v[slices.IndexFunc(v, func(old row) bool { return old.service == r.service })] = r
	}
	return v
}

// of returns what one is to see of each Service who sees what a caller of these views does.
func (v views) of(caller int) (seen map[string]string) {
	seen = map[string]string{}
	for _, r := range v {
		seen[r.service] = r.seen[caller]
	}
	return seen
}

func owner(service string) string { return service + "." + shop + ".svc.cluster.local." }

// expected returns what the reply is to be if these endpoints of a Service are seen.
func expected(service, seen, qtype string) string {
	var v4, v6, names []string
	for field := range strings.FieldsSeq(seen) {
		var k int
		if _, err := fmt.Sscan(field, &k); err != nil {
			return field // the code of an error
		}
		v4 = append(v4, address(k, discoveryv1.AddressTypeIPv4))
		v6 = append(v6, address(k, discoveryv1.AddressTypeIPv6))
		names = append(names, fmt.Sprintf("e%d.%s", k, owner(service)))
	}
	switch {
	case seen == "":
		return "NODATA"
	case qtype == "A":
		return strings.Join(v4, " ")
	case qtype == "AAAA":
		return strings.Join(v6, " ")
	}
	return strings.Join(names, " ") + " | " + strings.Join(append(v4, v6...), " ")
}

// wish is a question and what the reply is to be.
type wish struct {
	question
	reply string
}

// always is answered to everybody alike: a ClusterIP Service with an annotation, the name of one endpoint, PTR.
var always = []wish{
	{question{owner("web"), "A"}, webIP},
	{question{owner("web"), "AAAA"}, "NODATA"},
	{question{"_" + port + "._tcp." + owner("web"), "SRV"}, owner("web") + " | " + webIP},
	{question{"e2." + owner("plain"), "A"}, "10.1.2.10"},
	{question{"7.7.96.10.in-addr.arpa.", "PTR"}, owner("web")},
	{question{"none." + shop + ".svc.cluster.local.", "A"}, "NXDOMAIN"},
}

// wishes are for A, AAAA and SRV of all headless Services, and for the alias of keys.
func wishes(seen map[string]string) (all []wish) {
	for _, qtype := range []string{"A", "AAAA"} {
		all = append(all, wish{question{owner("alias"), qtype}, expected("keys", seen["keys"], qtype) + " " + owner("keys")})
	}
	for service, endpoints := range seen {
		all = append(all,
			wish{question{owner(service), "A"}, expected(service, endpoints, "A")},
			wish{question{owner(service), "AAAA"}, expected(service, endpoints, "AAAA")},
			wish{question{"_" + port + "._tcp." + owner(service), "SRV"}, expected(service, endpoints, "SRV")})
	}
	return all
}

// check asks, and returns the replies that are not as they are to be.
func (a asking) check(all []wish) error {
	var questions []question
	for _, w := range all {
		questions = append(questions, w.question)
	}
	replies, err := a.ask(questions...)
	for i, r := range replies {
		if got := r.String(); got != all[i].reply {
			err = errors.Join(err, fmt.Errorf("%v %s %s: got %q, want %q", a, all[i].name, all[i].qtype, got, all[i].reply))
		}
	}
	return err
}
