//go:build linux

package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestBed sends queries from a pod to a server at the upstream host, and tests the parts of a bed.
func TestBed(t *testing.T) {
	Require(t, "ip", "dig")
	bed := New(t)
	server := startServer(t, bed)
	for _, network := range []string{"udp", "tcp"} {
		for _, address := range []netip.Addr{bed.Upstream.IPv4, bed.Upstream.IPv6} {
			t.Run(fmt.Sprintf("query to %v over %s", address, network), func(t *testing.T) {
				record, err := bed.Pod[1].Ask(network, address, "a.test.", time.Second)
				if err != nil || record[0] != "upstream" || record[1] != sourceOf(bed.Pod[1], address) {
					t.Errorf("got %q, %v", record, err)
				}
			})
		}
	}
	t.Run("dig", func(t *testing.T) {
		if got := bed.Pod[0].Dig(t, "@"+bed.Upstream.IPv4.String(), "+short", "TXT", "a.test"); !strings.HasPrefix(got, `"upstream"`) {
			t.Errorf("output of dig: %q", got)
		}
	})
	t.Run("own files", func(t *testing.T) {
		bed.Pod[0].Etc(t, "resolv.conf", "nameserver 192.0.2.1\n")
		if got := bed.Pod[0].Run(t, "cat", "/etc/resolv.conf"); got != "nameserver 192.0.2.1\n" {
			t.Errorf("/etc/resolv.conf is %q", got)
		}
	})
	t.Run("load", func(t *testing.T) { testLoad(t, bed, server) })
	t.Run("the test is outside", func(t *testing.T) {
		inside := strings.TrimSpace(bed.Node.Run(t, "readlink", "/proc/self/ns/net"))
		if here, err := os.Readlink("/proc/thread-self/ns/net"); err != nil || here == inside {
			t.Errorf("namespace of the test: %s, %v", here, err)
		}
	})
}

// testLoad freezes the server for a moment, and asserts that the report has lost queries and a gap.
func testLoad(t *testing.T, bed *Bed, server *Process) {
	const pause = 400 * time.Millisecond
	stream := Load{From: bed.Pod[0], Network: "udp", Server: bed.Upstream.IPv6, PerSecond: 100, Timeout: 100 * time.Millisecond}.Start(t)
	time.Sleep(pause)
	server.Freeze(t)
	time.Sleep(pause)
	server.Thaw(t)
	time.Sleep(pause)
	report := stream.Stop()
	t.Log(report)
	if report.By()["upstream"] == 0 || report.Lost() == 0 || report.Gap() < pause/2 {
		t.Errorf("report with a frozen server: %v", report)
	}
}

// startServer runs a DNS server in Upstream and waits until it answers.
func startServer(t *testing.T, bed *Bed) *Process {
	t.Helper()
	corefile := filepath.Join(t.TempDir(), "Corefile")
	const text = `.:53 {
    template IN ANY . {
        answer "{{ .Name }} 5 IN TXT upstream {{ .Remote }}"
    }
}
`
	kit.Write(t, corefile, text)
	p := bed.Upstream.Start(t, controlplane.RequireBinary(t, "coredns"), "-conf", corefile)
	kit.Succeeds(t, kit.Patience, "an answer", func() error {
		_, err := bed.Upstream.Ask("tcp", bed.Upstream.IPv6, "up.test.", time.Second)
		return err
	})
	return p
}

// sourceOf returns the source address of packets from n to an address.
func sourceOf(n *Namespace, to netip.Addr) string {
	if to.Is4() {
		return n.IPv4.String()
	}
	return n.IPv6.String()
}

func TestLeftovers(t *testing.T) {
	Require(t, "ip")
	ended := exec.Command("true")
	kit.Must(t, ended.Run())
	left := fmt.Sprintf("%s%d-1-node", namePrefix, ended.Process.Pid)
	kit.Output(t, exec.Command("ip", "netns", "add", left))
	t.Run("removed", func(t *testing.T) {
		New(t)
		if _, err := os.Stat(filepath.Join(pinned, left)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was not removed: %v", left, err)
		}
	})
	t.Run("no namespace is left", func(t *testing.T) {
		all, err := filepath.Glob(filepath.Join(pinned, fmt.Sprintf("%s%d-*", namePrefix, os.Getpid())))
		if err != nil || len(all) > 0 {
			t.Errorf("namespaces %q, %v", all, err)
		}
	})
}

func TestReport(t *testing.T) {
	start := time.Now()
	var lost = errors.New("lost")
	r := Report{}
	for i, err := range []error{nil, nil, lost, lost, nil, lost} {
		q := Query{Sent: start.Add(time.Duration(i) * time.Second), Err: err}
		if err == nil {
			q.By = "a"
		}
		r = append(r, q)
	}
	if r.Lost() != 3 || r.By()["a"] != 3 || r.Gap() != 3*time.Second {
		t.Errorf("report: %v", r)
	}
	if since := r.Since(start.Add(4 * time.Second)); len(since) != 2 || since.Gap() != time.Second {
		t.Errorf("since: %v", since)
	}
	if (Report{}).Gap() != 0 {
		t.Error("an empty report has a gap")
	}
}
