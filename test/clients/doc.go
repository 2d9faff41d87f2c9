// Package clients tests the programs with the resolvers and DNS tools of others: C libraries, languages, validating tools,
// and dnspython, which packs random messages and parses the replies. Input is a small cluster in manifests; the
// output of each client is compared with the records that these manifests have by the specification of DNS for Kubernetes.
// The servers are clusterdns, and nodecache in front of it, on port 53 of their usual addresses in a network namespace.
//
// It has tests only, and uses nothing of the code under test but the behaviour in the README files. They need root and the
// programs of test/install.sh.
package clients
