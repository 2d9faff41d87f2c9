// Package monitoring compares deploy/monitoring with the metrics that the programs really export. Input is the
// dashboards, the rules and the runbooks, both programs with traffic and failures, Prometheus's parser, promtool and
// Prometheus itself; output is the missing metrics, labels, alerts and runbooks. It also draws the pictures of the
// documents (package picture). The programs may not import it.
package monitoring
