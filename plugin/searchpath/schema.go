package searchpath

import "strings"

// schema is a version of the search path that search names carry.
type schema struct {
	// label is the version in names: v and digits.
	label string
	// unversioned marks the version of names without a version.
	unversioned bool
	// suffixes returns the search list, fully qualified and in order, without the host's list and the bare name.
	suffixes func(namespace, zone string) []string
}

// schemas are all versions. The search lists of pods name them, so a version never changes: a change is a new entry.
var schemas = []schema{
	{label: "v1", unversioned: true, suffixes: clusterFirst},
}

// versions returns the versions for a message.
func versions(schemas []schema) string {
	all := make([]string, 0, len(schemas))
	for _, s := range schemas {
		all = append(all, s.label)
	}
	return strings.Join(all, ", ")
}

// clusterFirst is the search list that the kubelet writes for pods with the dnsPolicy ClusterFirst, without the host's.
func clusterFirst(namespace, zone string) []string {
	return []string{namespace + ".svc." + zone, "svc." + zone, zone}
}
