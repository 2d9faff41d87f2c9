package rules

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

func TestIPTablesText(t *testing.T) {
	for _, name := range []string{"one-address", "dual-stack", "other-port"} {
		t.Run(name, func(t *testing.T) {
			got, file := configs[name].IPTablesText(), filepath.Join("testdata", name+".iptables")
			if *update {
				kit.Must(t, os.WriteFile(file, []byte(got), 0o644))
			}
			want := kit.Read(t, file)
			if got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
	t.Run("twelve rules per address", func(t *testing.T) {
		if n := len(configs["health"].ipRules()); n != 12 {
			t.Errorf("%d rules", n)
		}
	})
}

// saved returns the rules of iptables, sorted.
func saved(t *testing.T) (all []string) {
	t.Helper()
	for _, program := range []string{"iptables-save", "ip6tables-save"} {
		for line := range strings.Lines(netns.Run(t, program)) {
			if strings.HasPrefix(line, "-A") {
				all = append(all, program+" "+strings.TrimSpace(line))
			}
		}
	}
	slices.Sort(all)
	return all
}

func TestKernelIPTables(t *testing.T) {
	netns.Enter(t)
	netns.Run(t, "iptables", "-A", "INPUT", "-p", "udp", "--dport", "53", "-j", "DROP")
	others := saved(t)
	c := configs["dual-stack"]
	rules, err := NewIPTables(c)
	kit.Must(t, err)
	if ok, err := rules.Intact(); ok || err != nil {
		t.Errorf("intact before they were applied: %t, %v", ok, err)
	}
	for range 2 { // the second time the rules are present
		kit.Must(t, rules.Apply())
	}
	if got, want := len(saved(t)), len(others)+rules.Rules(); got != want {
		t.Errorf("%d rules, want %d:\n%s", got, want, strings.Join(saved(t), "\n"))
	}
	if first := netns.Run(t, "iptables", "-S", "INPUT"); !strings.Contains(strings.Split(first, "\n")[1], "ACCEPT") {
		t.Errorf("the DROP of another program comes first:\n%s", first)
	}
	if ok, err := rules.Intact(); !ok || err != nil {
		t.Errorf("intact: %t, %v", ok, err)
	}
	netns.Run(t, "iptables", "-t", "raw", "-F", "OUTPUT")
	if ok, err := rules.Intact(); ok || err != nil {
		t.Errorf("intact after damage: %t, %v", ok, err)
	}
	kit.Must(t, rules.Apply())
	// Both copies of a rule are removed, as node-local-dns leaves some twice.
	r := c.ipRules()[0]
	netns.Run(t, "iptables", append([]string{"-t", r.table, "-I", r.chain}, r.spec...)...)
	for range 2 {
		kit.Must(t, rules.Remove())
		if got := saved(t); !slices.Equal(got, others) {
			t.Errorf("left:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(others, "\n"))
		}
	}
}

// TestKernelIPTablesAccepts accepts DNS in the existing filter tables.
func TestKernelIPTablesAccepts(t *testing.T) {
	netns.Enter(t)
	netns.Run(t, "iptables", "--version")
	c := configs["dual-stack"]
	for _, step := range []struct {
		name    string
		command []string // creates a table
		rules   int
	}{
		{"no table", nil, 0},
		{"another table", []string{"iptables", "-t", "nat", "-A", "OUTPUT", "-j", "ACCEPT"}, 0},
		{"IPv4", []string{"iptables", "-P", "INPUT", "DROP"}, 2 * 4},
		{"IPv6 as well", []string{"ip6tables", "-A", "INPUT", "-j", "REJECT"}, 3 * 4},
	} {
		if len(step.command) > 0 {
			netns.Run(t, step.command[0], step.command[1:]...)
		}
		before := saved(t)
		accepts, err := NewAccepts(c)
		kit.Must(t, err)
		if accepts.Rules() != step.rules {
			t.Errorf("%s: %d rules, want %d", step.name, accepts.Rules(), step.rules)
		}
		kit.Must(t, accepts.Apply())
		if n := len(saved(t)) - len(before); n != step.rules {
			t.Errorf("%s: %d rules added, want %d", step.name, n, step.rules)
		}
		kit.Must(t, accepts.Remove())
		if got := saved(t); !slices.Equal(got, before) {
			t.Errorf("%s: left %q, want %q", step.name, got, before)
		}
	}
}
