package docs

import (
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// troubleshooting is the page that explains the checks of nodecache doctor.
const troubleshooting = "docs/troubleshooting.md"

// explained returns patterns of the checks in the first column of a page's table: words in capitals match any word.
func explained(page string) (all []*regexp.Regexp) {
	_, table, _ := strings.Cut(page, "\n## The checks\n")
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "## ") {
			break
		}
		cells := strings.Split(line, "|")
		if len(cells) < 2 {
			continue
		}
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
			pattern := regexp.MustCompile(`[A-Z]{4,}`).ReplaceAllString(regexp.QuoteMeta(name[1]), `\S+`)
			all = append(all, regexp.MustCompile("^"+pattern+"$"))
		}
	}
	return all
}

// notExplained returns the checks that match no pattern.
func notExplained(checks []string, patterns []*regexp.Regexp) (all []string) {
	for _, check := range checks {
		if !slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(check) }) {
			all = append(all, check)
		}
	}
	return all
}

// TestChecksOfDoctor checks that the page explains every line that nodecache doctor prints on a machine without nodecache.
// Its queries go to loopback addresses only.
func TestChecksOfDoctor(t *testing.T) {
	folder := t.TempDir()
	conf, corefile := filepath.Join(folder, "resolv.conf"), filepath.Join(folder, "Corefile")
	for path, text := range map[string]string{
		conf:     "nameserver 127.0.0.1\n",
		corefile: "import none/*.server\n.:1 {\n import none/*.override\n fastpath {\n  kernel on\n }\n prometheus 127.0.0.1:1\n}\n",
	} {
		kit.Write(t, path, text)
	}
	cmd := exec.Command(daemon.Program(t, "nodecache"), "doctor", "-o", "json", "-localip", "127.0.0.98,::1", "-dns.port", "1", "-conf", corefile,
		"-clusterdns", "127.0.0.1:1", "-upstream", "127.0.0.1:1", "-health-port", "1", "-resolvconf", conf)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		t.Fatalf("%v\n%s", err, out)
	} else if exit != nil && len(exit.Stderr) > 0 {
		t.Errorf("beside the lines it prints %q", exit.Stderr)
	}
	var lines []struct{ Check string }
	kit.Must(t, json.Unmarshal(out, &lines))
	var checks []string
	for _, l := range lines {
		checks = append(checks, strings.Replace(l.Check, "port 1 ", "port 53 ", 1)) // its name with the default port
	}
	if len(checks) < 25 {
		t.Errorf("%d checks: %q", len(checks), checks)
	}
	patterns := explained(documents(t)[troubleshooting])
	for _, check := range notExplained(checks, patterns) {
		t.Errorf("%s: the check %q is not explained", troubleshooting, check)
	}
	t.Run("can fail", func(t *testing.T) {
		patterns := explained("# a\n## The checks\n| check | b |\n|---|---|\n| `lease`, `lease ADDRESS` | `port` |\n## c\n| `other` | |\n")
		got := notExplained([]string{"lease", "lease ::1", "lease of", "lease a b", "port", "other"}, patterns)
		if want := []string{"lease a b", "port", "other"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}
