// Package trace starts the programs with plugin trace beside a Zipkin collector, and compares their spans with those of CoreDNS.
package trace
