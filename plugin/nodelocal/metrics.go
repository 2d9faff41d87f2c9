package nodelocal

import (
	"github.com/coredns/coredns/plugin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// namespace begins the names of metrics of our own.
const namespace = "nearside"

// The types of errors that node-local-dns counts.
const (
	errorIPTables       = "iptables"
	errorIPTablesLock   = "iptables_lock"
	errorInterfaceAdd   = "interface_add"
	errorInterfaceCheck = "interface_check"
	errorConfigMap      = "configmap"
	errorNFTables       = "nftables" // ours
)

// SetupErrors counts what failed in setting up the node, with node-local-dns's name and labels. All
// label values are there from the start, so that an alert has a series to look at.
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
	setupInfo     = gauge("setup_info", "What carries the addresses (dummy, bridge, lo or none) and what keeps the rules (nftables, iptables or none), and the way of queries of the server to itself (veth or lo); 1.", "interface", "kind", "backend", "question")
	rulesPresent  = gauge("rules", "Number of rules that were in the kernel when they were last verified.", "interface")
	lastVerified  = gauge("last_verified_timestamp_seconds", "When interface and rules were last found or made right, in seconds since 1970.", "interface")
	leaseHeld     = gauge("lease", "Whether the address takes the traffic of pods (1) or leaves it to cluster DNS (0).", "address")
	repairs       = counter("repairs_total", "Repairs of what somebody else removed or changed.", "interface", "what")
	leasesLost    = counter("leases_lost_total", "How often the address lost the traffic because the server did not answer itself in time.", "address")
	healthFailure = counter("health_failures_total", "Queries of the server to itself that were not answered.", "address")
)

// What is repaired, as metrics have it.
const (
	repairedInterface = "interface"
	repairedAddresses = "addresses"
	repairedRules     = "rules"
)
