// Package cluster tests nearside as it is deployed: from its images and the manifests of deploy/, on a node with a real
// kubelet.
//
// Input is the programs of test/install.sh (etcd, the parts of Kubernetes, containerd, runc, the CNI plugins), the
// programs of this module and deploy/. The tests start a cluster of one node, with a control plane, kube-proxy in
// nftables mode and containerd, apply deploy/ with kubectl, and send queries from pods. Output is the answers in the
// pods, with every lost query counted.
//
// The node has its own namespaces for network, mounts, processes, cgroups and host name, made by the program in inside/.
// When its process 1 ends, all others end as well, so nothing is left on the machine, which the tests check. Pods run
// the program in client/. It imports nothing from plugin/ or cmd/: only the behaviour of a deployed nearside counts.
//
// TestConformance runs the cases for DNS of Kubernetes' own e2e suite on such clusters, some with more nodes.
//
// The tests take minutes and need root, so they run only when NEARSIDE_E2E is 1, as in "make e2e", and TestConformance only
// when NEARSIDE_CONFORMANCE is a folder for its reports, as in "make conformance".
package cluster
