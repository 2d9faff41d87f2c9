// Command kubelet-dns prints the search list of pods, computed by the kubelet's own code. Input is questions, output
// answers, both as JSON, one after the other in the same order.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/network/dns"
)

// question is a pod and the configuration of the kubelet.
type question struct {
	Pod           *corev1.Pod `json:"pod"`
	ClusterDomain string      `json:"clusterDomain"`
	ResolvConf    string      `json:"resolvConf"` // a file
}

// answer is the result of the kubelet.
type answer struct {
	Searches []string `json:"searches"`
	Error    string   `json:"error,omitempty"`
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "kubelet-dns:", err)
		os.Exit(1)
	}
}

func run(from io.Reader, to io.Writer) error {
	questions, answers := json.NewDecoder(from), json.NewEncoder(to)
	for {
		var q question
		if err := questions.Decode(&q); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("question: %w", err)
		}
		if q.Pod == nil {
			return errors.New("question: no pod")
		}
		if err := answers.Encode(q.answer()); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
}

func (q question) answer() answer {
	clusterDNS := []net.IP{net.IPv4(10, 96, 0, 10)}
	c := dns.NewConfigurer(new(record.FakeRecorder), &corev1.ObjectReference{}, nil, clusterDNS, q.ClusterDomain, q.ResolvConf)
	config, err := c.GetPodDNS(klog.NewContext(context.Background(), logr.Discard()), q.Pod)
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{Searches: config.Searches}
}
