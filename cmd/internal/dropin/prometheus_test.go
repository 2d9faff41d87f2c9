package dropin

import (
	"flag"
	"slices"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/nearside-dns/nearside/cmd/internal/metricsserver"
)

// TestPlainMetrics has prometheus directives with and without TLS, beside -tls-enabled.
func TestPlainMetrics(t *testing.T) {
	const about = "prometheus :9253 is without TLS: -tls-enabled applies to -metrics-listen-address; set the option tls of prometheus, or an address of the loopback interface"
	for _, tc := range []struct {
		name, text string
		flags      []string
		want       messages
	}{
		{"two blocks", "a {\n  prometheus :9253\n}\nb {\n  prometheus __PROMETHEUS__ENDPOINT__\n}\n", []string{"-tls-enabled"}, messages{{info, about}}},
		{"another option", "a {\n  prometheus :9253 {\n    runtime_metrics\n  }\n}\n", []string{"-tls-enabled"}, messages{{info, about}}},
		{"with TLS", "a {\n  prometheus :9253 {\n    tls /etc/web.yml\n  }\n}\n", []string{"-tls-enabled"}, nil},
		{"loopback addresses", "a {\n  prometheus localhost:9253\n}\nb {\n  prometheus 127.0.0.1:9254\n}\nc {\n  prometheus [::1]:9255\n}\nd {\n  prometheus\n}\n", []string{"-tls-enabled"}, nil},
		{"no prometheus", "a {\n}\n", []string{"-tls-enabled"}, nil},
		{"without -tls-enabled", "a {\n  prometheus :9253\n}\n", nil, nil},
		{"no other metrics", "a {\n  prometheus :9253\n}\n", []string{"-tls-enabled", "-metrics-listen-address", "0"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := example(t, "")
			v.metrics = &metricsserver.Server{Address: ":9353"}
			f := flag.NewFlagSet("nodecache", flag.ContinueOnError)
			v.metrics.Flags(f)
			kit.Must(t, f.Parse(tc.flags))
			if _, got := rendered(t, v, tc.text); !slices.Equal(got, tc.want) {
				t.Errorf("messages %v, want %v", got, tc.want)
			}
		})
	}
}
