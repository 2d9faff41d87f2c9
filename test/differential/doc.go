// Package differential asks a stock CoreDNS and our cluster DNS server the same questions about the
// same random clusters, and compares what they answer.
//
// In go coredns, etcd and kube-apiserver of test/install.sh, clusterdns built from the sources, and the clusters of
// test/randomcluster with some additions. A real API server, package kubeapi, serves them to pairs
// of processes, a pair for each variant of the Corefile. Out comes every difference that the table of allowed
// differences does not explain: with the question, both answers, the objects involved and the seed. An
// entry of the table that explains nothing in a whole run is an error too, so that the table stays true.
//
// go test runs a few seeds. For a soak:
//
//	go test ./test/differential -seeds 200 -timeout 2h
//
// and to repeat what a seed found:
//
//	NEARSIDE_SEED=17 go test ./test/differential -run TestDifferential
//
// Nothing of plugin/ may be imported: the servers are asked over the network like anybody's.
package differential
