// Package controlplane gives a test a real Kubernetes control plane on
// 127.0.0.1: one etcd and one kube-apiserver, without controllers, scheduler
// and kubelets.
//
// In goes nothing but the two binaries that test/install.sh puts into its cache
// folder. Out comes a ControlPlane: the address, certificates and kubeconfig
// files to connect with, a client that may do anything, and methods that kill,
// restart, freeze and thaw the API server.
//
// All data is in the test's temporary folder and is gone after the test; Run is for
// programs, and for tests that share a control plane. As no
// controllers run, nobody but the test makes EndpointSlices, and a deleted
// namespace stays in the phase Terminating.
package controlplane
