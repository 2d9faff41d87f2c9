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

	corev1 "k8s.io/api/core/v1"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/property"
)

// question and answer are those of kubelet-dns, which has the kubelet's own code.
type (
	question struct {
		Pod           *corev1.Pod `json:"pod"`
		ClusterDomain string      `json:"clusterDomain"`
		ResolvConf    string      `json:"resolvConf"`
	}
	answer struct {
		Searches []string `json:"searches"`
		Error    string   `json:"error"`
	}
)

// askKubelet returns the answers to all questions.
func askKubelet(t *testing.T, program string, questions []question) (answers []answer) {
	t.Helper()
	var in, out bytes.Buffer
	for _, q := range questions {
		if err := json.NewEncoder(&in).Encode(q); err != nil {
			t.Fatal(err)
		}
	}
	kubelet := exec.Command(program)
	kubelet.Stdin, kubelet.Stdout = &in, &out
	if err := kubelet.Run(); err != nil {
		t.Fatal(err)
	}
	for d := json.NewDecoder(&out); d.More(); {
		var a answer
		if err := d.Decode(&a); err != nil {
			t.Fatal(err)
		}
		answers = append(answers, a)
	}
	if len(answers) != len(questions) {
		t.Fatalf("%d answers to %d questions", len(answers), len(questions))
	}
	return answers
}

// asked returns what List is told of the pod of a question.
func (q question) asked() *PodDNS {
	d := &PodDNS{Policy: string(q.Pod.Spec.DNSPolicy)}
	if q.Pod.Spec.DNSConfig != nil {
		d.Searches = q.Pod.Spec.DNSConfig.Searches
	}
	return d
}

// hasHostsList reports whether a pod gets the list of the node as it is.
func (q question) hasHostsList() bool {
	policy := q.Pod.Spec.DNSPolicy
	return q.Pod.Spec.DNSConfig == nil && policy != corev1.DNSNone && (policy == corev1.DNSDefault || q.ClusterDomain == "")
}

// randomEntry returns something that could be in a search list.
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

// randomList returns mostly short lists.
func randomList(random *rand.Rand) (all []string) {
	for range random.IntN(4) * random.IntN(14) {
		all = append(all, randomEntry(random))
	}
	return all
}

func randomQuestion(random *rand.Rand, files []string) question {
	policies := []corev1.DNSPolicy{corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet, corev1.DNSDefault, corev1.DNSNone, "", "Sometimes"}
	zones := []string{"cluster.local", "Corp.Example", ""}
	pod := &corev1.Pod{}
	pod.Namespace = []string{"shop", "kube-system"}[random.IntN(2)]
	pod.Spec.DNSPolicy = policies[random.IntN(len(policies))]
	pod.Spec.Hostname, pod.Spec.Subdomain = "web-0", "web"
	if random.IntN(3) > 0 {
		pod.Spec.DNSConfig = &corev1.PodDNSConfig{Searches: randomList(random)}
	}
	return question{pod, zones[random.IntN(len(zones))], files[random.IntN(len(files))]}
}

// TestListIsTheKubelets compares, for many pods and files, the lists that are made here with the kubelet's.
func TestListIsTheKubelets(t *testing.T) {
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
		var questions []question
		for range 5000 {
			questions = append(questions, randomQuestion(random, files))
		}
		cut := 0
		for i, a := range askKubelet(t, program, questions) {
			q := questions[i]
			host, err := ReadResolvConf(q.ResolvConf)
			if (err == nil) != (a.Error == "") {
				t.Fatalf("question %d: error %v, the kubelet's is %q", i, err, a.Error)
			}
			if err != nil {
				continue
			}
			all := written(q.Pod.Namespace, q.asked(), q.ClusterDomain, host)
			if q.hasHostsList() {
				all = slices.Clone(host) // of which the kubelet omits nothing here
			}
			entries := len(all)
			got := fit(all)
			if len(got) < entries {
				cut++
			}
			if !slices.Equal(got, a.Searches) {
				t.Fatalf("question %d: policy %q, searches %q, host %q, zone %q\n%q\nthe kubelet has\n%q",
					i, q.Pod.Spec.DNSPolicy, q.asked().Searches, host, q.ClusterDomain, got, a.Searches)
			}
			if list := OfPod(q.Pod.Namespace, q.asked(), q.ClusterDomain, once(host)); !slices.Equal(list, qualified(a.Searches)) {
				t.Fatalf("question %d: %q of the kubelet's %q", i, list, a.Searches)
			}
		}
		if cut < 100 && property.Fixed() {
			t.Errorf("only %d lists were too long", cut)
		}
	})
}
