// Package search tests from outside that search paths are expanded by the server: pods in network namespaces with the
// resolv.conf that they have in a cluster, in which the resolvers of glibc, musl and Go and dig look names up, with
// nodecache on their node in front of clusterdns and of stock CoreDNS, and an upstream for everything else. In go
// objects of the API, Corefiles and names; out come addresses, the packets that left the pod, and the queries that
// reached cluster DNS and the upstream. It knows nothing of the code under test but what the README files say.
//
// It has tests only, and the program golookup that they run. They need root and the programs that test/install.sh gets.
package search
