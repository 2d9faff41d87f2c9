// Package topology tests from outside that callers get the endpoints that are near to them: a real API server,
// clusterdns that reads it, and three nodes in two zones, each with a real nodecache and a pod that asks with
// dig. In go objects of the API, and addresses and EDNS options that queries have; it knows nothing of the code
// under test but what the README files say.
//
// It has tests only. They need root and the programs that test/install.sh gets.
package topology
