// Package search tests search lists end to end: pods in network namespaces, with the resolv.conf that they have in a
// cluster, look up names by the resolvers of glibc, musl, Go and dig. Their node runs nodecache, in front of clusterdns or
// of stock CoreDNS, with an upstream for all other names. Input is objects of the API, Corefiles and names; output is
// addresses, the packets that left the pod, and the queries that cluster DNS and the upstream received. It uses nothing of
// the code under test but the behaviour in the README files.
//
// It has only tests, and the program golookup that they run. They need root and the programs of test/install.sh.
package search
