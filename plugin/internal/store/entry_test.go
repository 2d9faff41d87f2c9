package store

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"

	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
)

// modified is a constant Serial.
type modified int64

func (m modified) Modified() int64 { return int64(m) }

func TestCurrentAndFresh(t *testing.T) {
	g, other := new(generation), new(generation)
	g.Store(5)
	tests := map[string]struct {
		entry          *Entry
		now            time.Duration
		current, fresh bool
	}{
		"no end":            {&Entry{}, 1 << 60, true, true},
		"bound":             {&Entry{Validity: until(g, 5)}, 0, true, true},
		"advanced":          {&Entry{Validity: until(g, 4)}, 0, false, false},
		"higher number":     {&Entry{Validity: until(g, 6)}, 0, false, false},
		"second advanced":   {&Entry{Validity: validity.Validity{Bounds: [validity.MaxBounds]validity.Bound{{Generation: other, Number: 0}, {Generation: g, Number: 4}}}}, 0, false, false},
		"all":               {&Entry{Validity: validity.Validity{Bounds: [validity.MaxBounds]validity.Bound{{Generation: other, Number: 0}, {Generation: g, Number: 5}, {Generation: g, Number: 5}, {Generation: other, Number: 0}}}}, 0, true, true},
		"last advanced":     {&Entry{Validity: validity.Validity{Bounds: [validity.MaxBounds]validity.Bound{{Generation: other, Number: 0}, {Generation: g, Number: 5}, {Generation: g, Number: 5}, {Generation: g, Number: 0}}}}, 0, false, false},
		"not expired":       {&Entry{Validity: validity.Validity{Expires: 10}}, 9, true, true},
		"expired":           {&Entry{Validity: validity.Validity{Expires: 10}}, 10, true, false},
		"expired, not gone": {&Entry{Validity: validity.Validity{Expires: 10}, Gone: 20}, 10, true, false},
		"TTL and bound":     {&Entry{Validity: validity.Validity{Expires: 10, Bounds: [validity.MaxBounds]validity.Bound{{Generation: g, Number: 5}}}}, 9, true, true},
		"TTL, advanced":     {&Entry{Validity: validity.Validity{Expires: 10, Bounds: [validity.MaxBounds]validity.Bound{{Generation: g, Number: 4}}}}, 9, false, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.entry.Current(); got != tt.current {
				t.Errorf("current %v", got)
			}
			if got := tt.entry.Fresh(tt.now); got != tt.fresh {
				t.Errorf("fresh %v", got)
			}
		})
	}
}

func TestPatch(t *testing.T) {
	options := []byte{0, 15, 0, 2, 0, 3}
	tests := map[string]struct {
		entry *Entry
		now   time.Duration
		want  Patch
	}{
		"TTL":           {&Entry{Stored: time.Second, Validity: validity.Validity{Expires: time.Minute}}, 31 * time.Second, Patch{Age: 30}},
		"rounded down":  {&Entry{Stored: time.Second, Validity: validity.Validity{Expires: time.Minute}}, 2*time.Second - 1, Patch{}},
		"before Stored": {&Entry{Stored: time.Second, Validity: validity.Validity{Expires: time.Minute}}, 0, Patch{}},
		"FixedTTL":      {&Entry{Stored: time.Second, Validity: validity.Validity{Expires: time.Minute}, FixedTTL: true}, 31 * time.Second, Patch{}},
		"by bounds":     {&Entry{Stored: time.Second}, time.Hour, Patch{}},
		"serial":        {&Entry{Serial: modified(7)}, time.Hour, Patch{Serial: 7, SetSerial: true}},
		"serial wraps":  {&Entry{Serial: modified(1<<32 + 9)}, time.Hour, Patch{Serial: 9, SetSerial: true}},
		"options":       {&Entry{Options: options}, time.Hour, Patch{Options: options}},
		"everything":    {&Entry{Validity: validity.Validity{Expires: 9 * time.Second}, Options: options, Serial: modified(1)}, 8 * time.Second, Patch{Age: 8, Options: options, Serial: 1, SetSerial: true}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.entry.Patch(tt.now); fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// ofLength returns an answer with addresses and a text for which dns.Msg.Len returns a length, compressed or not. With
// escapes, the packed answer is shorter.
func ofLength(t *testing.T, length int, compress, escapes bool) *dns.Msg {
	t.Helper()
	m := message(t, "web.default.svc.cluster.local.", dns.TypeA)
	m.Compress = compress
	for i := 0; length-m.Len() > 300; i++ {
		m.Answer = append(m.Answer, newRecord(t, fmt.Sprintf("web.default.svc.cluster.local. 5 IN A 10.0.%d.%d", i/256, i%256)))
	}
	txt := &dns.TXT{Hdr: dns.RR_Header{Name: "txt.", Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{"", ""}}
	if escapes {
		txt.Txt[0] = `\"\"\"\"`
	}
	m.Extra = []dns.RR{txt}
	for n := length - m.Len(); n > 0; {
		part := min(n, 255)
		txt.Txt[len(txt.Txt)-1] = strings.Repeat("x", part)
		if n -= part; n > 0 {
			txt.Txt, n = append(txt.Txt, ""), n-1
		}
	}
	if m.Len() != length {
		t.Fatalf("length %d, want %d", m.Len(), length)
	}
	m.Compress = false
	return m
}

// TestForm asserts that Form selects the form that CoreDNS's writer sends, for lengths around each limit.
func TestForm(t *testing.T) {
	options := []byte{0, 15, 0, 4, 0, 3, 'o', 'k'}
	for _, limit := range []uint16{0, 512, 1220, 1232, 1480, 4096} { // 0: no EDNS
		for _, family := range []int{1, 2} {
			for delta := -24; delta <= 24; delta++ {
				for _, variant := range []string{"", "options", "escapes", "compressed", "compressed escapes"} {
					name := fmt.Sprintf("limit %d, family %d, %+d, %s", limit, family, delta, variant)
					length := max(int(limit), dns.MinMsgSize) + delta
					e, m := new(Entry), ofLength(t, length, strings.Contains(variant, "compressed"), strings.Contains(variant, "escapes"))
					if variant == "options" {
						e.Options = options
					}
					if err := e.Fill(m); err != nil {
						t.Fatal(err)
					}
					checkForm(t, name, e, m, limit, family)
				}
			}
		}
	}
}

// fragmentLimits are the lengths above which CoreDNS compresses names, by address family.
var fragmentLimits = map[int]int{1: 1480, 2: 1220}

func checkForm(t *testing.T, name string, e *Entry, m *dns.Msg, limit uint16, family int) {
	t.Helper()
	r := new(dns.Msg)
	r.SetQuestion(m.Question[0].Name, m.Question[0].Qtype)
	if limit != 0 {
		r.SetEdns0(limit, false)
	}
	query, q := queryOf(t, r)
	want := scrubbed(t, e, m, r, family)
	p := e.Patch(0)
	form := e.Form(&q, &p, q.Limit(), fragmentLimits[family])
	if form == nil {
		if !want.Truncated {
			t.Errorf("%s: no form, but CoreDNS does not truncate", name)
		}
		return
	}
	packed := packMsg(t, want)
	if got := form.AppendReply(nil, query, &q, &p); !bytes.Equal(got, packed) {
		t.Errorf("%s: %d bytes, CoreDNS sends %d (compressed %v, truncated %v)", name, len(got), len(packed), want.Compress, want.Truncated)
	}
}

// scrubbed returns the reply as CoreDNS's writer compresses or truncates it.
func scrubbed(t *testing.T, e *Entry, m, r *dns.Msg, family int) *dns.Msg {
	t.Helper()
	remote := "192.0.2.1"
	if family == 2 {
		remote = "2001:db8::1"
	}
	state := request.Request{Req: r.Copy(), W: &test.ResponseWriter{RemoteIP: remote}}
	reply := m.Copy()
	reply.Id = r.Id
	if len(e.Options) > 0 {
		reply.SetEdns0(0, false)
		reply.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: 15, Data: e.Options[4:]}}
	}
	if r.IsEdns0() == nil && len(e.Options) > 0 {
		reply.Extra = reply.Extra[:len(reply.Extra)-1]
	}
	state.SizeAndDo(reply)
	return state.Scrub(reply)
}

func TestFormOfUpperCase(t *testing.T) {
	e := new(Entry)
	if err := e.Fill(ofLength(t, 700, false, false)); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		q                wire.Query
		limit, fragments int
		want             *Answer
	}{
		"fits":                           {wire.Query{}, 4096, 4096, &e.Plain},
		"fits exactly":                   {wire.Query{}, 700, 700, &e.Plain},
		"fits in upper case":             {wire.Query{Upper: true}, 4096, 4096, &e.Plain},
		"over the limit":                 {wire.Query{}, 699, 4096, e.compressed},
		"over the limit, in upper case":  {wire.Query{Upper: true}, 699, 4096, nil},
		"over a fragment":                {wire.Query{}, 4096, 699, e.compressed},
		"over a fragment, in upper case": {wire.Query{Upper: true}, 4096, 699, nil},
		"compressed over a fragment":     {wire.Query{}, e.compressed.Len(), 100, e.compressed},
		"compressed over the limit":      {wire.Query{}, e.compressed.Len() - 1, 4096, nil},
		"over the limit with OPT":        {wire.Query{EDNS: true}, 710, 4096, e.compressed},
		"fits with OPT":                  {wire.Query{EDNS: true}, 711, 4096, &e.Plain},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := e.Form(&tt.q, &Patch{}, tt.limit, tt.fragments); got != tt.want {
				t.Errorf("got %p of %d bytes, want %p", got, got.Len(), tt.want)
			}
		})
	}
}

func TestFill(t *testing.T) {
	t.Run("compressed only if the plain form exceeds a client's limit", func(t *testing.T) {
		for length, want := range map[int]bool{100: false, 501: false, 502: true, 4000: true} {
			e := new(Entry)
			if err := e.Fill(ofLength(t, length, false, false)); err != nil {
				t.Fatal(err)
			}
			if got := e.compressed != nil; got != want {
				t.Errorf("length %d: compressed %v", length, got)
			}
		}
	})
	t.Run("options count to the length", func(t *testing.T) {
		e := &Entry{Options: []byte{0, 15, 0, 2, 0, 3}}
		if err := e.Fill(ofLength(t, 501, false, false)); err != nil || e.compressed == nil {
			t.Errorf("%v", err)
		}
	})
	t.Run("the message does not change", func(t *testing.T) {
		for _, compress := range []bool{false, true} {
			m := ofLength(t, 700, false, false)
			m.Compress = compress
			before := m.Copy()
			if err := new(Entry).Fill(m); err != nil || m.Compress != compress || m.String() != before.String() {
				t.Errorf("compress %v: %v", m.Compress, err)
			}
		}
	})
	t.Run("memory is not shared with the message", func(t *testing.T) {
		m, e := ofLength(t, 700, false, false), new(Entry)
		if err := e.Fill(m); err != nil {
			t.Fatal(err)
		}
		want := packMsg(t, m)
		m.Answer[0].(*dns.A).A[3]++
		query, q := queryOf(t, m)
		if got := e.Plain.AppendReply(nil, query, &q, &Patch{}); !bytes.Equal(got, want) {
			t.Error("the entry has changed with the message")
		}
	})
	refused := map[string]func(*dns.Msg){
		"extended rcode": func(m *dns.Msg) { m.Rcode = dns.RcodeBadVers },
		"OPT":            func(m *dns.Msg) { m.SetEdns0(1232, false) },
		"bad name":       func(m *dns.Msg) { m.Answer[0].Header().Name = "a..b." },
		"no question":    func(m *dns.Msg) { m.Question = nil },
		"too long": func(m *dns.Msg) {
			for len(m.Answer) < 4000 {
				m.Answer = append(m.Answer, m.Answer[0])
			}
		},
	}
	for name, change := range refused {
		t.Run(name, func(t *testing.T) {
			m := ofLength(t, 700, false, false)
			change(m)
			err := new(Entry).Fill(m)
			if err == nil {
				t.Error("no error")
			}
			if name == "extended rcode" && !errors.Is(err, errUnpackable) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestKindNames(t *testing.T) {
	for k, want := range map[Kind]string{Success: "success", Denial: "denial"} {
		if k.String() != want {
			t.Errorf("%q, want %q", k, want)
		}
	}
}
