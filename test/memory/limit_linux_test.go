// Package memory has tests of clusterdns in a container with a memory limit. It has only tests, which need root and control groups.
package memory

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/test/bench/generated"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

func TestMain(m *testing.M) { kubeapi.Main(m) }

// memoryFiles are the files of a memory control group, by the version of control groups.
type memoryFiles struct {
	parent      string // folder of new groups
	limit, swap string // limits in bytes; with version 1 swap is that of memory and swap together
	kills       string // has a line "oom_kill N"
}

const swapOfV1 = "memory.memsw.limit_in_bytes"

// groupFiles returns the files of this machine. With version 2 a group beside processes cannot have limits, so that groups are made at the
// top, which is not possible in a container that sees its own group there; with version 1 they are below that of this process.
func groupFiles(t *testing.T) memoryFiles {
	t.Helper()
	const root = "/sys/fs/cgroup"
	if controllers, err := os.ReadFile(root + "/cgroup.controllers"); err == nil {
		if !slices.Contains(strings.Fields(string(controllers)), "memory") {
			missingGroup(t, "control groups of version 2 without memory")
		}
		if err := os.WriteFile(root+"/cgroup.subtree_control", []byte("+memory"), 0); err != nil {
			missingGroup(t, err.Error())
		}
		return memoryFiles{parent: root, limit: "memory.max", swap: "memory.swap.max", kills: "memory.events"}
	}
	text := kit.Read(t, "/proc/self/cgroup")
	for line := range strings.Lines(text) {
		if parts := strings.SplitN(strings.TrimSpace(line), ":", 3); len(parts) == 3 && parts[1] == "memory" {
			return memoryFiles{
				parent: filepath.Join(root, "memory", parts[2]),
				limit:  "memory.limit_in_bytes", swap: swapOfV1, kills: "memory.oom_control",
			}
		}
	}
	missingGroup(t, "no memory control group")
	return memoryFiles{}
}

// limited returns a program that runs another one in a new control group with a memory limit in bytes, and a function that returns the number
// of processes killed for lack of memory.
func limited(t *testing.T, program string, limit int) (path string, kills func() int) {
	t.Helper()
	files := groupFiles(t)
	folder := filepath.Join(files.parent, fmt.Sprintf("nearside-limit-%d", os.Getpid()))
	if err := os.Mkdir(folder, 0o755); err != nil {
		missingGroup(t, err.Error())
	}
	t.Cleanup(func() { // after the end of the program
		for end := time.Now().Add(10 * time.Second); os.Remove(folder) != nil; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("%s cannot be removed", folder)
				return
			}
		}
	})
	if err := os.WriteFile(filepath.Join(folder, files.limit), []byte(strconv.Itoa(limit)), 0); err != nil {
		missingGroup(t, err.Error())
	}
	ofSwap := 0
	if files.swap == swapOfV1 {
		ofSwap = limit
	}
	_ = os.WriteFile(filepath.Join(folder, files.swap), []byte(strconv.Itoa(ofSwap)), 0) // it may be missing, as without swap
	path = filepath.Join(t.TempDir(), "limited")
	script := fmt.Sprintf("#!/bin/sh\necho $$ > %s/cgroup.procs && exec %s \"$@\"\n", folder, program)
	kit.Must(t, os.WriteFile(path, []byte(script), 0o700))
	return path, func() int {
		text, err := os.ReadFile(filepath.Join(folder, files.kills))
		kit.Must(t, err)
		for line := range strings.Lines(string(text)) {
			if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
				if killed, err := strconv.Atoi(strings.TrimSpace(n)); err == nil {
					return killed
				}
			}
		}
		t.Fatalf("%s: %q, want oom_kill", files.kills, text)
		return 0
	}
}

func missingGroup(t *testing.T, reason string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip(reason)
	}
	kit.Lacking(t, reason)
}

// TestMemoryLimit runs clusterdns in a container with little more memory than it needs, and in one with the limit of deploy/ and the largest
// cluster for which docs/operating.md recommends it: Go's limit follows that of the container, and clusterdns survives new lists.
func TestMemoryLimit(t *testing.T) {
	t.Run("little", func(t *testing.T) {
		checkMemoryLimit(t, 16<<20, generated.Cluster{Services: 3000, Endpoints: 60_000, Nodes: 100, Namespaces: 50, Headless: 0.1, Seed: 1})
	})
	t.Run("deploy", func(t *testing.T) {
		manifest := kit.Read(t, "../../deploy/clusterdns/deployment.yaml")
		var mebibytes int
		_, rest, _ := strings.Cut(manifest, "limits:\n")
		if _, err := fmt.Sscanf(strings.TrimSpace(rest), "memory: %dMi", &mebibytes); err != nil {
			t.Fatal(err)
		}
		checkMemoryLimit(t, mebibytes<<20, generated.Cluster{Services: 30_000, Endpoints: 330_000, Nodes: 5_000, Namespaces: 100, Headless: 0.1, Seed: 1})
	})
}

func checkMemoryLimit(t *testing.T, limit int, cluster generated.Cluster) {
	path, kills := limited(t, daemon.ProgramWithoutRace(t, "clusterdns"), limit)
	api := kubeapi.New(t)
	var objects []runtime.Object
	kit.Must(t, cluster.Each(func(o runtime.Object) error { objects = append(objects, o); return nil }))
	kit.Must(t, api.Load(objects...))
	metrics := fmt.Sprintf("127.0.0.1:%d", daemon.FreePort(t))
	p := daemon.Launch(t, path, fmt.Sprintf(".:PORT {\n bind 127.0.0.1\n errors\n prometheus %s\n kubernetes cluster.local {\n  endpoint %s\n  startup_timeout 30s\n }\n}\n", metrics, api.URL()))
	last := cluster.Service(cluster.Services - 1)
	answers := func() bool {
		m, err := dns.Exchange(new(dns.Msg).SetQuestion(last.Name+"."+last.Namespace+".svc.cluster.local.", dns.TypeA), p.Addr)
		return err == nil && m.Rcode == dns.RcodeSuccess && len(m.Answer) > 0
	}
	within := func(what string, so func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !so(); time.Sleep(20 * time.Millisecond) {
			if code, err := p.Wait(0); err == nil || time.Now().After(end) {
				t.Fatalf("not within a minute: %s; exit code %d (%v), %d processes were killed", what, code, err, kills())
			}
		}
	}
	within("an answer", answers)
	if got := daemon.Scrape(t, http.DefaultClient, metrics).Sum("go_gc_gomemlimit_bytes"); math.Abs(got-0.9*float64(limit)) > 1 {
		t.Errorf("Go's limit is %.0f bytes, want nine tenths of %d", got, limit)
	}
	for range 2 { // client-go waits longer each time
		before, begin := api.Requests(), time.Now()
		kit.Must(t, api.Expire())
		for _, resource := range []string{"services", "endpointslices", "namespaces"} {
			api.DropWatches(resource)
		}
		within("a new list", func() bool {
			n := 0
			for r, count := range api.Requests() {
				if (r.Verb == kubeapi.VerbWatchList || r.Verb == kubeapi.VerbList) && r.Resource == "endpointslices" {
					n += count - before[r]
				}
			}
			return n > 0
		})
		within("an answer", answers)
		t.Logf("listed after %s", time.Since(begin))
	}
	if n := kills(); n != 0 {
		t.Errorf("%d processes were killed", n)
	}
	p.Stop(t)
}
