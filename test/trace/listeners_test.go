package trace

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/coredns/coredns/pb"
	"github.com/miekg/dns"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/forward/rogue"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/zipkin"
)

// badHeader is a value of the header b3 at which zipkin-go panics.
const badHeader = "463ac35c9f6413ad463ac35c9f6413ade"

// TestBesideFastPath has a block with a fast path and one with trace on the same listener.
func TestBesideFastPath(t *testing.T) {
	u, z := startUpstream(t), zipkin.New(t)
	metrics := dead(t)
	corefile := strings.ReplaceAll(`.:PORT {
    bind 127.0.0.1
    trace COLLECTOR {
        zipkin_max_batch_interval 10ms
    }
    prometheus METRICS
    cache
    forward . UPSTREAM
}
fast.example:PORT {
    bind 127.0.0.1
    prometheus METRICS
    cache
    forward . UPSTREAM
}
`, "METRICS", metrics)
	p := start(t, daemon.Program(t, "nodecache"), z, u, corefile, "-metrics-listen-address=")
	kit.Eventually(t, "fast path", func() bool { return strings.Contains(p.Output(), "fast path for fast.example.") })
	for _, network := range []string{"udp", "tcp"} {
		for range 5 {
			kit.Ask(t, network, p.Addr, network+".traced.example.", dns.TypeA)
			kit.Ask(t, network, p.Addr, network+".fast.example.", dns.TypeA)
		}
		traces := z.Traces(t, 5, tagName, network+".traced.example.")
		if tree := zipkin.Tree(traces[4]); len(traces) != 5 || !strings.HasPrefix(tree, "servedns coredns.io/name="+network+".traced.example. coredns.io/proto="+network+" coredns.io/rcode=NOERROR coredns.io/remote=127.0.0.1 ") {
			t.Errorf("%d traces, the last one:\n%s", len(traces), tree)
		}
	}
	s := z.Await(t, "state", func(zipkin.State) bool { return true })
	if fast := s.Roots(tagName, "udp.fast.example."); len(fast) > 0 {
		t.Errorf("spans of the other block: %+v", fast)
	}
	if n := daemon.Scrape(t, http.DefaultClient, metrics).Sum("nearside_fastpath_answered_total"); n == 0 {
		t.Error("no answers of the fast path")
	}
}

// TestHTTPS continues the trace of a client over HTTPS. A client with a header at which zipkin-go panics is served.
func TestHTTPS(t *testing.T) {
	u, z := startUpstream(t), zipkin.New(t)
	certificate := rogue.NewCertificate(t, "dns.test")
	const corefile = `https://.:HTTPS {
    bind 127.0.0.1
    tls CERT KEY
    trace COLLECTOR {
        zipkin_max_batch_interval 10ms
    }
    errors
    debug
    forward . UPSTREAM
}
.:PORT {
    bind 127.0.0.1
}
`
	address := dead(t)
	port := address[strings.LastIndex(address, ":")+1:]
	start(t, daemon.Program(t, "clusterdns"), z, u, strings.NewReplacer("HTTPS", port, "CERT", certificate.Cert, "KEY", certificate.Key).Replace(corefile))
	authority, err := os.ReadFile(certificate.CA)
	kit.Must(t, err)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		t.Fatal("no certificate")
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "dns.test"}, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	for _, header := range []string{badHeader, "463ac35c9f6413ad-0020000000000001-1"} {
		query, err := new(dns.Msg).SetQuestion("a.example.", dns.TypeA).Pack()
		kit.Must(t, err)
		r, err := http.NewRequest(http.MethodPost, "https://"+address+"/dns-query", bytes.NewReader(query))
		kit.Must(t, err)
		r.Header.Set("Content-Type", "application/dns-message")
		r.Header.Set("b3", header)
		reply, err := client.Do(r)
		kit.Must(t, err)
		if err := reply.Body.Close(); err != nil || reply.StatusCode != http.StatusOK {
			t.Errorf("header %s: status %d, %v", header, reply.StatusCode, err)
		}
	}
	z.Traces(t, 1, tagName, "a.example.") // of the client with the invalid header
	awaitChild(t, z, "servedns", "0020000000000001")
}

// awaitChild waits for a span that is a child of a client's.
func awaitChild(t *testing.T, z *zipkin.Collector, name, parent string) {
	t.Helper()
	z.Await(t, "child of the client's span", func(s zipkin.State) bool {
		for _, span := range s.Spans {
			if span.TraceID == "463ac35c9f6413ad" && span.Name == name && (parent == "" || span.ParentID == parent) {
				return true
			}
		}
		return false
	})
}

// TestGRPC continues the trace of a client over gRPC. A client with a header at which zipkin-go panics is served.
func TestGRPC(t *testing.T) {
	u, z := startUpstream(t), zipkin.New(t)
	const corefile = `grpc://.:GRPC {
    bind 127.0.0.1
    trace COLLECTOR {
        zipkin_max_batch_interval 10ms
    }
    errors
    debug
    forward . UPSTREAM
}
.:PORT {
    bind 127.0.0.1
}
`
	address := dead(t)
	port := address[strings.LastIndex(address, ":")+1:]
	start(t, daemon.Program(t, "clusterdns"), z, u, strings.ReplaceAll(corefile, "GRPC", port))
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	kit.Must(t, err)
	defer func() { _ = connection.Close() }()
	for _, header := range []string{badHeader, "463ac35c9f6413ad-0020000000000001-1"} {
		query, err := new(dns.Msg).SetQuestion("a.example.", dns.TypeA).Pack()
		kit.Must(t, err)
		ctx := metadata.AppendToOutgoingContext(context.Background(), "b3", header)
		if _, err := pb.NewDnsServiceClient(connection).Query(ctx, &pb.DnsPacket{Msg: query}); err != nil {
			t.Errorf("header %s: %v", header, err)
		}
	}
	awaitChild(t, z, "forward", "")
}
