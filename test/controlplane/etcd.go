package controlplane

import (
	"fmt"
	"path/filepath"
)

// startEtcd starts etcd on the two ports, with its data below dir. kube-apiserver waits until etcd is ready.
func startEtcd(binary, dir, log string, client, peer *port) (*process, error) {
	clientURL := fmt.Sprintf("http://127.0.0.1:%d", client.number)
	peerURL := fmt.Sprintf("http://127.0.0.1:%d", peer.number)
	const name = "test"
	return startProcess("etcd", binary, dir, log,
		"--name="+name,
		"--data-dir="+filepath.Join(dir, "etcd"),
		"--listen-client-urls="+clientURL,
		"--advertise-client-urls="+clientURL,
		"--listen-peer-urls="+peerURL,
		"--initial-advertise-peer-urls="+peerURL,
		"--initial-cluster="+name+"="+peerURL,
		"--socket-reuse-port=true",
		"--unsafe-no-fsync",
		"--quota-backend-bytes=8589934592", // large clusters with all their changes
		"--log-level=warn",
	)
}
