//go:build linux

package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// loadRate is the number of queries per second of each load.
const loadRate = 25

// settle is the time of the loads before an update and after it: by then the old pods are gone.
const settle = 5 * time.Second

// outcome is the result of a load, as the program of client/ returns it.
type outcome struct {
	Sent, Answered int
	Lost           []lost
}

type lost struct {
	Sent time.Time
	Why  string
}

// load is a stream of queries of pods during a change.
type load struct {
	name    string
	query   string  // parameters for the program of client/
	allowed float64 // the fraction of its queries that may be lost
}

// loads are sent during every change. A # in a name makes the name of each query new, so that no cache has it. An update
// must not lose a query, except by a property of kube-proxy that CoreDNS has to live with, too: datagrams from a source
// port of an earlier flow go to the same pod as that flow, until the pod is no longer a serving endpoint.
var loads = []load{
	{"cached names, UDP", "name=web.shop.svc.cluster.local", 0},
	{"new cluster names, UDP", "type=AAAA&name=fd00--1-#.shop.pod.cluster.local", 0},
	{"new cluster names, TCP", "type=AAAA&name=fd00--2-#.shop.pod.cluster.local&network=tcp", 0},
	{"new external names, UDP", "name=n#." + anyName, 0},
	{"new external names, TCP", "name=t#." + anyName + "&network=tcp", 0},
	{"clusterdns by its Service, UDP", "type=AAAA&name=fd00--3-#.shop.pod.cluster.local&server={upstream}", 0.01},
	{"clusterdns by its Service, TCP", "type=AAAA&name=fd00--4-#.shop.pod.cluster.local&server={upstream}&network=tcp", 0},
}

// during makes a change while pods send queries, and counts the lost ones.
func (c *cluster) during(t *testing.T, loads []load, something func()) {
	t.Helper()
	values := strings.NewReplacer("#", "%23")
	if strings.Contains(fmt.Sprint(loads), "{upstream}") {
		upstream, _ := c.serviceAddresses(t, "kube-system", "kube-dns-upstream")
		values = strings.NewReplacer("#", "%23", "{upstream}", upstream)
	}
	var pods []*pod
	for _, name := range clients {
		p := c.pod(t, name)
		pods = append(pods, p)
		for i, l := range loads {
			query, err := url.ParseQuery(values.Replace(l.query))
			kit.Must(t, err)
			query.Set("rate", strconv.Itoa(loadRate))
			if _, err := p.request("POST", "/load/"+strconv.Itoa(i), query); err != nil {
				t.Fatal(err)
			}
		}
	}
	time.Sleep(settle)
	start := time.Now()
	something()
	t.Logf("it took %v", time.Since(start).Round(time.Second))
	time.Sleep(settle)
	type ended struct {
		text string
		err  error
	}
	results := make([]ended, len(pods)*len(loads))
	var all sync.WaitGroup // in parallel: a load with a lost query takes its time
	for i := range results {
		all.Go(func() {
			results[i].text, results[i].err = pods[i/len(loads)].request("DELETE", "/load/"+strconv.Itoa(i%len(loads)), nil)
		})
	}
	all.Wait()
	for i, result := range results {
		if result.err != nil {
			t.Fatal(result.err)
		}
		var got outcome
		kit.Must(t, json.Unmarshal([]byte(result.text), &got))
		from, l := pods[i/len(loads)].name, loads[i%len(loads)]
		t.Logf("%s, %s: %s", from, l.name, got.describe(start))
		if err := l.judge(got); err != nil {
			t.Errorf("%s, %s: %v", from, l.name, err)
		}
	}
}

// describe returns the numbers of a load, and the lost queries with their times since a start.
func (o outcome) describe(start time.Time) string {
	text := fmt.Sprintf("%d queries, %d answered, %d lost", o.Sent, o.Answered, len(o.Lost))
	causes := map[string][]time.Duration{}
	for _, l := range o.Lost {
		cause := l.Why[strings.LastIndexByte(l.Why, ':')+1:] // the reason is after the addresses
		causes[cause] = append(causes[cause], l.Sent.Sub(start).Round(time.Millisecond))
	}
	for _, cause := range slices.Sorted(maps.Keys(causes)) {
		slices.Sort(causes[cause])
		text += fmt.Sprintf("; %d:%s, sent from %v to %v", len(causes[cause]), cause, causes[cause][0], causes[cause][len(causes[cause])-1])
	}
	return text
}

// judge returns an error when more queries were lost than the load permits.
func (l load) judge(o outcome) error {
	if o.Answered == 0 || o.Answered+len(o.Lost) != o.Sent {
		return fmt.Errorf("%d answered and %d lost of %d", o.Answered, len(o.Lost), o.Sent)
	}
	if allowed := l.allowed * float64(o.Sent); float64(len(o.Lost)) > allowed {
		return fmt.Errorf("%d lost, of which %v may be", len(o.Lost), allowed)
	}
	return nil
}

func TestJudge(t *testing.T) {
	start := time.Unix(100, 0)
	one := lost{Sent: start.Add(time.Second), Why: "read udp 10.0.0.1:4242->10.0.0.2:53: i/o timeout"}
	for _, c := range []struct {
		name    string
		allowed float64
		got     outcome
		text    string
		fails   bool
	}{
		{"all answered", 0, outcome{Sent: 5, Answered: 5}, "5 queries, 5 answered, 0 lost", false},
		{"one lost of none", 0, outcome{Sent: 5, Answered: 4, Lost: []lost{one}}, "5 queries, 4 answered, 1 lost; 1: i/o timeout, sent from 1s to 1s", true},
		{"one lost of one", 0.2, outcome{Sent: 5, Answered: 4, Lost: []lost{one}}, "5 queries, 4 answered, 1 lost; 1: i/o timeout, sent from 1s to 1s", false},
		{"nothing sent", 0, outcome{}, "0 queries, 0 answered, 0 lost", true},
		{"one not counted", 1, outcome{Sent: 5, Answered: 4}, "5 queries, 4 answered, 0 lost", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.got.describe(start); got != c.text {
				t.Errorf("got %q, want %q", got, c.text)
			}
			if err := (load{allowed: c.allowed}).judge(c.got); (err != nil) != c.fails {
				t.Errorf("got %v, want an error: %v", err, c.fails)
			}
		})
	}
}

// testUpdate replaces all pods of a workload while a pod and the node itself send queries.
func (c *cluster) testUpdate(t *testing.T, what, selector string) {
	c.during(t, loads, func() {
		old := c.podsOf(t, selector)
		c.kubectl(t, "-n", "kube-system", "rollout", "restart", what)
		c.kubectl(t, "-n", "kube-system", "rollout", "status", what, "--timeout=3m")
		c.waitGone(t, selector, old)
	})
}

// testKilled kills nodecache while a pod and the node itself send queries. Lost are the pod's queries in progress, and
// all queries of the node itself until the lease has expired.
func (c *cluster) testKilled(t *testing.T) {
	let := slices.Clone(loads)
	for i := range let {
		// Two seconds of queries, and ten, with a margin.
		let[i].allowed = 0.2
	}
	c.during(t, let, func() {
		c.run(t, "kill", "-KILL", strings.TrimSpace(c.run(t, "ps", "-C", "nodecache", "-o", "pid="))) // the number in the node's process namespace
		c.kubectl(t, "-n", "kube-system", "wait", "--for=jsonpath={.status.containerStatuses[0].restartCount}=1", "--timeout=2m",
			"pod", "-l=app.kubernetes.io/name=nodecache")
		c.kubectl(t, "-n", "kube-system", "wait", "--for=condition=Ready", "--timeout=2m", "pod", "-l=app.kubernetes.io/name=nodecache")
	})
}

// testDoctor runs nodecache doctor in the deployed pod.
func (c *cluster) testDoctor(t *testing.T) {
	t.Log(c.kubectl(t, "-n", "kube-system", "exec", "daemonset/nodecache", "--", "/nodecache", "doctor"))
}

// podsOf returns the names of pods of kube-system.
func (c *cluster) podsOf(t *testing.T, selector string) []string {
	t.Helper()
	return strings.Fields(c.kubectl(t, "-n", "kube-system", "get", "pods", "-o=name", "-l="+selector))
}

// waitGone waits until none of these pods exists.
func (c *cluster) waitGone(t *testing.T, selector string, names []string) {
	t.Helper()
	c.wait(t, "the old pods gone", cleanupTimeout, func() error {
		for _, name := range c.podsOf(t, selector) {
			if slices.Contains(names, name) {
				return fmt.Errorf("%s is there", name)
			}
		}
		return nil
	})
}
