package external

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
	"github.com/nearside-dns/nearside/test/property"
)

const (
	// rounds is the number of states of each cluster: the first one, and those after changes.
	rounds = 3
	// questions is the maximum number of questions to a variant in a round.
	questions = 1200
	// maxFailures is the number of reported differences after which the test ends.
	maxFailures = 10
)

// TestDifferential asks both servers the same questions in every variant, before and after changes of the cluster.
func TestDifferential(t *testing.T) {
	api, outside := kubeapi.New(t), startOutside(t)
	own := ownAddresses(t)
	kit.Must(t, api.Replace(fixed(own)...))
	var pairs []*pair
	for _, v := range variants {
		pairs = append(pairs, v.start(t, api.URL(), outside))
	}
	c := &comparison{used: map[string]int{}}
	round := 0
	property.Seeds(t, 1, 3, func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0))
		objs := newCluster(r, own)
		kit.Must(t, api.Replace(objs...))
		for range rounds {
			mark(t, api, round)
			for _, p := range pairs {
				p.await(t, round)
				c.comparePair(t, r, p, objs, fmt.Sprintf("round %d", round))
			}
			round++
			var changed, deleted []runtime.Object
			changed, deleted, objs = mutated(r, objs)
			kit.Must(t, api.Delete(deleted...))
			kit.Must(t, api.Put(changed...))
		}
	})
	var names []string
	for _, e := range explanations {
		names = append(names, e.name)
	}
	for _, e := range explainedRecords {
		names = append(names, e.name)
	}
	for _, name := range names {
		t.Logf("%7d differences: %s", c.used[name], name)
		if c.used[name] == 0 && property.Fixed() && !t.Failed() {
			t.Errorf("allowed, but not seen any more: %s", name)
		}
	}
	t.Logf("%7d questions", c.asked)
}

// comparison counts questions, differences and explanations.
type comparison struct {
	asked, failures int
	used            map[string]int
}

// comparePair compares the answers and the zones of the servers of a variant.
func (c *comparison) comparePair(t *testing.T, r *rand.Rand, p *pair, objs []runtime.Object, where string) {
	t.Helper()
	all := p.questions(objs)
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, q := range all[:min(questions, len(all))] {
		if c.failures >= maxFailures {
			return
		}
		c.asked++
		stock, err := p.stock.ask(q)
		kit.Must(t, err)
		for _, which := range []string{"answer", "stored answer"} {
			ours, err := p.ours.ask(q)
			kit.Must(t, err)
			d := &difference{p: p, q: q, stock: stock, ours: ours, objs: objs}
			if d.same() {
				continue
			}
			if names := d.explanation(); len(names) > 0 {
				for _, name := range names {
					c.used[name]++
				}
				continue
			}
			c.failures++
			t.Errorf("%s, %s, %s to %s\nCoreDNS: %s\nclusterdns: %s", p.name, where, which, q.String(), summary(stock, false), summary(ours, false))
			break
		}
	}
	for _, zone := range p.zones {
		c.compareTransfers(t, p, zone, objs, where)
	}
}

// difference is a pair of replies to a question.
type difference struct {
	p           *pair
	q           dns.Question
	stock, ours *dns.Msg
	objs        []runtime.Object
}

func (d *difference) same() bool {
	return summary(d.stock, d.p.cached) == summary(d.ours, d.p.cached)
}

// explanation returns the names of the entries that explain a difference: corrected by them, CoreDNS's reply is ours.
func (d *difference) explanation() (names []string) {
	m := d.stock.Copy()
	for _, e := range explanations {
		before := summary(m, false)
		e.correct(d, m)
		if summary(m, false) == before {
			continue
		}
		names = append(names, e.name)
		if summary(m, d.p.cached) == summary(d.ours, d.p.cached) {
			return names
		}
	}
	return nil
}

// summary is the content of a reply: sections are sets, without the serial of a SOA record and, of a stored answer, TTLs and upper
// case: a stored answer has every owner name that is the question's in the letters of the query.
func summary(m *dns.Msg, stored bool) string {
	text := fmt.Sprintf("%s aa=%t tc=%t\n", dns.RcodeToString[m.Rcode], m.Authoritative, m.Truncated)
	for i, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, line := range lines(section, stored) {
			text += fmt.Sprintf("    %d %s\n", i, line)
		}
	}
	return text
}

// lines returns records as text, sorted, each once.
func lines(records []dns.RR, stored bool) (all []string) {
	for _, rr := range records {
		rr = dns.Copy(rr)
		switch rr := rr.(type) {
		case *dns.OPT:
			continue
		case *dns.SOA:
			rr.Serial = 0
		}
		if stored {
			rr.Header().Ttl = 0
		}
		text := strings.Join(strings.Fields(rr.String()), " ")
		if stored {
			text = strings.ToLower(text)
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
