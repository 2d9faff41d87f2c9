package forward

import (
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/forward/rogue"
	"github.com/nearside-dns/nearside/test/kit"
)

// folding returns a handler that replies with names in lower case, and the sight of its queries.
func folding(folds func(name string) bool) (dns.HandlerFunc, *sight) {
	s := new(sight)
	return replies(func(r *dns.Msg) *dns.Msg {
		s.add(r)
		if folds(r.Question[0].Name) {
			r.Question[0].Name = strings.ToLower(r.Question[0].Name)
		}
		return addressReply(r)
	}), s
}

// namesOf returns the names of queries for addresses, which checks are not.
func namesOf(s *sight) (names []string) {
	for _, m := range s.all() {
		if m.Question[0].Qtype == dns.TypeA {
			names = append(names, m.Question[0].Name)
		}
	}
	return names
}

// TestUpstreamThatFoldsTheCaseOfTheQuestion: clients get the answer, with the case of their query. Over UDP, the query is repeated
// with the name in lower case, until a check of the upstream has shown that it changes the case.
func TestUpstreamThatFoldsTheCaseOfTheQuestion(t *testing.T) {
	t.Parallel()
	const name, lower = "wWw.eXample.org.", "www.example.org."
	for proto, tcp := range map[string]bool{protoUDP: false, protoTCP: true} {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			handler, seen := folding(func(string) bool { return true })
			f := chainOf(t, stanzaOf("", script{udp: handler, host: nextHost()}.address(t)))
			want := []string{name, lower}
			if tcp {
				want = []string{name}
			}
			u := upstreamOf(f, 0)
			wantRight(t, f, tcp, name)
			if got := namesOf(seen); !slices.Equal(got, want) || u.doubted() {
				t.Errorf("queries for %v, want %v; the upstream is doubted: %t", got, want, u.doubted())
			}
			if n := metric(t, "nearside_forward_fallbacks_total", "to", u.address, "reason", "case"); n < 1 {
				t.Errorf("%v answers are counted", n)
			}
			if !tcp {
				kit.Eventually(t, "the check has found that the upstream changes the case", u.changesCase)
				want = append(want, lower)
			} else {
				want = append(want, name)
			}
			wantRight(t, f, tcp, name)
			if got := namesOf(seen); !slices.Equal(got, want) {
				t.Errorf("queries for %v, want %v", got, want)
			}
			wantRight(t, f, tcp, "other.example.org.")
		})
	}
}

// TestUpstreamThatFoldsTheCaseOverHTTPS: the answer is accepted at once.
func TestUpstreamThatFoldsTheCaseOverHTTPS(t *testing.T) {
	t.Parallel()
	certificate := rogue.NewCertificate(t, "127.0.0.1")
	w := startWeb(t, certificate.Config, func(r *dns.Msg) *dns.Msg {
		r.Question[0].Name = strings.ToLower(r.Question[0].Name)
		return addressReply(r)
	})
	f := chainOf(t, stanzaOf("tls "+certificate.CA, "https://"+w.at))
	wantRight(t, f, false, "wWw.eXample.org.")
	if n := metric(t, "nearside_forward_fallbacks_total", "to", w.at, "reason", "case"); n != 1 {
		t.Errorf("%v answers are counted, want 1", n)
	}
}

// TestNamesOfOneClientDoNotChangeTheCaseOfOthers has an upstream that changes the case of some names only: the check is about a name
// that no client chooses.
func TestNamesOfOneClientDoNotChangeTheCaseOfOthers(t *testing.T) {
	t.Parallel()
	handler, seen := folding(func(name string) bool { return strings.HasSuffix(strings.ToLower(name), "odd.") })
	f := chainOf(t, stanzaOf("", script{udp: handler, host: nextHost()}.address(t)))
	u := upstreamOf(f, 0)
	wantRight(t, f, false, "a.oDd.")
	if u.checkCase(); u.changesCase() {
		t.Error("the upstream counts as one that changes the case")
	}
	wantRight(t, f, false, "a.oTher.")
	if names := namesOf(seen); names[len(names)-1] != "a.oTher." {
		t.Errorf("queries for %v", names)
	}
}

// TestSignedQueryKeepsItsCase: a signature includes the name.
func TestSignedQueryKeepsItsCase(t *testing.T) {
	t.Parallel()
	handler, seen := folding(func(string) bool { return true })
	f := chainOf(t, stanzaOf("", script{udp: handler, host: nextHost()}.address(t)))
	m := question("wWw.eXample.org.")
	m.SetTsig("key.", dns.HmacSHA256, 300, 0)
	a := queryOver(f, m, false)
	if a.Msg == nil || a.Question[0].Name != "www.example.org." || !slices.Equal(namesOf(seen), []string{"wWw.eXample.org.", "wWw.eXample.org."}) {
		t.Errorf("code %d, error %v, message %v, queries for %v", a.code, a.err, a.Msg, namesOf(seen))
	}
}

func TestCaseName(t *testing.T) {
	for _, c := range []struct{ check, from, want string }{
		{".", ".", "lOcAlHoSt."}, {".", "cluster.local.", "cLuStEr.lOcAl."}, {"example.org.", "cluster.local.", "eXaMpLe.oRg."},
		{".", "1.", "lOcAlHoSt."},
	} {
		config := config{checkName: c.check, from: c.from}
		if got := mixedCase(config.caseName()); got != c.want {
			t.Errorf("health_check %s, zone %s: %s, want %s", c.check, c.from, got, c.want)
		}
	}
}
