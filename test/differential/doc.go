// Package differential sends the same questions about the same random clusters to a stock CoreDNS and to our cluster DNS
// server, and compares the answers.
//
// Input is the coredns binary of test/install.sh, clusterdns built from the sources, and the clusters of
// test/fakeapi/randomcluster with some additions. One fake API server serves them to pairs of processes, a pair for each
// variant of the Corefile. Output is every difference that the table of allowed differences does not explain: with the
// question, both answers, the objects involved and the seed. An entry of the table that explains nothing in a whole run
// is an error too, so that the table stays true.
//
// go test runs a few seeds. For a soak, and to repeat a seed:
//
//	go test ./test/differential -seeds 200 -timeout 2h
//	NEARSIDE_SEED=17 go test ./test/differential -run TestDifferential
//
// It may not import anything of plugin/: it only queries the servers over the network.
package differential
