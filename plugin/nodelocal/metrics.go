package nodelocal

import (
	"github.com/coredns/coredns/plugin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// namespace is the prefix of our own metrics.
const namespace = "nearside"

// Values of the label errortype, which are node-local-dns's unless noted.
const (
	errorIPTables       = "iptables"
	errorIPTablesLock   = "iptables_lock"
	errorInterfaceAdd   = "interface_add"
	errorInterfaceCheck = "interface_check"
	errorConfigMap      = "configmap"
	errorNFTables       = "nftables" // ours
)

// SetupErrors counts errors of setting up the node, with node-local-dns's name and labels. The series of all label
// values exist from the start, so that alerts have data.
var SetupErrors = func() *prometheus.CounterVec {
	v := promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace,
		Subsystem: "nodecache",
		Name:      "setup_errors_total",
		Help:      "The number of errors during periodic network setup for node-cache",
	}, []string{"errortype"})
	for _, e := range []string{errorIPTables, errorIPTablesLock, errorInterfaceAdd, errorInterfaceCheck, errorConfigMap, errorNFTables} {
		v.WithLabelValues(e)
	}
	return v
}()

func gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return promauto.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Subsystem: pluginName, Name: name, Help: help}, labels)
}

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return promauto.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: pluginName, Name: name, Help: help}, labels)
}

var (
	setupInfo        = gauge("setup_info", "The kind of interface with the addresses (dummy, bridge, lo or none), the backend of the rules (nftables, iptables or none), and the path of queries of the server to itself (veth or lo); 1.", "interface", "kind", "backend", "question")
	rulesPresent     = gauge("rules", "Number of rules in the kernel at the last verification.", "interface")
	lastVerified     = gauge("last_verified_timestamp_seconds", "Time of the last verification of interface and rules without an error, in seconds since 1970.", "interface")
	leaseHeld        = gauge("lease", "Whether this server (1) or cluster DNS (0) answers the queries of pods to the address.", "address")
	repairs          = counter("repairs_total", "Repairs of what another program had removed or changed.", "interface", "what")
	leasesLost       = counter("leases_lost_total", "Leases that expired because the server did not answer itself in time.", "address")
	leasesNotReached = counter("leases_not_reached_total", "Leases that ended because no packet of a pod arrived, of those that the rules let in.", "address")
	healthFailures   = counter("health_failures_total", "Queries of the server to itself without an answer.", "address")
)

// Values of the label what of repairs.
const (
	repairedInterface = "interface"
	repairedAddresses = "addresses"
	repairedRules     = "rules"
)
