// Package multicluster tests end to end that clusterdns answers the names of a set of clusters (KEP-1645 and its DNS
// specification 1.0.0): two real API servers with the CustomResourceDefinitions of sigs.k8s.io/mcs-api, a clusterdns in
// each cluster, and an importer in place of a controller of the Multi-Cluster Services API. Input is objects of the API;
// output is replies, as dig prints them.
//
// It has tests only, and uses nothing of the code under test but the behaviour in the README files. They need the
// programs of test/install.sh.
package multicluster
