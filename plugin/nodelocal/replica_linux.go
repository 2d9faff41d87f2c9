package nodelocal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// replicaInterval is the time between two lookups of a replica of cluster DNS. If no fallback needs a replica, it is the option
// interval, if that is longer.
const replicaInterval = 3 * time.Second

// errTranslated is the reason why the address of a Service has no lease where sockets are translated.
var errTranslated = errors.New("the address is a Service's, and the network plugin's load balancing of Services at sockets, as of Cilium without kube-proxy, sends queries to cluster DNS before they reach this server: use deploy/overlays/cilium, or the address 169.254.20.10")

// socketsTranslated returns whether the kernel connects sockets for an address to another server: no query reaches this one.
func (n *node) socketsTranslated(a netip.Addr) bool {
	return rules.SocketsTranslated(netip.AddrPortFrom(a, n.config.Port))
}

// watchReplicas looks for a replica behind each fallback that is translated only for sockets, and lets the rules use
// it: no kube-proxy translates the packets of pods there.
func (n *node) watchReplicas(ctx context.Context) {
	if n.backend != backendNFTables || len(n.config.Fallback) == 0 {
		return
	}
	var used []netip.Addr
	problem, proxy := "", proxyServices{again: n.config.interval}
	for {
		found, err := n.findReplicas(ctx, used, &proxy)
		if ctx.Err() != nil {
			return
		}
		before := problem
		if problem = ""; err != nil {
			problem = err.Error()
		}
		if problem != before && err != nil {
			log.Warningf("Without this server pods get no answer: %v", err)
		}
		if !slices.Equal(found, used) {
			used = found
			n.replicas.Store(&found)
			if len(found) > 0 {
				log.Infof("Fallback %s is translated only for sockets: without this server queries of pods are sent to the replica %s of cluster DNS",
					join(n.config.Fallback), join(found))
			}
			signal(n.allDue)
		}
		wait := replicaInterval
		if err == nil && len(found) == 0 {
			wait = max(wait, n.config.interval)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// findReplicas returns a replica for each fallback that needs one. A replica in use stays while SocketTargets returns it, while
// it answers, and while no replica is found: a Service may have more replicas than SocketTargets tries sockets.
func (n *node) findReplicas(ctx context.Context, used []netip.Addr, proxy *proxyServices) (all []netip.Addr, err error) {
	for _, service := range n.config.Fallback {
		i := slices.IndexFunc(used, func(r netip.Addr) bool { return r.Is4() == service.Is4() })
		targets, e := rules.SocketTargets(netip.AddrPortFrom(service, n.config.Port))
		if e == nil && targets[0].Addr() == service || proxy.know(ctx, service) {
			continue
		}
		replicas := slices.DeleteFunc(targets, func(t netip.AddrPort) bool { return t.Port() != n.config.Port })
		switch {
		case i >= 0 && (len(replicas) == 0 || slices.Contains(replicas, netip.AddrPortFrom(used[i], n.config.Port)) || n.answers(ctx, used[i])):
			all = append(all, used[i])
		case len(replicas) > 0:
			all = append(all, replicas[0].Addr())
		case e != nil:
			err = errors.Join(err, fmt.Errorf("no replica of cluster DNS is known for fallback %s, which kube-proxy does not know: %w", service, e))
		default:
			err = errors.Join(err, fmt.Errorf("the replicas of fallback %s, which kube-proxy does not know, have another port than %d", service, n.config.Port))
		}
	}
	return all, err
}

// answers returns whether a replica replies to a query for the Service kubernetes, whatever the reply.
func (n *node) answers(ctx context.Context, replica netip.Addr) bool {
	client := dns.Client{Timeout: selfQueryWait}
	m := new(dns.Msg).SetQuestion("kubernetes.default.svc.cluster.local.", dns.TypeA)
	_, _, err := client.ExchangeContext(ctx, m, netip.AddrPortFrom(replica, n.config.Port).String())
	return err == nil
}

// proxyServices are the Services that kube-proxy has rules for, as they were read last.
type proxyServices struct {
	again time.Duration // time after which they are read again
	read  time.Time
	all   []netip.Addr
}

// know returns whether kube-proxy has rules for a Service, or its rules could never be read.
func (p *proxyServices) know(ctx context.Context, service netip.Addr) bool {
	if time.Since(p.read) < p.again {
		return slices.Contains(p.all, service)
	}
	found, err := rules.ReadKubeProxy(ctx, true)
	if err == nil {
		p.all, p.read = found.Services, time.Now()
	}
	return p.read.IsZero() || slices.Contains(p.all, service)
}

// applyReplicas applies the rules with the replicas that were found last, unless a younger instance has its own rules.
func (n *node) applyReplicas() error {
	t, is := n.rules.(*rules.NFTables)
	found := n.replicas.Load()
	if !is || found == nil || !n.applied.Load() || !t.SetReplicas(*found) {
		return nil
	}
	if _, younger, err := n.instance.others(); err != nil || younger {
		return err
	}
	return t.Apply()
}
