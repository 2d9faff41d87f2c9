//go:build linux

package clients

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

const (
	// curveRounds is the number of measurements of each server; the curve is that of the median.
	curveRounds = 3
	// maxRate is the rate of queries at the end of a measurement, per second, and rampSeconds its duration.
	maxRate     = 200_000
	rampSeconds = 10
)

// peer is a server of the curves.
type peer struct {
	name    string
	start   func(t *testing.T, n *netns.Namespace) *netns.Process
	address string
}

// otherIP is the address of the servers for comparison.
const otherIP = "10.2.0.1"

// unboundConfig is the configuration of Unbound, a cache in front of clusterdns, as nodecache is.
const unboundConfig = `server:
    directory: "FOLDER"
    chroot: ""
    username: ""
    pidfile: ""
    use-syslog: no
    do-daemonize: no
    num-threads: 1
    interface: ` + otherIP + `
    access-control: 0.0.0.0/0 allow
    module-config: "iterator"
    do-not-query-localhost: no
    do-ip6: no
    outgoing-range: 512
remote-control:
    control-enable: no
forward-zone:
    name: "."
    forward-addr: ` + clusterIP + `
`

// peers are the servers of the curves: three caches in front of clusterdns, and clusterdns.
func peers() []peer {
	return []peer{
		{"nodecache", func(t *testing.T, n *netns.Namespace) *netns.Process {
			return onServerCore(t, n, daemon.ProgramWithoutRace(t, "nodecache"), "-conf", corefile(t, curveCorefile), "-localip", nodeIP)
		}, nodeIP},
		{"CoreDNS", func(t *testing.T, n *netns.Namespace) *netns.Process {
			text := strings.ReplaceAll(curveCorefile, "bind "+nodeIP, "bind "+otherIP)
			return onServerCore(t, n, controlplane.RequireBinary(t, "coredns"), "-conf", corefile(t, text))
		}, otherIP},
		{"Unbound", startUnbound, otherIP},
		{"clusterdns", nil, clusterIP},
	}
}

func startUnbound(t *testing.T, n *netns.Namespace) *netns.Process {
	t.Helper()
	path, err := exec.LookPath("unbound")
	kit.Must(t, err)
	program, err := os.ReadFile(path)
	kit.Must(t, err)
	folder := t.TempDir()
	own := filepath.Join(folder, "unbound") // AppArmor's profile permits the installed program to read its default configuration only
	file := filepath.Join(folder, "unbound.conf")
	kit.Must(t, os.WriteFile(own, program, 0o700))
	kit.Write(t, file, strings.ReplaceAll(unboundConfig, "FOLDER", folder))
	return onServerCore(t, n, own, "-d", "-c", file)
}

// curveTTL is the TTL of answers and denials, in seconds, which is longer than a measurement: no cached reply expires in one.
const curveTTL = "3600"

// curveCorefile is the Corefile of nodecache and CoreDNS with that TTL.
var curveCorefile = strings.NewReplacer("9984 30", "9984 "+curveTTL, "9984 5", "9984 "+curveTTL).Replace(nodeCorefile)

// onServerCore starts a server on the second core; resperf has the first.
func onServerCore(t *testing.T, n *netns.Namespace, program string, args ...string) *netns.Process {
	t.Helper()
	environment := []string{"KUBE_DNS_SERVICE_HOST=" + clusterIP, "NODE_NAME=", "NODE_ZONE="}
	return n.StartWith(t, environment, "taskset", append([]string{"-c", "1", program}, args...)...)
}

// point is a line of resperf's plot: rates per second, and the mean latency in milliseconds. With another load on its core, resperf
// sends less than the target.
type point struct{ target, sent, responses, latency float64 }

// enough is the part of the target that resperf has to send.
const enough = 0.98

// curve is a measurement.
type curve struct {
	highest, lost float64 // responses per second, and the loss at that rate in percent
	points        []point
}

// curvesVariable is the environment variable with the path of the page that TestCurves writes.
const curvesVariable = "NEARSIDE_CURVES"

// TestCurves measures responses per second against queries per second by resperf.
func TestCurves(t *testing.T) {
	path := os.Getenv(curvesVariable)
	if path == "" {
		t.Skipf("only with %s, the path of a page", curvesVariable)
	}
	netns.Require(t, "ip", "nft", "dig", "taskset", "resperf", "unbound")
	n := netns.Add(t, "curves")
	for _, a := range []string{clusterIP, otherIP} {
		n.Run(t, "ip", "addr", "add", a+"/32", "dev", "lo")
	}
	config := clusterConfig(t, strings.ReplaceAll(clusterCorefile, "ttl 30", "ttl "+curveTTL))
	onServerCore(t, n, daemon.ProgramWithoutRace(t, "clusterdns"), "-conf", config)
	await(t, n, clusterIP)
	queries := filepath.Join(t.TempDir(), "queries")
	var text strings.Builder
	for i := range endpoints {
		// A quarter of the replies is NXDOMAIN, as checkCodes wants.
		fmt.Fprintf(&text, "%s.many%s A\nweb%s AAAA\nalias%s A\nabsent-%d%s A\n", hostname(i), inServices, inServices, inServices, i, inServices)
	}
	kit.Write(t, queries, text.String())
	curves := map[string][]curve{}
	for range curveRounds {
		for _, p := range peers() {
			var process *netns.Process
			if p.start != nil {
				process = p.start(t, n)
			}
			await(t, n, p.address)
			curves[p.name] = append(curves[p.name], measure(t, n, p.address, queries))
			if process != nil {
				process.Kill(t)
			}
		}
	}
	kit.Must(t, os.WriteFile(path, []byte(curvesPage(curves)), 0o644))
}

var (
	highestLine = regexp.MustCompile(`Maximum throughput:\s+([0-9.]+) qps`)
	lostLine    = regexp.MustCompile(`Lost at that point:\s+([0-9.]+)%`)
	codesLine   = regexp.MustCompile(`Response codes:\s+(.+)`)
	codePart    = regexp.MustCompile(`^(\w+) \d+ \(([0-9.]+)%\)$`)
)

// measure runs resperf against a server that has all answers in its cache.
func measure(t *testing.T, n *netns.Namespace, address, queries string) (c curve) {
	t.Helper()
	plot := filepath.Join(t.TempDir(), "plot")
	args := []string{
		"netns", "exec", n.Name, "taskset", "-c", "0", "resperf", "-s", address, "-d", queries, "-R", "-C", "10",
		"-P", plot, "-i", "1", "-t", "2", "-F", "0",
	}
	for _, more := range [][]string{{"-m", "2000", "-r", "2"}, {"-m", strconv.Itoa(maxRate), "-r", strconv.Itoa(rampSeconds), "-L", "10"}} {
		out, err := exec.CommandContext(t.Context(), "ip", append(slices.Clone(args), more...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("resperf: %v\n%s", err, out)
		}
		highest, lost := highestLine.FindSubmatch(out), lostLine.FindSubmatch(out)
		if highest == nil || lost == nil {
			t.Fatalf("output of resperf:\n%s", out)
		}
		checkCodes(t, string(out))
		c = curve{highest: parseFloat(t, string(highest[1])), lost: parseFloat(t, string(lost[1]))}
	}
	text := kit.Read(t, plot)
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 6 {
			continue
		}
		if fields[0] == "#" {
			if got := strings.Join(fields[1:], " "); !strings.HasPrefix(got, plotColumns) {
				t.Fatalf("columns of resperf's plot: %s, want %s", got, plotColumns)
			}
			continue
		}
		c.points = append(c.points, point{
			target: parseFloat(t, fields[1]), sent: parseFloat(t, fields[2]),
			responses: parseFloat(t, fields[3]), latency: 1000 * parseFloat(t, fields[5]),
		})
	}
	return c
}

// plotColumns are the first columns of resperf's plot.
const plotColumns = "time target_qps actual_qps responses_per_sec failures_per_sec avg_latency"

// checkCodes fails the test unless three quarters of the replies are NOERROR and the others NXDOMAIN, as for the queries. Lost ones
// may change that by a percent.
func checkCodes(t *testing.T, out string) {
	t.Helper()
	want := map[string]float64{"NOERROR": 75, "NXDOMAIN": 25}
	line := codesLine.FindStringSubmatch(out)
	if line == nil {
		t.Fatalf("output of resperf:\n%s", out)
	}
	for part := range strings.SplitSeq(line[1], ", ") {
		m := codePart.FindStringSubmatch(strings.TrimSpace(part))
		if m == nil {
			t.Fatalf("response codes of resperf: %q", line[1])
		}
		if got := parseFloat(t, m[2]); math.Abs(got-want[m[1]]) > 1 {
			t.Errorf("%.2f %% of the replies are %s, want %.0f %%", got, m[1], want[m[1]])
		}
		delete(want, m[1])
	}
	if len(want) > 0 {
		t.Errorf("no replies with %v in %s", want, line[1])
	}
}

func parseFloat(t *testing.T, text string) float64 {
	t.Helper()
	number, err := strconv.ParseFloat(text, 64)
	kit.Must(t, err)
	return number
}

// curvesPage is the page with the curves, in Markdown.
func curvesPage(curves map[string][]curve) string {
	var text strings.Builder
	fmt.Fprintf(&text, `# Curves of resperf

%s writes this page. resperf raises the rate of queries from 0 to %d per second in %d seconds, and stops when a
tenth is lost. The server has one core, resperf the other. Before, each server receives every query once, and all TTLs are of
%s seconds, so that the caches of nodecache, CoreDNS (with the same Corefile) and Unbound have all replies. Three quarters of the
replies are NOERROR and one quarter NXDOMAIN. Each server is measured %d times; the curve is that of the median. A point with a *
is one where resperf itself sent less than %.0f %% of its target. CPU per query, which other load on the machine changes less, is
in [bench](../bench/RESULTS.md).

`, "`make curves`", maxRate, rampSeconds, curveTTL, curveRounds, 100*enough)
	text.WriteString("| server | highest rate, median | lowest and highest | lost at that rate |\n|---|---|---|---|\n")
	medians := map[string]curve{}
	for _, p := range peers() {
		all := curves[p.name]
		slices.SortFunc(all, func(a, b curve) int { return cmp.Compare(a.highest, b.highest) })
		m := all[len(all)/2]
		medians[p.name] = m
		fmt.Fprintf(&text, "| %s | %.0f/s | %.0f/s to %.0f/s | %.1f %% |\n", p.name, m.highest, all[0].highest, all[len(all)-1].highest, m.lost)
	}
	text.WriteString("\nResponses per second at the rate of queries that were sent, and the mean latency, by the target rate:\n\n| target |")
	line := "\n|---|"
	for _, p := range peers() {
		text.WriteString(" " + p.name + " |")
		line += "---|"
	}
	text.WriteString(line + "\n")
	step := float64(maxRate) / rampSeconds
	for k := 1; k <= rampSeconds; k++ {
		rate, row, measured := step*float64(k), "", false
		for _, p := range peers() {
			cell := ""
			for _, at := range medians[p.name].points {
				if at.target > rate-step && at.target <= rate && at.responses > 0 {
					cell, measured = fmt.Sprintf("%.0f/s at %.0f/s, %.2f ms", at.responses, at.sent, at.latency), true
					if at.sent < enough*at.target {
						cell += " *"
					}
				}
			}
			row += " " + cell + " |"
		}
		if measured {
			fmt.Fprintf(&text, "| up to %.0f/s |%s\n", rate, row)
		}
	}
	return text.String()
}
