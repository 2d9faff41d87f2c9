package path

import (
	"slices"
	"strings"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// The values of dnsPolicy that do without the suffixes of the cluster.
const (
	policyDefault = "Default"
	policyNone    = "None"
)

// The limits that the kubelet keeps: the number of entries, the characters of one, and those of all with a blank
// between each two.
const (
	maxEntries    = 32
	maxEntryChars = 253
	maxListChars  = 2048
)

// List returns the search list of a pod that is not on the host network, as its resolver takes it: fully qualified
// names in lower case, each once; nil where there is none. d is what the pod says of its resolver, zone that of the
// cluster, and host the list of the node, as HostSearch returns it.
//
// The kubelet makes the list of dnsPolicy and dnsConfig.searches, and cuts it where it is too long. The pod's
// hostname and subdomain are not in it. They count where a pod has no list at all: of the domain of its host name
// glibc and Go make one, and musl makes none. Such a pod has none here.
//
// Resolvers agree on a list of domain names. "." is the bare name to glibc, in its place, while musl and Go pass it
// over. That comes to the same at the end of the list, and at its beginning, since the bare name has failed when a
// client asks for the first name of the list. Of an entry that is no name each resolver makes something else: some
// end the search there, some pass it over, and glibc takes the dot off one that begins with it. Of such lists there is
// none here.
func List(namespace string, d *index.PodDNS, zone string, host []string) []string {
	return qualified(fit(written(namespace, d, strings.TrimSuffix(zone, "."), host)))
}

// written returns what the kubelet puts together for a pod, entries as they are written.
func written(namespace string, d *index.PodDNS, zone string, host []string) (all []string) {
	if d == nil {
		d = &index.PodDNS{}
	}
	if d.Policy != policyNone && d.Policy != policyDefault && zone != "" {
		all = append(all, namespace+".svc."+zone, "svc."+zone, zone)
	}
	if d.Policy != policyNone {
		all = append(all, host...)
	}
	return once(append(all, d.Searches...))
}

// once returns the entries without those that were there before.
func once(all []string) (kept []string) {
	for _, s := range all {
		if !slices.Contains(kept, s) {
			kept = append(kept, s)
		}
	}
	return kept
}

// fit cuts a list as the kubelet does: to the first entries, of those the ones that are not too long, and of those
// as many as fit on the line.
func fit(all []string) []string {
	all = all[:min(len(all), maxEntries)]
	all = slices.DeleteFunc(all, func(s string) bool { return len(s) > maxEntryChars })
	for len(strings.Join(all, " ")) > maxListChars {
		all = all[:len(all)-1]
	}
	return all
}

// qualified returns the names of a list, fully qualified, or nil if resolvers do not agree on them.
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
	return once(names)
}

// isName reports whether a text without the last dot is a domain name, made of what host names and names of
// services have: letters, digits, "-" and "_". Kubernetes allows no others, and resolvers escape what else there
// may be in a resolv.conf each in its way.
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
