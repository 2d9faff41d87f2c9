// Package searchlist has search lists (resolv.conf(5), "search"): the list that the kubelet writes for a pod, the EDNS
// option that carries a list from a node's cache to cluster DNS, and the candidates, the names that a list makes of a
// looked-up name. Input is records of pods and options of messages; output is lists and names. It sends no queries (see
// package expand), and imports neither plugins nor Kubernetes.
//
// The EDNS option wire.OptionSearchList carries a client's search list from a node's cache to cluster DNS, so that one query is
// for all candidates.
//
// In a query, the data are the suffixes in order, in wire form (RFC 1035 section 3.1) and lower case, without compression:
//
//	+----------------------------------+----------------------+---- ...
//	| 2 ns 3 svc 7 cluster 5 local 0   | 3 svc 7 cluster ...  |
//	+----------------------------------+----------------------+---- ...
//
// QNAME is the first candidate: the name that the client looked up, of at least one label, and the first suffix.
//
// In a reply, the option reports that the server has tried every candidate. The data are the suffix of the candidate
// that the reply is for, or empty if no candidate has data of the type. A reply without the option is for QNAME alone.
package searchlist
