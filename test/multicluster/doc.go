// Package multicluster tests from outside that clusterdns answers the names of a set of clusters (KEP-1645 and its DNS
// specification 1.0.0): two real API servers with the CustomResourceDefinitions of sigs.k8s.io/mcs-api, a clusterdns
// in each cluster, and an importer that does what a controller of the Multi-Cluster Services API does. In go objects of
// the API; out come replies, as dig prints them.
//
// It has tests only, and knows nothing of the code under test but what the README files say. They need the programs
// that test/install.sh gets.
package multicluster
