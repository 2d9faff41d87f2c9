// Package searchlist has search lists (resolv.conf(5), "search"): the list that the kubelet writes for a pod, the EDNS
// option that carries a list from a node's cache to cluster DNS, and the candidates, the names that a list makes of a
// looked-up name. Input is records of pods and options of messages; output is lists and names. It sends no queries (see
// package expand), and imports neither plugins nor Kubernetes.
package searchlist
