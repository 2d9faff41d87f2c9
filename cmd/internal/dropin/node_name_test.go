package dropin

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/cmd/internal/daemon"
	"github.com/nearside-dns/nearside/internal/nodefacts"
)

// TestNodeNameAndZone has names and zones of the flags and of the environment.
func TestNodeNameAndZone(t *testing.T) {
	name, zone := strings.Repeat("a", 253), strings.Repeat("Z", 63)
	for _, tc := range []struct {
		name    string
		environ map[string]string
		args    []string
		want    string
		invalid string
	}{
		{"nothing", nil, nil, "", ""},
		{"flag", nil, []string{"-node-name", "node-a.example"}, "node-a.example", ""},
		{"flags", nil, []string{"-node-name", "node-a", "-node-zone", "Zone_1.a"}, "node-a Zone_1.a", ""},
		{"the longest", nil, []string{"-node-name", name, "-node-zone", zone}, "" + name + " " + zone, ""},
		{"zone alone", nil, []string{"-node-zone", "zone-1"}, " zone-1", ""},
		{"environment", map[string]string{"NODE_NAME": "node-b", "NODE_ZONE": "zone-2"}, nil, "node-b zone-2", ""},
		{"name of the environment", map[string]string{"NODE_NAME": "node-b"}, nil, "node-b", ""},
		{"flags go before", map[string]string{"NODE_NAME": "node-b", "NODE_ZONE": "zone-2"}, []string{"-node-name", "node-a", "-node-zone", "zone-1"}, "node-a zone-1", ""},
		{"flag and environment", map[string]string{"NODE_NAME": "node-b", "NODE_ZONE": "zone-2"}, []string{"-node-name", "node-a"}, "node-a zone-2", ""},
		{"turned off", map[string]string{"NODE_NAME": "node-b", "NODE_ZONE": "zone-2"}, []string{"-node-name="}, " zone-2", ""},
		{"without the zone", map[string]string{"NODE_NAME": "node-b", "NODE_ZONE": "zone-2"}, []string{"-node-zone="}, "node-b", ""},
		{"wrong name", map[string]string{"NODE_NAME": "Node B", "NODE_ZONE": "zone-2"}, nil, "", `variable NODE_NAME of the environment: "Node B" is not the name of a node`},
		{"wrong name, not used", map[string]string{"NODE_NAME": "Node B"}, []string{"-node-name", "node-a"}, "node-a", ""},
		{"wrong zone", map[string]string{"NODE_NAME": "node-b", "NODE_ZONE": "-"}, nil, "node-b", `variable NODE_ZONE of the environment: "-" is not the value of a label`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := node(t, tc.environ, tc.args...)
			name, zone, err := n.nodeNameAndZone()
			got := strings.TrimSuffix(name+" "+zone, " ")
			if got != tc.want || (err == nil) != (tc.invalid == "") || err != nil && !strings.Contains(err.Error(), tc.invalid) {
				t.Errorf("node %q, error %v; want %q, %q", got, err, tc.want, tc.invalid)
			}
		})
	}
}

// TestNodeName has the name of the node in the facts of a Corefile. An invalid variable is logged, and the Corefile is
// served.
func TestNodeName(t *testing.T) {
	const text = "cluster.local {\n    forward . __PILLAR__CLUSTER__DNS__\n    autopath @nodelocal\n}\n"
	for name, tc := range map[string]struct {
		environ map[string]string
		args    []string
		want    string
		message message
	}{
		"flag":        {nil, []string{"-node-name", "node-a", "-node-zone", "zone-1"}, "node-a", message{info, "node name is sent to cluster DNS: node-a zone-1"}},
		"environment": {map[string]string{"NODE_NAME": "node-b.example"}, nil, "node-b.example", message{info, "node name is sent to cluster DNS: node-b.example"}},
		"invalid":     {map[string]string{"NODE_NAME": "-"}, nil, "", message{failure, "variable NODE_NAME of the environment: "}},
		"none":        {nil, []string{"-node-zone", "zone-1"}, "", message{}},
	} {
		t.Run(name, func(t *testing.T) {
			environ := map[string]string{"KUBE_DNS_SERVICE_HOST": "10.96.0.11"}
			maps.Copy(environ, tc.environ)
			n := node(t, environ, tc.args...)
			read := func(string) (daemon.Corefile, error) { return daemon.Corefile{Name: "f", Text: []byte(text)}, nil }
			got, err := n.Source("stdin", read)
			if err != nil || string(got.Text) != strings.Replace(text, clusterDNS, "10.96.0.11", 1) {
				t.Fatalf("error %v, rendered was\n%s", err, got.Text)
			}
			want := nodefacts.Forward{TCP: true, Caller: tc.want != "", ClusterDNS: true}
			if f := got.Facts; f.Corefile != "f" || f.Node != tc.want || len(f.Forward) != 1 || !reflect.DeepEqual(f.Forward[2], want) {
				t.Errorf("facts %+v", got.Facts)
			}
			if len(n.logged) > 1 || len(n.logged) == 0 != (tc.message == message{}) {
				t.Fatalf("messages %v", n.logged)
			}
			for _, m := range n.logged {
				if m.severity != tc.message.severity || !strings.HasPrefix(m.text, tc.message.text) || strings.Contains(m.text, "\n") {
					t.Errorf("message %+v", m)
				}
			}
		})
	}
}

// TestCallerReported has forward directives whose queries could have the name of the node in other server blocks.
func TestCallerReported(t *testing.T) {
	const mixed = "node name is not sent to cluster DNS, since 10.in-addr.arpa. is forwarded here as well: write a block for each"
	none := message{info, "node name is not sent to cluster DNS: nothing forwards zones of the cluster to cluster DNS alone, in this file itself"}
	for name, tc := range map[string]struct {
		text string
		want []message
	}{
		"names and addresses":               {"cluster.local 10.in-addr.arpa {\n    forward . 10.96.0.11\n}\n", []message{{info, "f:2 - " + mixed}, none}},
		"names and addresses, by a snippet": {"(s) {\n forward . 10.96.0.11\n}\n10.in-addr.arpa {\n import s\n}\ncluster.local {\n import s\n}\n", []message{{info, "f:2 - " + mixed}, none}},
		"another server":                    {"cluster.local 10.in-addr.arpa {\n    forward . 10.96.0.11 10.96.0.12\n}\n", []message{none}},
		"everything":                        {". {\n    forward . 10.96.0.11\n}\n", []message{none}},
		"the same in the Corefile":          {"cluster.local {\n    forward . 10.96.0.11 {\n        caller node-a\n    }\n}\n", []message{{info, "node name is sent to cluster DNS: node-a"}}},
		"a file of cluster DNS":             {"cluster.local {\n    forward . /etc/cluster-dns\n}\n", []message{{info, "node name is sent to cluster DNS: node-a"}}},
	} {
		t.Run(name, func(t *testing.T) {
			v := example(t, "")
			v.node = "node-a"
			if strings.Contains(tc.text, "/etc/cluster-dns") {
				v.nameservers = func(string, addresses) ([]string, error) { return []string{"10.96.0.11"}, nil }
			}
			var logged messages
			v.report = logged.add
			got, err := v.render(daemon.Corefile{Name: "f", Text: []byte(tc.text)})
			if err != nil || string(got.Text) != tc.text || !slices.Equal(logged, tc.want) {
				t.Errorf("error %v, messages %v, rendered was\n%s", err, logged, got.Text)
			}
		})
	}
}
