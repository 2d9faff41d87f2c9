package dnssec

import (
	"fmt"
	"hash/maphash"
	"time"

	"github.com/coredns/coredns/plugin/pkg/cache"
	"github.com/coredns/coredns/plugin/pkg/singleflight"
	"github.com/miekg/dns"
)

const (
	// backdated is the time from the inception of a signature to its creation, for resolvers whose clock is late.
	backdated = 3 * time.Hour
	// lifetime is the time until a signature expires.
	lifetime = 8 * 24 * time.Hour
	// renewal is the time before the expiry of a signature at which it is replaced. It is longer than caches keep replies.
	renewal = 2 * 24 * time.Hour
	// originalTTL is the original TTL in signatures, in seconds: the TTL of a record may have been decremented before it is signed.
	// Resolvers cache records for no longer.
	originalTTL = 3600
)

// signer signs RRsets, and stores the signatures.
type signer struct {
	keys  []*key
	split bool // zone-signing keys sign all but DNSKEY records, which key-signing keys sign; otherwise each key signs all

	seed    maphash.Seed
	stored  *cache.Cache[[]*dns.RRSIG] // with the TTL 0
	signing singleflight.Group
	now     func() time.Time
}

func newSigner(keys []*key, capacity int) *signer {
	return &signer{
		keys: keys, split: isSplit(keys),
		seed: maphash.MakeSeed(), stored: cache.New[[]*dns.RRSIG](capacity), now: time.Now,
	}
}

// signatures returns the signatures of an RRset of a zone.
func (s *signer) signatures(rrset []dns.RR, zone, server string) ([]dns.RR, error) {
	sum, err := s.sum(rrset, zone)
	if err != nil {
		return nil, err
	}
	now := s.now()
	all, ok := s.stored.Get(sum)
	if ok && isCurrent(all, now) {
		cacheHits.WithLabelValues(server).Inc()
	} else {
		cacheMisses.WithLabelValues(server).Inc()
		result, err := s.signing.Do(sum, func() (any, error) {
			if all, ok := s.stored.Get(sum); ok && isCurrent(all, now) { // another query has stored them meanwhile
				return all, nil
			}
			all, err := s.create(rrset, zone, now)
			if err == nil {
				s.stored.Add(sum, all)
				cacheEntries.WithLabelValues(server, "signature").Set(float64(s.stored.Len()))
			}
			return all, err
		})
		if err != nil {
			return nil, err
		}
		all = result.([]*dns.RRSIG)
	}
	h := rrset[0].Header()
	copies := make([]dns.RR, len(all))
	for i, stored := range all {
		signature := *stored // plugins in front may change names and TTLs
		signature.Hdr.Name, signature.Hdr.Ttl = h.Name, h.Ttl
		copies[i] = &signature
	}
	return copies, nil
}

// sum returns a hash of the signed data. The TTLs, the order of the records and the case of their name are not signed: replies that
// differ only in these have the same signature. The seed prevents clients from finding names with equal hashes.
func (s *signer) sum(rrset []dns.RR, zone string) (sum uint64, err error) {
	for _, rr := range rrset {
		rr = dns.Copy(rr) // PackRR writes to it
		h := rr.Header()
		h.Name, h.Ttl = dns.CanonicalName(h.Name), 0
		packed := make([]byte, dns.Len(rr))
		length, err := dns.PackRR(rr, packed, 0, nil, false)
		if err != nil {
			return 0, fmt.Errorf("pack %s %s: %w", h.Name, dns.Type(h.Rrtype), err)
		}
		sum += maphash.Bytes(s.seed, packed[:length])
	}
	return sum + maphash.String(s.seed, zone), nil
}

// create signs an RRset.
func (s *signer) create(rrset []dns.RR, zone string, now time.Time) (all []*dns.RRSIG, err error) {
	for _, k := range s.keys {
		if s.split && !k.signs(rrset[0].Header().Rrtype) {
			continue
		}
		signature, err := k.sign(rrset, zone, now)
		if err != nil {
			return nil, err
		}
		all = append(all, signature)
	}
	return all, nil
}

// isCurrent reports whether signatures are not to be replaced yet.
func isCurrent(all []*dns.RRSIG, now time.Time) bool {
	for _, signature := range all {
		if !signature.ValidityPeriod(now.Add(renewal)) {
			return false
		}
	}
	return true
}
