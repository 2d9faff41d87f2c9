package trace

import (
	"fmt"
	"strings"
	"testing"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"

	"github.com/nearside-dns/nearside/plugin/internal/corefile"
)

func TestParse(t *testing.T) {
	const defaults = "http://localhost:9411/api/v2/spans every 1 coredns false 1000 100 1s"
	with := func(endpoint string) string {
		return strings.Replace(defaults, "http://localhost:9411/api/v2/spans", endpoint, 1)
	}
	for _, tc := range []struct{ name, text, want string }{
		{"default", "trace", defaults},
		{"empty endpoint", `trace ""`, defaults},
		{"address", "trace zipkin.example:1234", with("http://zipkin.example:1234/api/v2/spans")},
		{"IPv6 address", "trace [2001:db8::1]:9411", with("http://[2001:db8::1]:9411/api/v2/spans")},
		{"a host called zipkin", "trace zipkin", with("http://zipkin/api/v2/spans")},
		{"type", "trace zipkin zipkin.example:1234", with("http://zipkin.example:1234/api/v2/spans")},
		{"type in upper case", "trace ZIPKIN zipkin.example:1234", with("http://zipkin.example:1234/api/v2/spans")},
		{"URL", "trace https://a.example/custom?Tenant=Blue", with("https://a.example/custom?Tenant=Blue")},
		{"URL in upper case", "trace zipkin HTTP://a.example/custom", with("http://a.example/custom")},
		{"options", "trace {\nevery 100\nservice Node\nclient_server\nzipkin_max_backlog_size 7\nzipkin_max_batch_size 8\nzipkin_max_batch_interval 10ms\n}", "http://localhost:9411/api/v2/spans every 100 Node true 7 8 10ms"},
		{"zeros are defaults", "trace {\nzipkin_max_backlog_size 0\nzipkin_max_batch_size 0\nzipkin_max_batch_interval 0s\n}", defaults},
		{"the last of an option", "trace {\nclient_server\nclient_server false\nevery 2\nevery 0\n}", strings.Replace(defaults, "every 1", "every 0", 1)},
		{"an option of Datadog", "trace {\ndatadog_analytics_rate 0.5\ndatadog_analytics_rate\n}", defaults},
		{"Datadog", "trace datadog localhost:8126", `Testfile:1 - Error during parsing: invalid trace "datadog" "localhost:8126": want zipkin and an endpoint: nearside sends spans to Zipkin collectors only`},
		{"unknown type", "trace jaeger localhost:4321", `invalid trace "jaeger" "localhost:4321": want zipkin`},
		{"three arguments", "trace zipkin a b", `invalid trace "zipkin" "a" "b": want [ENDPOINT-TYPE] [ENDPOINT]`},
		{"no host", "trace http:///api", `invalid trace "http:///api": want an address, or a URL`},
		{"no port", "trace localhost:http", `invalid trace "localhost:http": want an address, or a URL`},
		{"every", "trace {\nevery -1\n}", `Testfile:2 - Error during parsing: invalid every "-1": want a number of queries`},
		{"no number", "trace {\nevery\n}", "invalid every: want a number of queries"},
		{"service", "trace {\nservice\n}", "invalid service: want a name"},
		{"client_server", "trace {\nclient_server junk\n}", `invalid client_server "junk": want true, false or nothing`},
		{"backlog", "trace {\nzipkin_max_backlog_size -1\n}", `invalid zipkin_max_backlog_size "-1": want 1-1000000, or 0 for 1000`},
		{"large batch", "trace {\nzipkin_max_batch_size 1000001\n}", `invalid zipkin_max_batch_size "1000001": want 1-1000000, or 0 for 100`},
		{"interval", "trace {\nzipkin_max_batch_interval 1us\n}", `invalid zipkin_max_batch_interval "1us": want 1ms or longer`},
		{"no duration", "trace {\nzipkin_max_batch_interval 1\n}", `invalid zipkin_max_batch_interval "1": want`},
		{"rate", "trace {\ndatadog_analytics_rate NaN\n}", `invalid datadog_analytics_rate "NaN": want 0-1`},
		{"unknown option", "trace {\nevrey 100\n}", `unknown option "evrey": want one of`},
		{"twice", "trace\ntrace", "duplicate trace"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := caddy.NewTestController("dns", tc.text)
			got := ""
			s, err := corefile.Once(c, parse)
			if err != nil {
				got = err.Error()
			} else {
				got = fmt.Sprint(s.endpoint, " every ", s.every, " ", s.service, " ", s.shared, " ", s.backlog, " ", s.batch, " ", s.interval)
			}
			if !strings.Contains(got, tc.want) || err == nil && got != tc.want {
				t.Errorf("%s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestLocalEndpoint(t *testing.T) {
	for _, tc := range []struct {
		name  string
		hosts []string
		want  string
	}{
		{"no address", []string{""}, `{"serviceName":"coredns"}`},
		{"no host", nil, `{"serviceName":"coredns"}`},
		{"IPv4", []string{"192.0.2.1", "2001:db8::1"}, `{"serviceName":"coredns","ipv4":"192.0.2.1","port":53}`},
		{"IPv6", []string{"2001:db8::1"}, `{"serviceName":"coredns","ipv6":"2001:db8::1","port":53}`},
		{"link-local", []string{"fe80::1%eth0"}, `{"serviceName":"coredns","ipv6":"fe80::1","port":53}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := localEndpoint("coredns", &dnsserver.Config{ListenHosts: tc.hosts, Port: "53"}).MarshalJSON()
			if err != nil || string(got) != tc.want {
				t.Errorf("%s, %v, want %s", got, err, tc.want)
			}
		})
	}
}
