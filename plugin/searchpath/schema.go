package searchpath

import "strings"

// schema is a version of the search path that names carry.
type schema struct {
	// label is the version as names have it: v and digits.
	label string
	// unversioned tells that names without a version have this one.
	unversioned bool
	// suffixes returns the search list, without the host's and without the bare name, fully qualified and in order.
	suffixes func(namespace, zone string) []string
}

// schemas are all there are. What a version means never changes, since search lists of pods name it: what is
// to change gets an entry of its own.
var schemas = []schema{
	{label: "v1", unversioned: true, suffixes: clusterFirst},
}

// known returns the versions, for people.
func known(schemas []schema) string {
	labels := make([]string, 0, len(schemas))
	for _, s := range schemas {
		labels = append(labels, s.label)
	}
	return strings.Join(labels, ", ")
}

// clusterFirst is the search list that the kubelet gives pods with the dnsPolicy ClusterFirst, but for the host's.
func clusterFirst(namespace, zone string) []string {
	return []string{namespace + ".svc." + zone, "svc." + zone, zone}
}
