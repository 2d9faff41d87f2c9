// Package monitoring holds what deploy/monitoring shows and warns of against what the programs really export: in go the
// dashboards, the rules and the runbooks, both programs with traffic and trouble, Prometheus's parser, promtool and
// Prometheus itself; out comes which metric, label, alert or runbook is not there. It draws the pictures of the
// documents, too (package picture). Nothing here may be imported by the programs.
package monitoring
