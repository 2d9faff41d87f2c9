package source

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// podDNS returns the resolver settings of a pod, nil for the default: ClusterFirst without searches.
func podDNS(o *corev1.Pod) *index.PodDNS {
	d := &index.PodDNS{Policy: policy(o.Spec.DNSPolicy)}
	if o.Spec.DNSConfig != nil {
		for _, search := range o.Spec.DNSConfig.Searches {
			d.Searches = append(d.Searches, strings.Clone(search))
		}
	}
	if d.Policy == string(corev1.DNSClusterFirst) && d.Searches == nil {
		return nil
	}
	return d
}

// ndots returns the option ndots of a pod's resolver: the kubelet writes the value in dnsConfig, otherwise 5 for the policies with
// the suffixes of the cluster. Without the option, resolvers use 1; for more than 15 they use 15 (resolv.conf(5)). The options of
// the node's resolv.conf, which policy Default uses, are not known.
func ndots(o *corev1.Pod) uint8 {
	n := 5
	if p := policy(o.Spec.DNSPolicy); p == string(corev1.DNSDefault) || p == string(corev1.DNSNone) {
		n = 1
	}
	if o.Spec.DNSConfig != nil {
		for _, option := range o.Spec.DNSConfig.Options {
			if option.Name != "ndots" || option.Value == nil {
				continue
			}
			if value, err := strconv.Atoi(*option.Value); err == nil && value >= 0 {
				n = min(value, 15)
			}
		}
	}
	return uint8(n) // #nosec G115 -- at most 15
}

// policy returns a dnsPolicy as the kubelet reads it: an unknown one is ClusterFirst.
func policy(p corev1.DNSPolicy) string {
	for _, known := range []corev1.DNSPolicy{corev1.DNSClusterFirstWithHostNet, corev1.DNSDefault, corev1.DNSNone} {
		if p == known {
			return string(known)
		}
	}
	return string(corev1.DNSClusterFirst)
}

// ownsAddresses reports whether a pod's status shows that it still has its addresses.
//
// The addresses are those of its sandbox. When the sandbox is deleted, they are free for another pod, and the status changes
// late: at the end of a pod the kubelet reports the phase after it has freed them. So the pod must have a running container.
// After the boot of a node all addresses are assigned again, and the status is an old one until the kubelet has written it:
// so the container must have been started since the boot.
//
// A status without containers, as manifests may have it, is accepted.
func ownsAddresses(o *corev1.Pod, booted time.Time) bool {
	for i := range o.Status.Conditions {
		if c := &o.Status.Conditions[i]; c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionFalse {
			return false // it has no sandbox
		}
	}
	containers := slices.Concat(o.Status.InitContainerStatuses, o.Status.ContainerStatuses, o.Status.EphemeralContainerStatuses)
	runs := func(c corev1.ContainerStatus) bool {
		return c.State.Running != nil && !c.State.Running.StartedAt.Time.Before(booted)
	}
	return len(containers) == 0 || slices.ContainsFunc(containers, runs)
}
