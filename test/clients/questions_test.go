//go:build linux

package clients

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// question is a question of every client. Type "ADDRESSES" is a lookup of the addresses of both families, as getaddrinfo
// does it.
type question struct{ qtype, name string }

func (q question) String() string { return q.qtype + "/" + q.name }

// reply is a reply as a client prints it: "NOERROR", "NODATA" or "NXDOMAIN", and the records, as "TYPE DATA".
type reply struct {
	status  string
	records []string
}

func (r reply) String() string {
	if len(r.records) > 10 {
		return fmt.Sprintf("%s %q and %d more", r.status, r.records[:10], len(r.records)-10)
	}
	return fmt.Sprintf("%s %q", r.status, r.records)
}

// check is a question with the wanted reply.
type check struct {
	question
	want reply
}

// found is a reply with records, sorted.
func found(records ...string) reply {
	slices.Sort(records)
	return reply{"NOERROR", records}
}

// questions are the questions of all clients, with the replies by the specification of DNS for Kubernetes, version 1.1.0. It
// leaves the weights of SRV records to the server: here they are those of CoreDNS, a hundredth part of the records, at least 1.
func questions() []check {
	web := []string{"A " + webIPv4, "AAAA " + webIPv6}
	var addresses, targets []string
	for i := range endpoints {
		addresses = append(addresses, "A "+endpoint(i))
		targets = append(targets, fmt.Sprintf("SRV 0 1 7000 %s.many%s", hostname(i), inServices))
	}
	return []check{
		{question{"A", "web" + inServices}, found(web[0])},
		{question{"AAAA", "web" + inServices}, found(web[1])},
		{question{"SRV", "_http._tcp.web" + inServices}, found("SRV 0 50 80 web" + inServices)},
		{question{"PTR", "1.1.96.10.in-addr.arpa."}, found("PTR web" + inServices)},
		{question{"A", "absent" + inServices}, reply{status: "NXDOMAIN"}},
		{question{"MX", "web" + inServices}, reply{status: "NODATA"}},
		{question{"AAAA", "many" + inServices}, reply{status: "NODATA"}},
		{question{"A", "many" + inServices}, found(addresses...)},
		{question{"SRV", "_peer._tcp.many" + inServices}, found(targets...)},
		{question{"A", "alias" + inServices}, found("CNAME web"+inServices, web[0])},
		{question{"CNAME", "outside" + inServices}, found("CNAME " + outside)},
		{question{"TXT", "dns-version.cluster.local."}, found(`TXT "1.1.0"`)},
		{question{"ADDRESSES", "web" + inServices}, found(web...)},
		{question{"ADDRESSES", "alias" + inServices}, found(web...)},
		{question{"ADDRESSES", "many" + inServices}, found(addresses...)},
		{question{"ADDRESSES", "absent" + inServices}, reply{status: "NXDOMAIN"}},
	}
}

// normal returns a reply in the form of questions: the status that the client printed, or NODATA for NOERROR without records,
// addresses in their canonical form, names with a final dot, strings of TXT in quotes, and records sorted.
func normal(r reply) reply {
	var all []string
	for _, record := range r.records {
		rtype, data, _ := strings.Cut(record, " ")
		switch rtype {
		case "A", "AAAA":
			if a, err := netip.ParseAddr(data); err == nil {
				data = a.String()
			}
		case "TXT":
			data = `"` + strings.Trim(data, `"`) + `"`
		default:
			data = strings.TrimSuffix(data, ".") + "."
		}
		all = append(all, rtype+" "+data)
	}
	slices.Sort(all)
	switch {
	case r.status == "":
		r.status = "none" // the client printed none
	case r.status == "NOERROR" && len(all) == 0:
		r.status = "NODATA"
	}
	return reply{r.status, all}
}

// without returns a reply without the records of a type, for a client that does not print them.
func (r reply) without(rtype string) reply {
	kept := slices.DeleteFunc(slices.Clone(r.records), func(record string) bool { return strings.HasPrefix(record, rtype+" ") })
	return reply{r.status, kept}
}

// verify fails the test unless a client printed the wanted reply.
func (c client) verify(t *testing.T, q check, got reply) {
	t.Helper()
	want, got := q.want, normal(got)
	if c.hidesAliases && q.qtype != "CNAME" {
		want = want.without("CNAME")
	}
	if c.partial && len(want.records) > c.limit() {
		other := slices.ContainsFunc(got.records, func(record string) bool { return !slices.Contains(want.records, record) })
		if other || len(got.records) == 0 || got.status != want.status {
			t.Errorf("%s: got %v, want a part of %d records", q, got, len(want.records))
		}
		return
	}
	if got.status != want.status || !slices.Equal(got.records, want.records) {
		t.Errorf("%s: got %v, want %v", q, got, want)
	}
}
