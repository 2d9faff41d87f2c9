package nodelocaldns

import (
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/cmd/internal/daemon"
)

// TestCallerOption has what the flags and the environment say of this node.
func TestCallerOption(t *testing.T) {
	name, zone := strings.Repeat("a", 253), strings.Repeat("Z", 63)
	for _, tc := range []struct {
		name    string
		environ map[string]string
		args    []string
		want    string
		wrong   string
	}{
		{"nothing", nil, nil, "", ""},
		{"flag", nil, []string{"-node-name", "node-a.example"}, "caller node-a.example", ""},
		{"flags", nil, []string{"-node-name", "node-a", "-node-zone", "Zone_1.a"}, "caller node-a Zone_1.a", ""},
		{"the longest", nil, []string{"-node-name", name, "-node-zone", zone}, "caller " + name + " " + zone, ""},
		{"zone alone", nil, []string{"-node-zone", "zone-1"}, "", ""},
		{"environment", map[string]string{"NODE_NAME": "node-b", "NODE_ZONE": "zone-2"}, nil, "caller node-b zone-2", ""},
		{"name of the environment", map[string]string{"NODE_NAME": "node-b"}, nil, "caller node-b", ""},
		{"flags go before", map[string]string{"NODE_NAME": "node-b", "NODE_ZONE": "zone-2"}, []string{"-node-name", "node-a", "-node-zone", "zone-1"}, "caller node-a zone-1", ""},
		{"flag and environment", map[string]string{"NODE_NAME": "node-b", "NODE_ZONE": "zone-2"}, []string{"-node-name", "node-a"}, "caller node-a zone-2", ""},
		{"turned off", map[string]string{"NODE_NAME": "node-b", "NODE_ZONE": "zone-2"}, []string{"-node-name="}, "", ""},
		{"without the zone", map[string]string{"NODE_NAME": "node-b", "NODE_ZONE": "zone-2"}, []string{"-node-zone="}, "caller node-b", ""},
		{"wrong name", map[string]string{"NODE_NAME": "Node B", "NODE_ZONE": "zone-2"}, nil, "", `variable NODE_NAME of the environment: "Node B" is not the name of a node`},
		{"wrong name, not used", map[string]string{"NODE_NAME": "Node B"}, []string{"-node-name", "node-a"}, "caller node-a", ""},
		{"wrong zone", map[string]string{"NODE_NAME": "node-b", "NODE_ZONE": "-"}, nil, "caller node-b", `variable NODE_ZONE of the environment: "-" is not the value of a label`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := node(t, tc.environ, tc.args...)
			who, where, err := n.itself()
			got := callerOption(who, where)
			if got != tc.want || (err == nil) != (tc.wrong == "") || err != nil && !strings.Contains(err.Error(), tc.wrong) {
				t.Errorf("option %q, error %v; want %q, %q", got, err, tc.want, tc.wrong)
			}
		})
	}
}

// TestCallerRendered: a variable that is wrong is told, and the Corefile is served.
func TestCallerRendered(t *testing.T) {
	const text = "cluster.local {\n    forward . __PILLAR__CLUSTER__DNS__\n}\n"
	for name, tc := range map[string]struct {
		node, want string
		remark     remark
	}{
		"right": {"node-a", "        caller node-a\n", remark{info, "cluster DNS is told which node asks: node-a"}},
		"wrong": {"Node", "        fallback udp\n    }\n", remark{failure, "variable NODE_NAME"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := node(t, map[string]string{"KUBE_DNS_SERVICE_HOST": "10.96.0.11", "NODE_NAME": tc.node})
			read := func(string) (daemon.Corefile, error) {
				return daemon.Corefile{Name: "f", Text: []byte(text)}, nil
			}
			got, err := n.Source("stdin", read)
			if err != nil || !strings.Contains(string(got.Text), tc.want) || len(n.remarks) != 1 {
				t.Errorf("error %v, remarks %v, rendered was\n%s", err, n.remarks, got.Text)
			}
			for _, r := range n.remarks {
				if r.severity != tc.remark.severity || !strings.HasPrefix(r.text, tc.remark.text) || strings.Contains(r.text, "\n") {
					t.Errorf("remark %+v", r)
				}
			}
		})
	}
}

// TestCallerRemarked has stanzas of which more could be told.
func TestCallerRemarked(t *testing.T) {
	const mixed = "cluster DNS is not told which node asks, since 10.in-addr.arpa. is forwarded here as well: write a block for each"
	for name, tc := range map[string]struct {
		text string
		want []remark
	}{
		"brace on another line":             {"cluster.local {\n    forward . 10.96.0.11\n    {\n    }\n}\n", []remark{{warning, "f:2 - cluster DNS is not told which node asks: forward has its brace on another line"}}},
		"brace on another line, addresses":  {"ip6.arpa {\n    forward . 10.96.0.11\n    {\n    }\n}\n", nil},
		"names and addresses":               {"cluster.local 10.in-addr.arpa {\n    forward . 10.96.0.11\n}\n", []remark{{info, "f:2 - " + mixed}}},
		"names and addresses, by a snippet": {"(s) {\n forward . 10.96.0.11\n}\n10.in-addr.arpa {\n import s\n}\ncluster.local {\n import s\n}\n", []remark{{info, "f:2 - " + mixed}}},
		"another server":                    {"cluster.local 10.in-addr.arpa {\n    forward . 10.96.0.11 10.96.0.12\n}\n", nil},
		"everything":                        {". {\n    forward . 10.96.0.11\n}\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			v := example(t, "")
			v.caller = "caller node-a"
			var said remarks
			v.remark = said.add
			got, err := v.render(daemon.Corefile{Name: "f", Text: []byte(tc.text)})
			if err != nil || strings.Contains(string(got.Text), callerIs) || !slices.Equal(said, tc.want) {
				t.Errorf("error %v, remarks %v, rendered was\n%s", err, said, got.Text)
			}
		})
	}
}
