//go:build linux

package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

const (
	// startTimeout bounds the wait for a start: of the API server, the node, a pod. An idle machine needs seconds.
	startTimeout = 3 * time.Minute
	// cleanupTimeout bounds the wait for the end of a process.
	cleanupTimeout = 2 * time.Minute
	// interval is the time between two checks.
	interval = 200 * time.Millisecond
	// logTail is the size of the shown end of each program's log of a failed test, in bytes.
	logTail = 6 << 10
)

// cluster is a running cluster of one node.
type cluster struct {
	// Node is the network of the node, Outside that of a host next to it, which is the node's resolver and its gateway.
	Node, Outside *netns.Namespace
	// Client has all permissions.
	Client kubernetes.Interface

	name     string   // of the node
	ranges   []string // of the addresses of its pods, by family
	binaries binaries
	folder   string   // of this test, the same on the node
	inside   string   // binary, by its name
	init     int      // number of process 1 of the node in the machine's namespace
	groups   []string // cgroups of all nodes
	url      string   // of the API server
	keys     *authority
	programs []*program
	archives []string   // of images that all nodes have
	workers  []*cluster // other nodes, with the same API server
}

// newCluster starts a cluster, and waits until its node is ready. It ends with the test.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{name: nodeName, ranges: podRanges(0), binaries: require(t), folder: newFolder(t)}
	// Cleanups run in reverse order: the programs have ended before their cgroups are removed.
	c.groups = makeCgroups(t)
	c.makeNetwork(t)
	c.inside = filepath.Join(c.folder, "inside")
	build(t, c.inside, "github.com/nearside-dns/nearside/test/cluster/inside")
	c.enter(t)
	c.startControlPlane(t)
	c.archives = []string{buildClientImage(t, c.folder)}
	c.startNode(t)
	return c
}

// addWorker adds a node, with the number of nodes before it in its name and its addresses.
func (c *cluster) addWorker(t *testing.T) {
	t.Helper()
	number := len(c.workers) + 1
	w := &cluster{
		Outside: c.Outside, Client: c.Client,
		name: fmt.Sprintf("%s-%d", nodeName, number), ranges: podRanges(number), binaries: c.binaries, folder: newFolder(t),
		inside: c.inside, groups: c.groups, url: c.url, keys: c.keys, archives: c.archives,
	}
	w.joinNetwork(t, number)
	w.enter(t)
	w.startNode(t)
	c.workers = append(c.workers, w)
}

// newFolder makes the folder of a test. Its path is short, as sockets need it, and has the process id.
func newFolder(t *testing.T) string {
	t.Helper()
	const prefix = "nearside-cluster-"
	old, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	kit.Must(t, err)
	for _, path := range old {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), prefix), "-")
		if gone(pid) {
			if err := os.RemoveAll(path); err != nil {
				t.Logf("what an earlier run left: %v", err)
			}
		}
	}
	folder, err := os.MkdirTemp("", fmt.Sprintf("%s%d-", prefix, os.Getpid()))
	kit.Must(t, err)
	t.Cleanup(func() {
		if left := using(t, folder); len(left) > 0 {
			t.Errorf("left on the machine: %q", left)
		}
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	// Containers of other users find their files below it.
	kit.Must(t, os.Chmod(folder, 0o755))
	return folder
}

// using returns the processes of the machine that have the folder in their command lines, and the mounts below it.
func using(t *testing.T, folder string) (all []string) {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	kit.Must(t, err)
	for _, path := range processes {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), folder) { // otherwise the process has ended
			all = append(all, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	for line := range strings.Lines(kit.Read(t, "/proc/self/mountinfo")) {
		if strings.Contains(line, folder) {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}

func TestProcessesUsingFolder(t *testing.T) {
	folder := t.TempDir()
	if all := using(t, folder); len(all) > 0 {
		t.Errorf("before: %q", all)
	}
	sleep := exec.Command("sh", "-c", "read forever", folder)
	forever, err := sleep.StdinPipe()
	kit.Must(t, err)
	kit.Must(t, sleep.Start())
	if all := using(t, folder); len(all) != 1 {
		t.Errorf("with a process: %q", all)
	}
	kit.Must(t, forever.Close())
	_ = sleep.Wait() // read fails at the end of its input
	if all := using(t, folder); len(all) > 0 {
		t.Errorf("after: %q", all)
	}
}

// makeNetwork makes the two networks.
func (c *cluster) makeNetwork(t *testing.T) {
	t.Helper()
	c.Outside = netns.Add(t, "outside")
	c.Outside.Forwards(t)
	c.joinNetwork(t, 0)
}

// joinNetwork makes the network of the node with this number, next to the host that routes between nodes.
func (c *cluster) joinNetwork(t *testing.T, number int) {
	t.Helper()
	c.Node = netns.Add(t, c.name)
	c.Node.Sysctl(t, "net/ipv4/tcp_migrate_req", "1") // as docs/migration.md recommends: an update resets no connection that waits
	c.Node.Forwards(t)
	c.Node.Join(t, c.Outside, c.name, fmt.Sprintf("10.2.%d.", number)+"%d/24", fmt.Sprintf("fd02:0:0:%x::", number)+"%d/64")
	for _, r := range c.ranges {
		c.Outside.Run(t, "ip", "route", "add", r, "via", c.nodeAddress(strings.Contains(r, ":")))
	}
	c.Node.Etc(t, "resolv.conf", "nameserver "+outsideIPv4+"\nsearch "+nodeSearch+"\n")
}

// nodeAddress is the node's address of one family.
func (c *cluster) nodeAddress(six bool) string {
	if six {
		return c.Node.IPv6.String()
	}
	return c.Node.IPv4.String()
}

// enter starts process 1 of the node. At the end of the test it is killed, and with it all processes of the node.
func (c *cluster) enter(t *testing.T) {
	t.Helper()
	entered := c.Node.Start(t, c.inside, "enter", c.folder, filepath.Base(c.groups[0]))
	t.Cleanup(func() {
		entered.Kill(t)
		for end := time.Now().Add(cleanupTimeout); c.init != 0 && !gone(strconv.Itoa(c.init)); time.Sleep(interval) {
			if time.Now().After(end) {
				t.Fatalf("process 1 of the node (%d) is still there after %v", c.init, cleanupTimeout)
			}
			// The nsenter of a program that was stopped may stop itself once more after both were continued, and then reaps nothing.
			for _, p := range c.programs {
				_ = syscall.Kill(-p.group, syscall.SIGCONT) // an error means that it has ended
			}
		}
	})
	t.Cleanup(func() {
		if t.Failed() {
			c.showLogs(t)
		}
	})
	for _, g := range c.groups {
		kit.Must(t, os.WriteFile(filepath.Join(g, "cgroup.procs"), []byte(strconv.Itoa(entered.Pid())), 0))
	}
	c.wait(t, "process 1 of the node", startTimeout, func() error {
		select {
		case <-entered.Ended():
			t.Fatal("process 1 of the node did not start")
		default:
		}
		var words []string
		for line := range strings.Lines(entered.Output()) {
			words = append(words, strings.Fields(line)...)
		}
		if len(words) >= 2 && words[0] == "init" {
			var err error
			if c.init, err = strconv.Atoi(words[1]); err != nil {
				t.Fatal(err)
			}
		}
		if len(words) != 3 || words[2] != "ready" {
			return fmt.Errorf("it printed %q", entered.Output())
		}
		return nil
	})
}

// command is a program on the node: in its namespaces, not in its cgroups.
func (c *cluster) command(ctx context.Context, args ...string) *exec.Cmd {
	enter := []string{"--target", strconv.Itoa(c.init), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--wd=/", "--"}
	return exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
}

// try runs a program on the node and returns what it printed.
func (c *cluster) try(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	out, err := c.command(ctx, args...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// run is try for a program that must succeed.
func (c *cluster) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.try(t.Context(), args...)
	kit.Must(t, err)
	return out
}

// kubectl runs kubectl as a user with all permissions.
func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return c.run(t, append([]string{c.binaries["kubectl"], "--kubeconfig=" + c.keys.path("admin.kubeconfig")}, args...)...)
}

// connect makes the client, whose connections start on the node.
func (c *cluster) connect(t *testing.T) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.keys.path("admin.kubeconfig"))
	kit.Must(t, err)
	config.QPS = -1
	config.Dial = c.Node.DialContext
	if c.Client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
}

// wait calls f until it returns nil. It fails when a program of the node has ended.
func (c *cluster) wait(t *testing.T, what string, timeout time.Duration, f func() error) {
	t.Helper()
	for end := time.Now().Add(timeout); ; time.Sleep(interval) {
		err := f()
		if err == nil {
			return
		}
		for _, p := range c.programs {
			select {
			case <-p.ended:
				t.Fatalf("%s: %s ended", what, p.name)
			default:
			}
		}
		if time.Now().After(end) {
			t.Fatalf("%s: after %v: %v", what, timeout, err)
		}
	}
}
