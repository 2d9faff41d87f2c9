package deploy

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/test/kit"
)

// These types have the fields of Calico's and Cilium's policies that the tests read. An unknown field is an error.
type (
	calicoPolicy struct {
		Order             int
		NamespaceSelector string
		Types             []string
		Egress            []struct {
			Action, Protocol string
			Destination      struct {
				NamespaceSelector, Selector string
				Ports                       []int
			}
		}
	}
	calicoSet    struct{ Nets []string }
	ciliumPolicy struct {
		Description       string
		EndpointSelector  map[string]any
		EnableDefaultDeny struct{ Ingress, Egress *bool }
		Egress            []struct {
			ToEndpoints []struct{ MatchLabels map[string]string }
			ToEntities  []string
			ToCIDR      []string
			ToPorts     []struct {
				Ports []struct{ Port, Protocol string }
			}
		}
	}
)

// spec decodes the spec of an object.
func spec[T any](t *testing.T, object runtime.Object) (decoded T) {
	t.Helper()
	encoded, err := json.Marshal(object)
	kit.Must(t, err)
	var parts struct{ Spec json.RawMessage }
	kit.Must(t, json.Unmarshal(encoded, &parts))
	strict := json.NewDecoder(strings.NewReader(string(parts.Spec)))
	strict.DisallowUnknownFields()
	kit.Must(t, strict.Decode(&decoded))
	return decoded
}

// destinations are the addresses and pods that pods query: nodecache's addresses, as CIDRs, and the labels of the pods of both
// programs.
func destinations(t *testing.T, all objects) (cidrs []string, pods map[string]labels.Set) {
	t.Helper()
	set := find[*appsv1.DaemonSet](t, all, "DaemonSet nodecache").Spec.Template
	pods = map[string]labels.Set{"nodecache": set.Labels, "clusterdns": find[*appsv1.Deployment](t, all, "Deployment clusterdns").Spec.Template.Labels}
	args := set.Spec.Containers[0].Args
	if i := slices.Index(args, "-localip"); i >= 0 {
		for a := range strings.SplitSeq(args[i+1], ",") {
			cidrs = append(cidrs, strings.Replace(a, "$(KUBE_DNS_SERVICE_HOST)", kubeDNSAddress, 1)+"/32")
		}
	}
	return cidrs, pods
}

const kubeDNSAddress = "10.96.0.10"

// TestPolicyOfCalico compares the destinations of the policy with the addresses and the pods of the overlay.
func TestPolicyOfCalico(t *testing.T) {
	all := decoded(t, kustomize(t, mine(t, "overlays/kube-proxy", "overlays/components/network-policy-calico")))
	policy, set := spec[calicoPolicy](t, all["GlobalNetworkPolicy nearside-dns"]), spec[calicoSet](t, all["GlobalNetworkSet nearside-dns"])
	cidrs, pods := destinations(t, all)
	if !slices.Equal(set.Nets, cidrs) {
		t.Errorf("the set has %q, nodecache %q", set.Nets, cidrs)
	}
	if pods["clusterdns"]["k8s-app"] != "kube-dns" {
		t.Errorf("clusterdns has the labels %v", pods["clusterdns"])
	}
	if !slices.Equal(policy.Types, []string{"Egress"}) || policy.NamespaceSelector != `nearside.dev/allow-dns == "true"` {
		t.Errorf("the policy is for %q of %s", policy.Types, policy.NamespaceSelector)
	}
	var got []string
	for _, rule := range policy.Egress {
		d := rule.Destination
		got = append(got, fmt.Sprint(rule.Action, " ", rule.Protocol, " ", d.NamespaceSelector, " ", d.Selector, " ", d.Ports))
	}
	var want []string
	for _, to := range []string{`global() nearside.dev/addresses == "nodecache"`, `projectcalico.org/name == "kube-system" k8s-app == "kube-dns"`} {
		for _, protocol := range []string{"UDP", "TCP"} {
			want = append(want, "Allow "+protocol+" "+to+" [53]")
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("rules\n%s, want\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if encoded := text(t, all["GlobalNetworkSet nearside-dns"]); !strings.Contains(encoded, `"nearside.dev/addresses": "nodecache"`) {
		t.Errorf("the set has not the label of the rules:\n%s", encoded)
	}
}

// TestPolicyOfCilium does so for Cilium, with nodecache on the node and as a pod.
func TestPolicyOfCilium(t *testing.T) {
	for _, overlay := range []string{"kube-proxy", "cilium"} {
		t.Run(overlay, func(t *testing.T) {
			all := decoded(t, kustomize(t, mine(t, "overlays/"+overlay, "overlays/components/network-policy-cilium")))
			policy := spec[ciliumPolicy](t, all["CiliumClusterwideNetworkPolicy nearside-dns"])
			if deny := policy.EnableDefaultDeny; deny.Egress == nil || *deny.Egress || deny.Ingress == nil || *deny.Ingress || len(policy.EndpointSelector) > 0 {
				t.Errorf("the policy denies other traffic, or is not for all pods: %+v", policy)
			}
			cidrs, pods := destinations(t, all)
			host := false
			for _, rule := range policy.Egress {
				if got := fmt.Sprint(rule.ToPorts); got != "[{[{53 UDP} {53 TCP}]}]" {
					t.Errorf("ports %s", got)
				}
				host = host || slices.Equal(rule.ToEntities, []string{"host"})
				cidrs = slices.DeleteFunc(cidrs, func(a string) bool { return slices.Contains(rule.ToCIDR, a) })
				for name, labels := range pods {
					for _, to := range rule.ToEndpoints {
						if to.MatchLabels["k8s:io.kubernetes.pod.namespace"] == "kube-system" && labels["k8s-app"] == to.MatchLabels["k8s:k8s-app"] {
							delete(pods, name)
						}
					}
				}
			}
			if len(cidrs) > 0 || len(pods) > 0 || !host {
				t.Errorf("not permitted: %q, %v; the host is: %v", cidrs, pods, host)
			}
		})
	}
}

// TestLadder computes the replicas of the component autoscaling-nodes by the rule of deploy/overlays/README.md, and of the chart
// by its values.
func TestLadder(t *testing.T) {
	for _, tc := range []struct {
		name string
		all  objects
		want string
	}{
		{"component", decoded(t, kustomize(t, mine(t, "overlays/kube-proxy", "overlays/components/autoscaling-nodes"))), ladder(2, 16, 1000)},
		{"chart", decoded(t, templated(t, "clusterdns: {autoscaling: {mode: nodes, minReplicas: 4, maxReplicas: 6, nodesPerReplica: 300}}")), ladder(4, 6, 300)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got struct{ NodesToReplicas json.RawMessage }
			kit.Must(t, json.Unmarshal([]byte(find[*corev1.ConfigMap](t, tc.all, "ConfigMap clusterdns-autoscaler").Data["ladder"]), &got))
			if string(got.NodesToReplicas) != tc.want {
				t.Errorf("steps %s, want %s", got.NodesToReplicas, tc.want)
			}
			if replicas := find[*appsv1.Deployment](t, tc.all, "Deployment clusterdns").Spec.Replicas; replicas != nil {
				t.Errorf("the Deployment has %d replicas, which replace those of the autoscaler", *replicas)
			}
		})
	}
}

// ladder returns the numbers of nodes at which the number of replicas changes: one for each perReplica nodes, and one more.
func ladder(lowest, highest, perReplica int) string {
	var steps []string
	replicas := 0
	for nodes := 1; replicas < highest; nodes++ {
		if wanted := max((nodes+perReplica-1)/perReplica+1, lowest); wanted != replicas {
			replicas = wanted
			steps = append(steps, fmt.Sprintf("[%d,%d]", nodes, replicas))
		}
	}
	return "[" + strings.Join(steps, ",") + "]"
}

// TestReadmeObjects decodes the objects that deploy/overlays/README.md shows, as strictly as an API server.
func TestReadmeObjects(t *testing.T) {
	page := kit.Read(t, deployed+"/overlays/README.md")
	shown := map[string]bool{}
	for _, block := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(page, -1) {
		if kind := regexp.MustCompile(`(?m)^kind: (\w+)$`).FindStringSubmatch(block[1]); kind != nil && kind[1] != "Kustomization" && kind[1] != "NodePool" {
			decoded(t, block[1])
			shown[kind[1]] = true
		}
	}
	if !shown["ConfigMap"] || !shown["NetworkPolicy"] {
		t.Errorf("objects %v", shown)
	}
}
