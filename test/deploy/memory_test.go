package deploy

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nearside-dns/nearside/test/kit"
)

const mebibyte = 1 << 20

// rule is the rule of docs/operating.md about memory.
type rule struct {
	highest map[int]int // memory of clusterdns with this number of Services, in MiB
	more    int         // what a limit adds to twice that
	limit   int         // limit of clusterdns on the page
	reach   int         // number of Services of that limit
	full    int         // of nodecache with a full cache
	request int         // request of nodecache on the page
}

var (
	row     = regexp.MustCompile(`(?m)^\| ([\d,]+) \| [\d,]+ \| [\d,]+ \| \d+ MiB \| (\d+) MiB \| [\d,]+ MiB \|$`)
	more    = regexp.MustCompile(`A limit of twice the highest that the table says for your cluster and (\d+) MiB`)
	limit   = regexp.MustCompile(`of the chart, (\d+) MiB, is for ([\d,]+) Services`)
	full    = regexp.MustCompile(`(?m)^\| with a full .budget.*\| (\d+) MiB in all \|$`)
	request = regexp.MustCompile(`and the chart request (\d+) MiB`)
	reach   = regexp.MustCompile(`clusterdns may take (\d+) MiB\. .*,? with ([\d,]+) Services`)
)

// numbers returns the numbers of the only match of a pattern in a text, whose lines may end anywhere.
func numbers(text string, pattern *regexp.Regexp) ([]int, error) {
	found := pattern.FindAllStringSubmatch(text, -1)
	if len(found) != 1 {
		return nil, fmt.Errorf("%q stands there %d times", pattern, len(found))
	}
	var all []int
	for _, digits := range found[0][1:] {
		n, err := strconv.Atoi(strings.ReplaceAll(digits, ",", ""))
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// unwrapped has each paragraph in one line.
func unwrapped(text string) string {
	return regexp.MustCompile(`([^\n|])\n *([^\n|])`).ReplaceAllString(text, "$1 $2")
}

// parseRule reads the page.
func parseRule(page string) (r rule, err error) {
	r.highest = map[int]int{}
	for _, line := range strings.Split(page, "\n") {
		if !row.MatchString(line) {
			continue
		}
		n, err := numbers(line, row)
		if err != nil {
			return r, err
		}
		r.highest[n[0]] = n[1]
	}
	page = unwrapped(page)
	for _, c := range []struct {
		pattern *regexp.Regexp
		into    []*int
	}{{more, []*int{&r.more}}, {limit, []*int{&r.limit, &r.reach}}, {full, []*int{&r.full}}, {request, []*int{&r.request}}} {
		n, err := numbers(page, c.pattern)
		if err != nil {
			return r, err
		}
		for i := range n {
			*c.into[i] = n[i]
		}
	}
	return r, nil
}

// broken returns the objects of a set that break the rule, as text.
func (r rule) broken(clusterdns, nodecache corev1.ResourceRequirements) (all []string) {
	highest, ok := r.highest[r.reach]
	if !ok {
		return []string{fmt.Sprintf("the table has no row with %d Services", r.reach)}
	}
	if need := 2*highest + r.more; r.limit < need {
		all = append(all, fmt.Sprintf("%d Services need a limit of %d MiB by the rule, and the page has %d", r.reach, need, r.limit))
	}
	if r.request < r.full {
		all = append(all, fmt.Sprintf("nodecache takes %d MiB with a full cache, and the page has a request of %d", r.full, r.request))
	}
	for _, q := range []struct {
		what string
		got  resource.Quantity
		want int
	}{
		{"limit of clusterdns", clusterdns.Limits[corev1.ResourceMemory], r.limit},
		{"request of nodecache", nodecache.Requests[corev1.ResourceMemory], r.request},
	} {
		if got := q.got.Value(); got != int64(q.want)*mebibyte {
			all = append(all, fmt.Sprintf("%s is %s, and the page has %d MiB", q.what, q.got.String(), q.want))
		}
	}
	if limit, ok := nodecache.Limits[corev1.ResourceMemory]; ok {
		all = append(all, "nodecache has a limit, "+limit.String())
	}
	return all
}

// TestMemory compares the requests and limits with the rule of docs/operating.md.
func TestMemory(t *testing.T) {
	r, err := parseRule(kit.Read(t, "../../docs/operating.md"))
	kit.Must(t, err)
	for name, all := range map[string]objects{
		"kustomize": decoded(t, kustomize(t, deployed+"/overlays/kube-proxy")),
		"chart":     decoded(t, templated(t, "")),
	} {
		t.Run(name, func(t *testing.T) {
			clusterdns := find[*appsv1.Deployment](t, all, "Deployment clusterdns").Spec.Template.Spec.Containers[0].Resources
			nodecache := find[*appsv1.DaemonSet](t, all, "DaemonSet nodecache").Spec.Template.Spec.Containers[0].Resources
			for _, b := range r.broken(clusterdns, nodecache) {
				t.Error(b)
			}
		})
	}
	t.Run("README of the overlays", func(t *testing.T) {
		n, err := numbers(unwrapped(kit.Read(t, deployed+"/overlays/README.md")), reach)
		kit.Must(t, err)
		if n[0] != r.limit || n[1] != r.reach {
			t.Errorf("it has %d MiB for %d Services, docs/operating.md %d MiB for %d", n[0], n[1], r.limit, r.reach)
		}
	})
	t.Run("can fail", func(t *testing.T) {
		const page = "| 100 | 1,100 | 50 | 28 MiB | 29 MiB | 61 MiB |\n| 1,000 | 2 | 3 | 4 MiB | 50 MiB | 61 MiB |\n\n" +
			"A limit of twice the highest that the table says for your\ncluster and 64 MiB leaves room. That of the chart, 150 MiB, is for 1,000\nServices.\n\n" +
			"| with a full `budget`, by default | 98 MiB in all |\n\n`deploy/nodecache` and the chart request 64 MiB.\n"
		wrong, err := parseRule(page)
		kit.Must(t, err)
		set := func(limit string) corev1.ResourceList {
			return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(limit)}
		}
		got := wrong.broken(corev1.ResourceRequirements{Limits: set("170Mi")}, corev1.ResourceRequirements{Limits: set("1Gi"), Requests: set("64Mi")})
		want := []string{
			"1000 Services need a limit of 164 MiB by the rule, and the page has 150",
			"nodecache takes 98 MiB with a full cache, and the page has a request of 64",
			"limit of clusterdns is 170Mi, and the page has 150 MiB",
			"nodecache has a limit, 1Gi",
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
