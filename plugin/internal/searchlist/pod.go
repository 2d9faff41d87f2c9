package searchlist

import (
	"slices"
	"strings"
)

// Values of dnsPolicy with which the kubelet does not add the suffixes of the cluster.
const (
	policyDefault = "Default"
	policyNone    = "None"
)

// Limits of the kubelet: the number of entries, the characters of one entry, and those of all entries joined by blanks.
const (
	maxEntries    = 32
	maxEntryChars = 253
	maxListChars  = 2048
)

// PodDNS is the part of a pod's specification that decides its search list: dnsPolicy and dnsConfig.searches.
type PodDNS struct {
	Policy   string
	Searches []string
}

// OfPod returns the search list of a pod with its own network namespace, as its resolver reads it: fully qualified
// names in lower case, without duplicates; nil without a list. zone is the cluster's zone, host the search list of the
// node's resolv.conf (see ReadResolvConf).
//
// The kubelet builds the list from dnsPolicy and dnsConfig.searches and truncates it. The pod's hostname and subdomain
// are not in it. They matter only for a pod without a list: glibc and Go search the domain of the host name then, musl
// does not; OfPod returns nil.
//
// Resolvers agree on lists of domain names. For ".", glibc queries the bare name at that position, musl and Go skip it; this makes
// no difference at the start of a list, where the bare name has failed before the client queries the first candidate, and at the
// end, where the bare name follows anyway. Resolvers disagree about an entry that is not a name: OfPod returns nil for such lists.
func OfPod(namespace string, d *PodDNS, zone string, host []string) []string {
	return qualified(truncate(kubeletEntries(namespace, d, strings.TrimSuffix(zone, "."), host)))
}

// kubeletEntries returns the entries that the kubelet combines for a pod, before it truncates the list.
func kubeletEntries(namespace string, d *PodDNS, zone string, host []string) (all []string) {
	if d == nil {
		d = &PodDNS{}
	}
	if d.Policy != policyNone && d.Policy != policyDefault && zone != "" {
		all = append(all, namespace+".svc."+zone, "svc."+zone, zone)
	}
	if d.Policy != policyNone {
		all = append(all, host...)
	}
	return withoutDuplicates(append(all, d.Searches...))
}

// withoutDuplicates returns the entries in their order, without those that equal an earlier entry.
func withoutDuplicates(all []string) (unique []string) {
	for _, s := range all {
		if !slices.Contains(unique, s) {
			unique = append(unique, s)
		}
	}
	return unique
}

// truncate truncates a list as the kubelet does: to the first maxEntries entries, without entries of more than
// maxEntryChars, and then to the first entries that fit into maxListChars.
func truncate(all []string) []string {
	all = all[:min(len(all), maxEntries)]
	all = slices.DeleteFunc(all, func(s string) bool { return len(s) > maxEntryChars })
	for len(strings.Join(all, " ")) > maxListChars {
		all = all[:len(all)-1]
	}
	return all
}

// qualified returns the names of a list, fully qualified, or nil if resolvers disagree about an entry (see OfPod).
func qualified(all []string) (names []string) {
	for len(all) > 0 && all[0] == "." {
		all = all[1:]
	}
	for len(all) > 0 && all[len(all)-1] == "." {
		all = all[:len(all)-1]
	}
	for _, s := range all {
		name := strings.ToLower(strings.TrimSuffix(s, "."))
		if !isName(name) {
			return nil
		}
		names = append(names, name+".")
	}
	return withoutDuplicates(names)
}

// isName reports whether a text without the final dot is a domain name of letters, digits, "-" and "_". Kubernetes
// allows no other characters, and resolvers escape them in different ways.
func isName(text string) bool {
	for label := range strings.SplitSeq(text, ".") {
		if label == "" || len(label) > 63 || strings.ContainsFunc(label, isOdd) {
			return false
		}
	}
	return true
}

func isOdd(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
}
