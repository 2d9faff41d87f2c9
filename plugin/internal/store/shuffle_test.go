package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

func addressRecords(owner string, first, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%s 30 IN A 192.0.2.%d", owner, first+i))
	}
	return all
}

func texts(rrs []dns.RR) (all []string) {
	for _, rr := range rrs {
		all = append(all, rr.String())
	}
	return all
}

// TestShuffle asserts that Shuffle permutes the records from and to of the answer section, and no others.
func TestShuffle(t *testing.T) {
	six := func(owner string, n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("%s 30 IN AAAA 2001:db8::%d", owner, i))
		}
		return all
	}
	chain := []string{"a.org. 30 IN CNAME b.a.org.", "b.a.org. 30 IN CNAME c.org."}

	tests := map[string]struct {
		records  []string
		from, to int
	}{
		"A":                             {addressRecords("a.org.", 1, 5), 0, 5},
		"two A":                         {addressRecords("a.org.", 1, 2), 0, 2},
		"one A":                         {addressRecords("a.org.", 1, 1), 0, 0},
		"no answer":                     {nil, 0, 0},
		"AAAA":                          {six("a.org.", 7), 0, 7},
		"A after CNAMEs":                {slices.Concat(chain, addressRecords("c.org.", 1, 4)), 2, 6},
		"AAAA after CNAMEs":             {slices.Concat(chain, six("c.org.", 4)), 2, 6},
		"one A after CNAMEs":            {slices.Concat(chain, addressRecords("c.org.", 1, 1)), 0, 0},
		"A after AAAA":                  {slices.Concat(six("a.org.", 3), addressRecords("a.org.", 1, 3)), 3, 6},
		"AAAA after A":                  {slices.Concat(addressRecords("a.org.", 1, 3), six("a.org.", 3)), 3, 6},
		"one AAAA after A":              {slices.Concat(addressRecords("a.org.", 1, 3), six("a.org.", 1)), 0, 0},
		"another owner, same length":    {slices.Concat(addressRecords("a.org.", 1, 3), addressRecords("b.org.", 1, 2)), 3, 5},
		"a longer owner":                {slices.Concat(addressRecords("a.org.", 1, 3), addressRecords("x.a.org.", 1, 2)), 3, 5},
		"a shorter owner":               {slices.Concat(addressRecords("x.a.org.", 1, 3), addressRecords("a.org.", 1, 2)), 3, 5},
		"one with a shorter owner":      {slices.Concat(addressRecords("x.a.org.", 1, 1), addressRecords("a.org.", 1, 1)), 0, 0},
		"a shorter owner after one":     {slices.Concat(addressRecords("x.a.org.", 1, 1), addressRecords("a.org.", 1, 3)), 1, 4},
		"another TTL":                   {[]string{"a.org. 30 IN A 192.0.2.1", "a.org. 31 IN A 192.0.2.2"}, 0, 0},
		"another class":                 {[]string{"a.org. 30 IN A 192.0.2.1", "a.org. 30 CH A 192.0.2.2"}, 0, 0},
		"a CNAME last":                  {slices.Concat(addressRecords("a.org.", 1, 3), chain[:1]), 0, 0},
		"a signature last":              {append(addressRecords("a.org.", 1, 3), "a.org. 30 IN RRSIG A 13 2 30 20380101000000 20200101000000 1 org. AAAA"), 0, 0},
		"MX":                            {[]string{"a.org. 30 IN MX 1 b.org.", "a.org. 30 IN MX 1 c.org."}, 0, 0},
		"SRV":                           {[]string{"a.org. 30 IN SRV 1 1 1 b.org.", "a.org. 30 IN SRV 1 1 1 c.org."}, 0, 0},
		"a record as long as addresses": {[]string{"a.org. 30 IN TYPE65280 \\# 4 01020304", "a.org. 30 IN TYPE65280 \\# 4 05060708"}, 0, 0},
	}
	for name, tt := range tests {
		for _, compress := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/compressed %v", name, compress), func(t *testing.T) {
				m := message(t, "a.org.", dns.TypeA, tt.records...)
				glue := message(t, "ns.org.", dns.TypeA, addressRecords("ns.org.", 201, 2)...).Answer
				m.Ns, m.Extra = glue, slices.Clone(glue)
				m.Compress = compress
				if compress && tt.from == 3 && m.Answer[3].Header().Name != "a.org." {
					checkShuffle(t, m, 0, 0) // the first owner name is not compressed, so that the records differ
					return
				}
				checkShuffle(t, m, tt.from, tt.to)
			})
		}
	}
}

// checkShuffle asserts that each of the records from and to is equally often the last one, and that others do not move.
func checkShuffle(t *testing.T, m *dns.Msg, from, to int) {
	t.Helper()
	r := rand.New(rand.NewPCG(4, 2))
	before := texts(m.Answer)
	last, rounds := map[string]int{}, 400*(to-from)
	for range max(rounds, 50) {
		got := reply(t, m, &Patch{Shuffle: r.Uint64() | 1})
		after := texts(got.Answer)
		count := map[string]int{}
		for i, s := range after {
			if (i < from || i >= to) && s != before[i] {
				t.Fatalf("record %d is %s, was %s", i, s, before[i])
			}
			count[s]++
		}
		for _, s := range before {
			if count[s] != 1 {
				t.Fatalf("%d records %s", count[s], s)
			}
		}
		if ns := texts(got.Ns); !slices.Equal(ns, texts(m.Ns)) {
			t.Fatalf("authority section: %q", ns)
		}
		if to > from {
			last[after[to-1]]++
		}
	}
	// The mean is 400, the standard deviation at most 20.
	for _, s := range before[from:to] {
		if last[s] < 300 || last[s] > 500 {
			t.Errorf("%s was last %d times of %d", s, last[s], rounds)
		}
	}
}

// TestShuffleIsFair asserts that each address is about equally often at each position, and that each permutation occurs.
func TestShuffleIsFair(t *testing.T) {
	for n, bound := range map[int]float64{ // well above the degrees of freedom, (n-1)*(n-1)
		2: 24, 3: 28, 4: 40, 10: 150, 100: 10700,
	} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			m := message(t, "a.org.", dns.TypeA, addressRecords("a.org.", 1, n)...)
			a := packedAnswer(t, m)
			query, q := queryOf(t, m)
			r := rand.New(rand.NewPCG(4, 3))
			const each = 500
			places, orders := make([][]int, n), map[string]int{}
			for i := range places {
				places[i] = make([]int, n)
			}
			buf := make([]byte, 0, dns.MaxMsgSize)
			for range each * n {
				b := a.AppendReply(buf, query, &q, &Patch{Shuffle: r.Uint64()})
				var order strings.Builder
				for i := range n {
					address := b[int(a.shuffled.first)+i*int(a.shuffled.stride)+3]
					places[i][address-1]++
					order.WriteByte(address)
				}
				orders[order.String()]++
			}
			var chi float64
			for _, place := range places {
				for _, count := range place {
					chi += float64((count-each)*(count-each)) / each
				}
			}
			if chi > bound {
				t.Errorf("chi-square %.0f: %v", chi, places)
			}
			if want := map[int]int{2: 2, 3: 6, 4: 24}[n]; want != 0 && len(orders) != want {
				t.Errorf("%d orders, want %d", len(orders), want)
			}
		})
	}
}

// glueMessage returns an answer to an SRV query with an additional section.
func glueMessage(t *testing.T, additional ...string) *dns.Msg {
	t.Helper()
	m := message(t, "a.org.", dns.TypeSRV, "a.org. 30 IN SRV 1 1 80 b.org.", "a.org. 30 IN SRV 1 1 80 longer.c.org.")
	m.Extra = message(t, "a.org.", dns.TypeSRV, additional...).Answer
	return m
}

// TestShuffleGlue asserts that each address of the additional section is equally often the first, and that package dns
// packs the reply into the same bytes, also if the reply needs a new array and ends in an OPT record.
func TestShuffleGlue(t *testing.T) {
	for name, additional := range map[string][]string{
		"two":                  {"b.org. 30 IN A 192.0.2.1", "b.org. 30 IN A 192.0.2.2"},
		"of two names":         {"b.org. 30 IN A 192.0.2.1", "longer.c.org. 20 IN A 192.0.2.2"},
		"of two families":      {"b.org. 30 IN A 192.0.2.1", "b.org. 30 IN AAAA 2001:db8::1", "longer.c.org. 20 IN AAAA 2001:db8::2"},
		"after another record": {"b.org. 30 IN TXT x", "b.org. 30 IN A 192.0.2.1", "longer.c.org. 30 IN A 192.0.2.2", "b.org. 30 IN A 192.0.2.3"},
		"many":                 addressRecords("longer.c.org.", 1, 20),
	} {
		for _, compress := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/compressed %v", name, compress), func(t *testing.T) {
				m := glueMessage(t, additional...)
				m.Compress = compress
				a := packedAnswer(t, m)
				if a.Ordered() {
					t.Fatal("the addresses are not shuffled")
				}
				query, q := queryOf(t, m)
				q.EDNS, q.UDPSize = true, 1232
				r := rand.New(rand.NewPCG(4, 5))
				shuffled := int(a.glueCount)
				first, want := map[string]int{}, texts(m.Extra)
				slices.Sort(want)
				const each = 400
				for range each * shuffled {
					b := a.AppendReply(make([]byte, 0, a.Len()), query, &q, &Patch{Shuffle: r.Uint64() | 1, Options: []byte{0, 3, 0, 1, 7}})
					got := unpackMsg(t, b)
					got.Compress = compress
					if again, err := got.Pack(); err != nil || string(again) != string(b) {
						t.Fatalf("% x, packed again % x: %v", b, again, err)
					}
					if opt := got.IsEdns0(); opt == nil || len(opt.Option) != 1 {
						t.Fatalf("no OPT record with the option in\n%v", got)
					}
					got.Extra = got.Extra[:len(got.Extra)-1]
					extra := texts(got.Extra)
					first[extra[len(extra)-shuffled]]++
					if slices.Sort(extra); !slices.Equal(extra, want) {
						t.Fatalf("%q, want %q", extra, want)
					}
				}
				if len(first) != shuffled {
					t.Errorf("%d of %d addresses were first", len(first), shuffled)
				}
				for s, n := range first { // the standard deviation is at most 20
					if n < each-100 || n > each+100 {
						t.Errorf("%s was first %d times, want %d", s, n, each)
					}
				}
			})
		}
	}
}

// TestOrdered asserts for which answers Ordered is true: only CoreDNS's loadbalance orders their records right.
func TestOrdered(t *testing.T) {
	a, b := "a.org. 30 IN A 192.0.2.1", "a.org. 30 IN A 192.0.2.2"
	alias, mx, other := "a.org. 30 IN CNAME b.org.", "a.org. 30 IN MX 1 b.org.", "a.org. 30 IN MX 1 c.org."
	for name, tt := range map[string]struct {
		answer, authority, additional []string
		rcode                         int
		want                          bool
	}{
		"addresses":                            {answer: []string{a, b}},
		"alias and addresses":                  {answer: []string{alias, a, b}},
		"address and alias":                    {answer: []string{a, alias}, want: true},
		"signature and alias":                  {answer: []string{"a.org. 30 IN TXT x", alias}, want: true},
		"address and text":                     {answer: []string{a, "a.org. 30 IN TXT x"}, want: true},
		"addresses of two names":               {answer: []string{a, "b.org. 30 IN A 192.0.2.2"}, want: true},
		"one MX":                               {answer: []string{mx}},
		"two MX":                               {answer: []string{mx, other}, want: true},
		"MX and address":                       {answer: []string{mx, a}, want: true},
		"two MX, but an error":                 {answer: []string{mx, other}, rcode: dns.RcodeNameError},
		"address and alias, but an error":      {answer: []string{a, alias}, rcode: dns.RcodeServerFailure},
		"addresses in the authority section":   {authority: []string{a, b}, want: true},
		"one address in the authority section": {authority: []string{a}},
		"addresses in the additional section":  {additional: []string{a, b}},
		"addresses before a text in the additional section":         {additional: []string{a, b, "a.org. 30 IN TXT x"}, want: true},
		"addresses before an MX in the additional section":          {additional: []string{a, b, mx}, want: true},
		"addresses that point to each other":                        {additional: []string{"x.y.org. 30 IN A 192.0.2.1", "z.y.org. 30 IN A 192.0.2.2"}, want: true},
		"too many addresses in the additional section":              {additional: slices.Repeat([]string{a}, maxGlue+1), want: true},
		"the maximum number of addresses in the additional section": {additional: slices.Repeat([]string{a}, maxGlue)},
	} {
		t.Run(name, func(t *testing.T) {
			m := message(t, "a.org.", dns.TypeA, tt.answer...)
			m.Ns, m.Extra = message(t, "a.org.", dns.TypeA, tt.authority...).Answer, message(t, "a.org.", dns.TypeA, tt.additional...).Answer
			m.Rcode, m.Compress = tt.rcode, true
			got := packedAnswer(t, m)
			if got.Ordered() != tt.want {
				t.Errorf("ordered %t, want %t", got.Ordered(), tt.want)
			}
		})
	}
}
