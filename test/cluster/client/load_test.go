package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// startServer starts a server on the loopback interface that answers names beginning with "good", has no record for
// those with "empty", and fails for others. It counts its queries.
func startServer(t *testing.T) (address string, asked *atomic.Int64) {
	t.Helper()
	asked = &atomic.Int64{}
	address = kit.Serve(t, "127.0.0.1:0", func(w dns.ResponseWriter, query *dns.Msg) {
		asked.Add(1)
		reply := new(dns.Msg).SetReply(query)
		switch name := query.Question[0].Name; {
		case strings.HasPrefix(name, "good"):
			header := dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5}
			reply.Answer = []dns.RR{&dns.A{Hdr: header, A: net.IPv4(192, 0, 2, 1)}}
		case !strings.HasPrefix(name, "empty"):
			reply.Rcode = dns.RcodeServerFailure
		}
		_ = w.WriteMsg(reply) // a lost answer fails the test as well
	})
	return address, asked
}

// request sends a request to the program, and returns the status and the body.
func request(t *testing.T, server *httptest.Server, method, path string, values url.Values) (int, string) {
	t.Helper()
	r, err := http.NewRequest(method, server.URL+path+"?"+values.Encode(), nil)
	kit.Must(t, err)
	reply, err := server.Client().Do(r)
	kit.Must(t, err)
	text, err := io.ReadAll(reply.Body)
	kit.Must(t, err)
	kit.Must(t, reply.Body.Close())
	return reply.StatusCode, string(text)
}

func TestLoad(t *testing.T) {
	program := httptest.NewServer(newHandler())
	t.Cleanup(program.Close)
	for _, c := range []struct{ name, question, why string }{
		{"answered", "good#.test.", ""},
		{"without a record", "empty#.test.", "no record"},
		{"failed", "bad#.test.", "SERVFAIL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			address, asked := startServer(t)
			const path = "/load/1"
			if status, text := request(t, program, "POST", path, url.Values{"name": {c.question}, "rate": {"100"}, "server": {address}}); status != http.StatusOK {
				t.Fatal(text)
			}
			for end := time.Now().Add(time.Minute); asked.Load() < 20; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%d queries in a minute", asked.Load())
				}
			}
			status, text := request(t, program, "DELETE", path, nil)
			if status != http.StatusOK {
				t.Fatal(text)
			}
			var got outcome
			kit.Must(t, json.Unmarshal([]byte(text), &got))
			lost := 0
			for _, l := range got.Lost {
				lost++
				if l.Why != c.why {
					t.Errorf("lost for %q, want %q", l.Why, c.why)
				}
			}
			if int64(got.Sent) != asked.Load() || got.Answered+lost != got.Sent || (got.Answered == 0) != (c.why != "") {
				t.Errorf("%d sent, %d answered, %d lost, and the server was asked %d times", got.Sent, got.Answered, lost, asked.Load())
			}
		})
	}
	t.Run("none to stop", func(t *testing.T) {
		if status, _ := request(t, program, "DELETE", "/load/1", nil); status == http.StatusOK {
			t.Error("a load that does not run is stopped without an error")
		}
	})
}
