package nodelocal

import (
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Proofs that the queries to an address do not arrive, as bits.
const (
	notBySelfQuery = 1 << iota // without a lease, self-queries are answered over lo only, for silenceWait
	notByUDP                   // none of the pods' packets over UDP that the rules let in has arrived
	notByTCP
)

// proofOf returns the proof by the packets of a flow, such as udp4.
func proofOf(flow string) int32 {
	if strings.HasPrefix(flow, "udp") {
		return notByUDP
	}
	return notByTCP
}

// prove adds or removes a proof that the queries to an address do not arrive.
func (n *node) prove(a netip.Addr, proof int32, is bool) {
	var before, after int32
	if is {
		before = n.proofs[a].Or(proof)
		after = before | proof
	} else {
		before = n.proofs[a].And(^proof)
		after = before &^ proof
	}
	if before == 0 != (after == 0) {
		signal(n.filtersDue)
	}
}

// proveBySelfQuery processes the result of a self-query. With onlyOverLo it is answered over lo alone, without a lease; since is
// the first time of this. It is a proof only after silenceWait: nodecache may still have to add its own accept rules.
func (n *node) proveBySelfQuery(a netip.Addr, since *time.Time, err error, onlyOverLo bool) {
	switch now := time.Now(); {
	case err == nil:
		*since = time.Time{}
		n.prove(a, notBySelfQuery, false)
	case !onlyOverLo:
		*since = time.Time{}
	case since.IsZero():
		*since = now
	case now.Sub(*since) >= silenceWait:
		n.prove(a, notBySelfQuery, true)
	}
}

// blocked returns the addresses whose queries do not arrive.
func (n *node) blocked() []netip.Addr {
	return slices.DeleteFunc(slices.Clone(n.config.Addresses), func(a netip.Addr) bool { return n.proofs[a].Load() == 0 })
}

// proveArrival removes the proof that packets of a flow do not arrive.
func (n *node) proveArrival(flow string) {
	for _, a := range n.config.Addresses {
		if a.Is4() == strings.HasSuffix(flow, "4") {
			n.prove(a, proofOf(flow), false)
		}
	}
}
