//go:build linux

package coherence

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// form is the form of a name, which decides how the model answers it.
type form uint8

const (
	missingForm form = iota // a name that never exists
	serviceForm
	namespaceForm
	podForm
	reverseForm
	searchForm
)

// question is a question of the clients with the parts of its name.
type question struct {
	name  string
	qtype uint16
	form
	namespace, service, endpoint, cluster, port string
	imported                                    bool
	upper                                       bool // the client spells the name in upper case
	address                                     netip.Addr
	candidates                                  []candidate // of a name with its search list
}

// candidate is a name of a search list: the numbers of its questions of the queried type, and of the other family.
type candidate struct{ same, other int }

// spelling returns the name as the client spells it.
func (q *question) spelling() string {
	if q.upper {
		return strings.ToUpper(q.name)
	}
	return q.name
}

// serviceName returns the name of the Service that the question is about.
func (q *question) serviceName() string {
	zone := "cluster.local."
	if q.imported {
		zone = "clusterset.local."
	}
	return q.service + "." + q.namespace + ".svc." + zone
}

// universe has all questions of the clients.
type universe struct {
	all    []question
	number map[string]int
}

// The names that objects of a history have. Namespace none never exists.
var (
	namespaces = []string{"shop", "bank", "temp", "none"}
	services   = []string{"web", "api", "db", "peers", "near", "alias"}
	imports    = []string{"web", "db"}
	hostnames  = []string{"e0", "e1"}
	podNames   = []string{"p0", "p1"}
	nodes      = []string{"node-a", "node-b", "node-c"}
	zones      = []string{"east", "west"}
	clusters   = []string{"here", "there"}
	podIPs     = addresses("10.1.0.1", 8)
	podIPs6    = addresses("fd00:1::1", 3)
	serviceIPs = addresses("10.96.0.1", 6)
	servicesV6 = addresses("fd00:96::1", 3)
)

func addresses(first string, n int) (all []netip.Addr) {
	for a := netip.MustParseAddr(first); len(all) < n; a = a.Next() {
		all = append(all, a)
	}
	return all
}

var (
	addressTypes = []uint16{dns.TypeA, dns.TypeAAAA}
	// emptyTypes are those of which no name has records: the answer is NODATA if the name exists.
	emptyTypes = []uint16{dns.TypeTXT, dns.TypeMX, dns.TypeHTTPS}
)

func newUniverse() *universe {
	u := &universe{number: map[string]int{}}
	for _, ns := range namespaces {
		for i, s := range services {
			u.addService(ns, s, emptyTypes[i%len(emptyTypes)])
		}
		for i, s := range imports {
			u.addImport(ns, s, emptyTypes[i%len(emptyTypes)])
		}
		u.addPods(ns)
		u.addTypes(question{name: ns + ".svc.cluster.local.", form: namespaceForm, namespace: ns}, dns.TypeA, dns.TypeAAAA, dns.TypeTXT)
	}
	for _, group := range [][]netip.Addr{podIPs, podIPs6, serviceIPs, servicesV6} {
		for i, a := range group {
			name, err := dns.ReverseAddr(a.String())
			if err != nil {
				panic(err) // every address has a reverse name
			}
			q := question{name: name, form: reverseForm, address: a}
			u.addTypes(q, dns.TypePTR)
			if i == 0 {
				u.addTypes(q, dns.TypeA, dns.TypeTXT)
			}
		}
	}
	for _, ns := range []string{"shop", "temp"} {
		for _, name := range []string{"db", "web", "near", "missing", "db.bank", "api.temp", "e0.db.shop"} {
			for _, qtype := range addressTypes {
				u.addSearch(name, ns, qtype)
			}
		}
	}
	u.addUpper()
	return u
}

// add adds a question, unless it exists, and returns its number.
func (u *universe) add(q question) int {
	k := fmt.Sprint(q.spelling(), q.qtype)
	if n, ok := u.number[k]; ok {
		return n
	}
	u.number[k] = len(u.all)
	u.all = append(u.all, q)
	return u.number[k]
}

// addTypes adds a question of each of some types.
func (u *universe) addTypes(q question, qtypes ...uint16) {
	for _, q.qtype = range qtypes {
		u.add(q)
	}
}

func (u *universe) addService(ns, service string, empty uint16) {
	q := question{form: serviceForm, namespace: ns, service: service}
	base := q.serviceName()
	q.name = base
	u.addTypes(q, dns.TypeSRV, dns.TypeA, dns.TypeAAAA, dns.TypeCNAME, empty)
	q.name, q.port = "_http._tcp."+base, "http"
	u.addTypes(q, dns.TypeSRV, dns.TypeA)
	q.name, q.port = "_dns._tcp."+base, "dns"
	u.addTypes(q, dns.TypeSRV)
	q.port = ""
	if service != "db" && service != "peers" && service != "api" {
		return
	}
	for _, q.endpoint = range slices.Concat([]string{dashed(podIPs[0]), dashed(podIPs6[0])}, hostnames, podNames) {
		q.name = q.endpoint + "." + base
		u.addTypes(q, dns.TypeA, dns.TypeAAAA, dns.TypeSRV)
	}
	u.addTypes(q, empty) // of the last endpoint
}

func (u *universe) addImport(ns, service string, empty uint16) {
	q := question{form: serviceForm, namespace: ns, service: service, imported: true}
	base := q.serviceName()
	q.name = base
	u.addTypes(q, dns.TypeA, dns.TypeAAAA, dns.TypeSRV, empty)
	q.name, q.port = "_http._tcp."+base, "http"
	u.addTypes(q, dns.TypeSRV)
	q.port, q.endpoint = "", hostnames[0]
	for _, q.cluster = range clusters {
		q.name = q.endpoint + "." + q.cluster + "." + base
		u.addTypes(q, dns.TypeA, dns.TypeAAAA, dns.TypeSRV)
	}
}

func (u *universe) addPods(ns string) {
	for i, a := range append(podIPs[:4:4], podIPs6[0]) {
		q := question{name: dashed(a) + "." + ns + ".pod.cluster.local.", form: podForm, namespace: ns, address: a}
		u.addTypes(q, dns.TypeA, dns.TypeAAAA)
		if i == 0 {
			u.addTypes(q, dns.TypeTXT)
		}
	}
}

// addUpper adds questions in upper case for names that have data at times, as resolvers that vary the case send them.
func (u *universe) addUpper() {
	for _, q := range slices.Clone(u.all) {
		switch {
		case q.form == serviceForm && q.namespace == "shop" && q.endpoint == "" && q.port == "" && q.qtype != dns.TypeMX,
			q.form == podForm && q.namespace == "shop" && q.qtype == dns.TypeA,
			q.form == reverseForm && (q.address == podIPs[0] || q.address == serviceIPs[0]):
			q.upper = true
			u.add(q)
		}
	}
}

// addSearch adds the search name for a name that a client in a namespace looks up (see the plugin searchpath).
func (u *universe) addSearch(name, ns string, qtype uint16) {
	q := question{name: name + ".v1.search." + ns + ".cluster.local.ap.k8s.io.", qtype: qtype, form: searchForm}
	for _, full := range []string{name + "." + ns + ".svc.cluster.local.", name + ".svc.cluster.local.", name + ".cluster.local."} {
		var c candidate
		for _, t := range addressTypes {
			n := u.add(parse(full, t))
			if t == qtype {
				c.same = n
			} else {
				c.other = n
			}
		}
		q.candidates = append(q.candidates, c)
	}
	u.add(q)
}

// parse returns the question for a name of the cluster's zone.
func parse(name string, qtype uint16) question {
	q := question{name: name, qtype: qtype}
	base, ok := strings.CutSuffix(name, ".svc.cluster.local.")
	if !ok {
		return q
	}
	switch labels := strings.Split(base, "."); len(labels) {
	case 1:
		q.form, q.namespace = namespaceForm, labels[0]
	case 2:
		q.form, q.service, q.namespace = serviceForm, labels[0], labels[1]
	case 3:
		q.form, q.endpoint, q.service, q.namespace = serviceForm, labels[0], labels[1], labels[2]
	}
	return q
}

func pick[T any](r *rand.Rand, all []T) T { return all[r.IntN(len(all))] }
