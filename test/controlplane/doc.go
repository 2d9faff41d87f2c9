// Package controlplane runs a real Kubernetes control plane for a test, on 127.0.0.1: one etcd and one kube-apiserver,
// without controllers, scheduler and kubelets.
//
// Input is the two binaries that test/install.sh puts into its cache folder. Output is a ControlPlane: the address,
// certificates and kubeconfig files to connect with, a client with all permissions, and methods that kill, restart,
// freeze and thaw the API server.
//
// All data is in the test's temporary folder and is removed after the test. As no controllers run, only the test creates
// EndpointSlices, and a deleted namespace stays in the phase Terminating.
package controlplane
