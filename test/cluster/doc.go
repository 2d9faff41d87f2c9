// Package cluster runs nearside as its users do: from its images and the manifests of deploy/, on a node with a real
// kubelet.
//
// In go the programs that test/install.sh gets (etcd, the parts of Kubernetes, containerd, runc, the CNI plugins), the
// programs of this module and deploy/. The tests bring up a cluster of one node, with a control plane, kube-proxy in
// nftables mode and containerd, apply deploy/ with kubectl, and ask from pods. Out comes what the pods got, with every
// lost query counted.
//
// The node has network, mount, process, cgroup and host name of its own, made by the program in inside/. Its process 1
// takes all others with it, so nothing is left on the machine: the tests look. Pods run the program in asker/. It
// imports nothing from plugin/ or cmd/: only what a deployed nearside does counts.
//
// The tests take minutes and need root, so they run only when NEARSIDE_E2E is 1, as "make e2e" has it.
package cluster
