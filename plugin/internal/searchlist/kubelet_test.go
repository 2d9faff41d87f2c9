package searchlist

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	corev1 "k8s.io/api/core/v1"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/property"
)

// podInput and kubeletList are the input and output of the program kubelet-dns, which has the kubelet's own code.
type (
	podInput struct {
		Pod           *corev1.Pod `json:"pod"`
		ClusterDomain string      `json:"clusterDomain"`
		ResolvConf    string      `json:"resolvConf"`
	}
	kubeletList struct {
		Searches []string `json:"searches"`
		Error    string   `json:"error"`
	}
)

// runKubelet returns the kubelet's lists for all inputs.
func runKubelet(t *testing.T, program string, inputs []podInput) (lists []kubeletList) {
	t.Helper()
	var in, out bytes.Buffer
	for _, q := range inputs {
		kit.Must(t, json.NewEncoder(&in).Encode(q))
	}
	kubelet := exec.Command(program)
	kubelet.Stdin, kubelet.Stdout = &in, &out
	kit.Must(t, kubelet.Run())
	for d := json.NewDecoder(&out); d.More(); {
		var l kubeletList
		kit.Must(t, d.Decode(&l))
		lists = append(lists, l)
	}
	if len(lists) != len(inputs) {
		t.Fatalf("%d lists for %d pods", len(lists), len(inputs))
	}
	return lists
}

// podDNS returns the argument of OfPod for the pod.
func (q podInput) podDNS() *PodDNS {
	d := &PodDNS{Policy: string(q.Pod.Spec.DNSPolicy)}
	if q.Pod.Spec.DNSConfig != nil {
		d.Searches = q.Pod.Spec.DNSConfig.Searches
	}
	return d
}

// hasHostList reports whether a pod gets the search list of the node unchanged.
func (q podInput) hasHostList() bool {
	policy := q.Pod.Spec.DNSPolicy
	return q.Pod.Spec.DNSConfig == nil && policy != corev1.DNSNone && (policy == corev1.DNSDefault || q.ClusterDomain == "")
}

// randomEntry returns an entry of a search list, valid or not.
func randomEntry(random *rand.Rand) string {
	odd := []string{".", "..", "a..b", "#", ";", "cluster.local", "svc.cluster.local.", "Example", "-", "_a._b.example"}
	switch random.IntN(10) {
	case 0:
		return odd[random.IntN(len(odd))]
	case 1:
		return strings.Repeat(strings.Repeat("a", 49)+".", 5) + strings.Repeat("b", 1+random.IntN(6)) // 251 to 256 characters
	}
	return fmt.Sprintf("n%d.%s", random.IntN(40), strings.Repeat("x", 1+random.IntN(90)))
}

// randomList returns a search list, usually a short one.
func randomList(random *rand.Rand) (all []string) {
	for range random.IntN(4) * random.IntN(14) {
		all = append(all, randomEntry(random))
	}
	return all
}

func randomInput(random *rand.Rand, files []string) podInput {
	policies := []corev1.DNSPolicy{corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet, corev1.DNSDefault, corev1.DNSNone, "", "Sometimes"}
	zones := []string{"cluster.local", "Corp.Example", ""}
	pod := &corev1.Pod{}
	pod.Namespace = []string{"shop", "kube-system"}[random.IntN(2)]
	pod.Spec.DNSPolicy = policies[random.IntN(len(policies))]
	pod.Spec.Hostname, pod.Spec.Subdomain = "web-0", "web"
	if random.IntN(3) > 0 {
		pod.Spec.DNSConfig = &corev1.PodDNSConfig{Searches: randomList(random)}
	}
	return podInput{pod, zones[random.IntN(len(zones))], files[random.IntN(len(files))]}
}

// TestOfPodMatchesKubelet compares the lists of random pods and resolv.conf files with the kubelet's.
func TestOfPodMatchesKubelet(t *testing.T) {
	property.Seeds(t, 7, 1, func(t *testing.T, seed uint64) {
		program := controlplane.RequireBinary(t, "kubelet-dns")
		random := rand.New(rand.NewPCG(seed, 2))
		folder := t.TempDir()
		var files []string
		file := func(text string) {
			name := filepath.Join(folder, fmt.Sprint(len(files)))
			write(t, name, text)
			files = append(files, name)
		}
		for _, name := range slices.Sorted(maps.Keys(resolvConfs)) {
			file(resolvConfs[name].text)
		}
		for range 40 {
			file("search " + strings.Join(randomList(random), " ") + "\nnameserver 10.0.0.2\n")
		}
		var inputs []podInput
		for range 5000 {
			inputs = append(inputs, randomInput(random, files))
		}
		truncated := 0
		for i, l := range runKubelet(t, program, inputs) {
			q := inputs[i]
			host, err := ReadResolvConf(q.ResolvConf)
			if (err == nil) != (l.Error == "") {
				t.Fatalf("pod %d: error %v, the kubelet's is %q", i, err, l.Error)
			}
			if err != nil {
				continue
			}
			all := kubeletEntries(q.Pod.Namespace, q.podDNS(), q.ClusterDomain, host)
			if q.hasHostList() {
				all = slices.Clone(host) // with duplicates
			}
			entries := len(all)
			got := truncate(all)
			if len(got) < entries {
				truncated++
			}
			if !slices.Equal(got, l.Searches) {
				t.Fatalf("pod %d: policy %q, searches %q, host %q, zone %q\n%q\nthe kubelet's list is\n%q",
					i, q.Pod.Spec.DNSPolicy, q.podDNS().Searches, host, q.ClusterDomain, got, l.Searches)
			}
			if list := OfPod(q.Pod.Namespace, q.podDNS(), q.ClusterDomain, withoutDuplicates(host)); !slices.Equal(list, qualified(l.Searches)) {
				t.Fatalf("pod %d: %q, the kubelet's list is %q", i, list, l.Searches)
			}
		}
		if truncated < 100 && property.Fixed() {
			t.Errorf("only %d lists were truncated", truncated)
		}
	})
}
