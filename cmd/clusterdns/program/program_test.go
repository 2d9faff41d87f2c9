package program

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// lacking are the directives of CoreDNS that need a library of a cloud or of a database.
var lacking = []string{"azure", "clouddns", "etcd", "geoip", "nomad", "route53"}

// TestDirectives compares the directives with those of CoreDNS, in their order.
func TestDirectives(t *testing.T) {
	folder, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/coredns/coredns").Output()
	kit.Must(t, err)
	text := kit.Read(t, filepath.Join(strings.TrimSpace(string(folder)), "plugin.cfg"))
	var want []string
	for line := range strings.Lines(text) {
		if name, _, ok := strings.Cut(line, ":"); ok && !strings.HasPrefix(line, "#") && !slices.Contains(lacking, name) {
			want = append(want, name)
		}
	}
	own := []string{"fastpath", "multicluster", "searchpath"}
	got := slices.DeleteFunc(slices.Clone(Directives), func(name string) bool { return slices.Contains(own, name) })
	if len(want) < 50 || !slices.Equal(got, want) {
		t.Errorf("directives\n%q, want\n%q", got, want)
	}
}
