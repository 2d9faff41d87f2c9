package source

import (
	"fmt"
	"maps"
	"runtime"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// memoryNodes is the number of nodes in a large cluster, and maxNodeBytes the maximum size of the record of one.
const (
	memoryNodes  = 5_000
	maxNodeBytes = 1_000
)

// eksLabels are those of a node of Amazon EKS with Karpenter and the EBS driver. Its hostname is its own.
func eksLabels(i int) map[string]string {
	zone := fmt.Sprintf("eu-central-1%c", 'a'+i%3)
	return map[string]string{
		"beta.kubernetes.io/arch":                     "amd64",
		"beta.kubernetes.io/instance-type":            "m6i.2xlarge",
		"beta.kubernetes.io/os":                       "linux",
		"failure-domain.beta.kubernetes.io/region":    "eu-central-1",
		"failure-domain.beta.kubernetes.io/zone":      zone,
		"k8s.io/cloud-provider-aws":                   "0123456789abcdef0123456789abcdef",
		"karpenter.k8s.aws/ec2nodeclass":              "default",
		"karpenter.k8s.aws/instance-category":         "m",
		"karpenter.k8s.aws/instance-cpu":              "8",
		"karpenter.k8s.aws/instance-cpu-manufacturer": "intel",
		"karpenter.k8s.aws/instance-ebs-bandwidth":    "10000",
		"karpenter.k8s.aws/instance-family":           "m6i",
		"karpenter.k8s.aws/instance-generation":       "6",
		"karpenter.k8s.aws/instance-hypervisor":       "nitro",
		"karpenter.k8s.aws/instance-memory":           "32768",
		"karpenter.k8s.aws/instance-size":             "2xlarge",
		"karpenter.sh/capacity-type":                  []string{"spot", "on-demand"}[i%2],
		"karpenter.sh/initialized":                    "true",
		"karpenter.sh/nodepool":                       fmt.Sprintf("pool-%d", i%8),
		"karpenter.sh/registered":                     "true",
		"kubernetes.io/arch":                          "amd64",
		"kubernetes.io/hostname":                      nodeName(i),
		"kubernetes.io/os":                            "linux",
		"node.kubernetes.io/instance-type":            "m6i.2xlarge",
		"topology.ebs.csi.aws.com/zone":               zone,
		"topology.k8s.aws/zone-id":                    fmt.Sprintf("euc1-az%d", 1+i%3),
		"topology.kubernetes.io/region":               "eu-central-1",
		"topology.kubernetes.io/zone":                 zone,
	}
}

// gkeLabels are those of a node of Google GKE.
func gkeLabels(i int) map[string]string {
	zone := fmt.Sprintf("europe-west3-%c", 'a'+i%3)
	return map[string]string{
		"beta.kubernetes.io/arch":                          "amd64",
		"beta.kubernetes.io/instance-type":                 "e2-standard-8",
		"beta.kubernetes.io/os":                            "linux",
		"cloud.google.com/gke-boot-disk":                   "pd-balanced",
		"cloud.google.com/gke-container-runtime":           "containerd",
		"cloud.google.com/gke-cpu-scaling-level":           "8",
		"cloud.google.com/gke-logging-variant":             "DEFAULT",
		"cloud.google.com/gke-max-pods-per-node":           "110",
		"cloud.google.com/gke-memory-gb-scaling-level":     "32",
		"cloud.google.com/gke-netd-ready":                  "true",
		"cloud.google.com/gke-nodepool":                    fmt.Sprintf("pool-%d", i%8),
		"cloud.google.com/gke-os-distribution":             "cos",
		"cloud.google.com/gke-provisioning":                "standard",
		"cloud.google.com/gke-stack-type":                  "IPV4_IPV6",
		"cloud.google.com/machine-family":                  "e2",
		"cloud.google.com/private-node":                    "true",
		"failure-domain.beta.kubernetes.io/region":         "europe-west3",
		"failure-domain.beta.kubernetes.io/zone":           zone,
		"iam.gke.io/gke-metadata-server-enabled":           "true",
		"kubernetes.io/arch":                               "amd64",
		"kubernetes.io/hostname":                           nodeName(i),
		"kubernetes.io/os":                                 "linux",
		"node.kubernetes.io/instance-type":                 "e2-standard-8",
		"topology.gke.io/zone":                             zone,
		"topology.kubernetes.io/region":                    "europe-west3",
		"topology.kubernetes.io/zone":                      zone,
		"addon.gke.io/node-local-dns-ds-ready":             "true",
		"cloud.google.com/gke-gcfs":                        "true",
		"cloud.google.com/gke-image-streaming":             "true",
		"cloud.google.com/gke-ephemeral-storage-local-ssd": "false",
	}
}

func nodeName(i int) string {
	return fmt.Sprintf("ip-10-%d-%d-%d.eu-central-1.compute.internal", i/65536, i/256%256, i%256)
}

// TestNodeMemory measures the records of the Nodes of a large cluster, with pod ranges and addresses in both families.
func TestNodeMemory(t *testing.T) {
	for _, cloud := range []struct {
		name   string
		labels func(int) map[string]string
	}{{"EKS", eksLabels}, {"GKE", gkeLabels}} {
		t.Run(cloud.name, func(t *testing.T) {
			s := topologyStripper()
			ix := index.New() // with the generations of names and addresses, which are the same for any number of nodes
			before := liveHeap()
			for i := range memoryNodes {
				ix.PutNode(s.Node(ownStrings(cloud.labels(i)), nodeName(i), fmt.Sprintf("00000000-0000-4000-8000-%012x", i),
					fmt.Sprintf("10.%d.%d.0/24", 64+i/256, i%256), fmt.Sprintf("fd00:10:%x::/64", i),
					fmt.Sprintf("10.32.%d.%d/32", i/256, i%256), fmt.Sprintf("fd00:20::%x/128", i+1)))
			}
			bytes := float64(liveHeap()-before) / memoryNodes
			t.Logf("%d nodes with %d labels: %.0f bytes each", memoryNodes, len(cloud.labels(0)), bytes)
			if bytes > maxNodeBytes {
				t.Errorf("%.0f bytes of each node in memory, want at most %d", bytes, maxNodeBytes)
			}
			if ix.Node(index.NewSymbol(nodeName(memoryNodes-1))) == nil {
				t.Error("no last node")
			}
		})
	}
}

// ownStrings returns labels that share no memory with others, like those of a decoded object.
func ownStrings(labels map[string]string) map[string]string {
	own := maps.Clone(labels)
	for k, v := range labels {
		delete(own, k)
		own[strings.Clone(k)] = strings.Clone(v)
	}
	return own
}

func liveHeap() uint64 {
	var m runtime.MemStats
	for range 4 { // finalizers and the handles of unique need several cycles
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
