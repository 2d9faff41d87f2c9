// Package nodelocaldns installs Kubernetes's manifest of node-local-dns as its manual describes it, in a real API server, and
// runs nodecache in a network namespace as the kubelet would run node-local-dns: with the arguments, the volumes and the environment
// of the manifest's pod.
package nodelocaldns
