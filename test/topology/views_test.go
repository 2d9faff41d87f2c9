//go:build linux

package topology

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// unknown is the column of an unknown caller; the columns of callers on n1, n2 and n3 are 1, 2 and 3.
const unknown = 0

// row has the answers of a Service by caller: the numbers of the endpoints, "" for NODATA, or the response code of an error.
type row struct {
	service string
	seen    [1 + nodes]string
}

// views are the answers of all headless Services, by caller.
type views []row

// initial are the views of the initial objects, by the table in the README of plugin kubernetes.
var initial = views{
	{"keys", [...]string{"1 2 3", "1", "2", "3"}},
	{"rack", [...]string{"", "1 3", "", "1 3"}},
	{"local", [...]string{"", "1", "2", ""}},
	{"close", [...]string{"1 2 3", "1 2", "1 2", "3"}},
	{"same", [...]string{"1 2 3", "3", "1", "2"}},
	{"auto", [...]string{"1 2 3", "1", "1", "2 3"}},
	{"plain", [...]string{"1 2 3", "1 2 3", "1 2 3", "1 2 3"}},
}

// perCaller is the number of expectations that depend on the caller: all Services but plain by three types, and the alias by
// two.
const perCaller = 6*3 + 2

// replace returns the views with other rows.
func (v views) replace(rows ...row) views {
	v = slices.Clone(v)
	for _, r := range rows {
		v[slices.IndexFunc(v, func(old row) bool { return old.service == r.service })] = r
	}
	return v
}

// seenBy returns the column of a caller, by Service.
func (v views) seenBy(caller int) (seen map[string]string) {
	seen = map[string]string{}
	for _, r := range v {
		seen[r.service] = r.seen[caller]
	}
	return seen
}

func owner(service string) string { return service + "." + shop + ".svc.cluster.local." }

// expected returns the reply with these endpoints of a Service, in the form of reply.String.
func expected(service, seen, qtype string) string {
	var v4, v6, names []string
	for field := range strings.FieldsSeq(seen) {
		var k int
		if _, err := fmt.Sscan(field, &k); err != nil {
			return field // the response code of an error
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

// expectation is a question and the expected reply.
type expectation struct {
	question
	reply string
}

// common are expectations for all callers: a ClusterIP Service with an annotation, the name of one endpoint, PTR.
var common = []expectation{
	{question{owner("web"), "A"}, webIP},
	{question{owner("web"), "AAAA"}, "NODATA"},
	{question{"_" + port + "._tcp." + owner("web"), "SRV"}, owner("web") + " | " + webIP},
	{question{"e2." + owner("plain"), "A"}, "10.1.2.10"},
	{question{"7.7.96.10.in-addr.arpa.", "PTR"}, owner("web")},
	{question{"none." + shop + ".svc.cluster.local.", "A"}, "NXDOMAIN"},
}

// expectations returns those for A, AAAA and SRV of all headless Services, and for the alias of keys.
func expectations(seen map[string]string) (all []expectation) {
	for _, qtype := range []string{"A", "AAAA"} {
		all = append(all, expectation{question{owner("alias"), qtype}, expected("keys", seen["keys"], qtype) + " " + owner("keys")})
	}
	for service, endpoints := range seen {
		all = append(all,
			expectation{question{owner(service), "A"}, expected(service, endpoints, "A")},
			expectation{question{owner(service), "AAAA"}, expected(service, endpoints, "AAAA")},
			expectation{question{"_" + port + "._tcp." + owner(service), "SRV"}, expected(service, endpoints, "SRV")})
	}
	return all
}

// check sends queries, and returns an error for each reply that is not as expected.
func (q querier) check(all []expectation) error {
	var questions []question
	for _, w := range all {
		questions = append(questions, w.question)
	}
	replies, err := q.send(questions...)
	for i, r := range replies {
		if got := r.String(); got != all[i].reply {
			err = errors.Join(err, fmt.Errorf("%v %s %s: got %q, want %q", q, all[i].name, all[i].qtype, got, all[i].reply))
		}
	}
	return err
}
