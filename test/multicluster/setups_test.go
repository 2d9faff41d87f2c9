//go:build linux

package multicluster

// The setups of west's clusterdns that differ from the usual one.
const (
	byTopology     = "topology"
	byArgument     = "cluster by argument"
	byProperty     = "cluster by property"
	byBoth         = "topology and cluster"
	byDirective    = "directive"
	byDirectiveAll = "directive, topology and cluster"
	cached         = "cache"
	cachedNarrowly = "cache of the directive"
)

// variants are these setups.
func variants() setups {
	return setups{
		byTopology:     imports("topology"),
		byArgument:     imports("prefer-local-cluster west"),
		byProperty:     imports("prefer-local-cluster"),
		byBoth:         imports("topology", "prefer-local-cluster west"),
		byDirective:    directive(),
		byDirectiveAll: directive("topology", "prefer-local-cluster west"),
		cached:         "cache 30\n    " + imports("ttl 60"),
		cachedNarrowly: "cache 30\n    " + directive("ttl 60"),
	}
}

// imports is the setup with one directive for the names of the cluster and of the clusterset, with further options.
func imports(options ...string) string {
	text := "kubernetes cluster.local clusterset.local in-addr.arpa ip6.arpa {\n        kubeconfig KUBECONFIG\n        multicluster clusterset.local\n"
	for _, o := range options {
		text += "        " + o + "\n"
	}
	return text + "    }\n"
}

// directive is the setup with directive multicluster for the names of the clusterset, with further options of it; the
// names of the cluster are unchanged.
func directive(options ...string) string {
	text := "multicluster clusterset.local {\n        kubeconfig KUBECONFIG\n"
	for _, o := range options {
		text += "        " + o + "\n"
	}
	return text + "    }\n    kubernetes cluster.local in-addr.arpa ip6.arpa {\n        kubeconfig KUBECONFIG\n    }\n"
}
