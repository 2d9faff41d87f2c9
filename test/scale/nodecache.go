package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nearside-dns/nearside/test/bench/child"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

// podsOfNode are more than the 110 that a kubelet permits by default.
const podsOfNode = 250

// nodeRest is the memory of a nodecache at rest, in MiB.
type nodeRest struct {
	what         string
	memory, peak float64
}

// nodecacheFile is its Corefile. Arguments: the ports of DNS and metrics, and a directive.
const nodecacheFile = `cluster.local:%d {
    bind 127.0.0.1
    errors
    cache
    prometheus 127.0.0.1:%d
%s
    forward . 127.0.0.1:9
}
`

// nodeAutopath reads the pods of a node. Arguments: the node, the API server, the files of the client.
const nodeAutopath = `    autopath @nodelocal {
        node %s
        endpoint %s
        tls %s %s %s
    }`

// measureNode prints the memory of nodecache on a node with many pods.
func (b *bench) measureNode(ctx context.Context, api *kubeapi.Server) error {
	all, err := b.nodes(ctx, api, podsOfNode, 15*time.Second)
	if err != nil {
		return err
	}
	fmt.Printf("\n| nodecache at rest | MiB | highest |\n|---|---|---|\n")
	for _, n := range all {
		fmt.Printf("| %s | %.1f | %.1f |\n", n.what, n.memory, n.peak)
	}
	return nil
}

// nodes measures nodecache without the pods of its node, and with them.
func (b *bench) nodes(ctx context.Context, api *kubeapi.Server, pods int, settle time.Duration) (all []nodeRest, err error) {
	path := filepath.Join(b.folder, "nodecache")
	if err := child.Build(ctx, path, "github.com/nearside-dns/nearside/cmd/nodecache"); err != nil {
		return nil, err
	}
	c := cluster(1, 1, 10, 0)
	c.Pods = pods
	w, err := newWorld(api, size{name: "node", cluster: c})
	if err != nil {
		return nil, err
	}
	node, _ := c.Node(0)
	plane := api.Plane()
	for _, with := range []struct{ what, directive, metric string }{
		{"without autopath", "", "coredns_build_info"},
		{
			fmt.Sprintf("with autopath @nodelocal and %d pods", pods),
			fmt.Sprintf(nodeAutopath, node, plane.URL(), plane.CertFile(), plane.KeyFile(), plane.CAFile()),
			`nearside_kubernetes_last_sync_seconds{resource="pods"}`,
		},
	} {
		n, err := b.nodeRest(ctx, path, with.directive, with.metric, settle)
		if err != nil {
			return nil, fmt.Errorf("nodecache %s: %w", with.what, err)
		}
		n.what = with.what
		all = append(all, n)
	}
	return all, w.gate.refuse()
}

// nodeRest starts nodecache and reads its memory, some time after it has a metric.
func (b *bench) nodeRest(ctx context.Context, path, directive, metric string, settle time.Duration) (n nodeRest, err error) {
	folder, err := os.MkdirTemp(b.folder, "node-")
	if err != nil {
		return n, err
	}
	conf, metrics := filepath.Join(folder, "Corefile"), child.FreePort()
	if err := os.WriteFile(conf, fmt.Appendf(nil, nodecacheFile, child.FreePort(), metrics, directive), 0o600); err != nil {
		return n, err
	}
	p, err := child.Start(ctx, b.core, folder, "nodecache", path, "-conf", conf)
	if err != nil {
		return n, err
	}
	defer p.Stop()
	if err := child.Await(ctx, 30*time.Second, "the metric "+metric, func() bool {
		found := false
		err := ask(ctx, net.JoinHostPort("127.0.0.1", strconv.Itoa(metrics)), "metrics", func(r io.Reader) error {
			text, err := io.ReadAll(r)
			found = strings.Contains(string(text), metric)
			return err
		})
		return err == nil && found
	}); err != nil {
		return n, err
	}
	if err := child.Pause(ctx, settle); err != nil {
		return n, err
	}
	n.memory, n.peak, err = p.Memory()
	return n, err
}
