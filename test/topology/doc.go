// Package topology tests end to end that answers depend on where the caller runs: a real API server, clusterdns, and three
// nodes in two zones, each with real nodecache and a pod that sends queries by dig. Input is objects of the API, and
// addresses and EDNS options of queries. It uses nothing of the code under test but the behaviour in the README files.
//
// It has only tests. They need root and the programs of test/install.sh.
package topology
