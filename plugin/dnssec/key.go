package dnssec

import (
	"crypto"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// key is a key of a zone with its private part.
type key struct {
	public *dns.DNSKEY
	tag    uint16
	crypto.Signer
}

// readKey reads the two files of a key as dnssec-keygen writes them. path is that of either file, with or without its extension.
func readKey(path string) (*key, error) {
	base := filepath.Clean(path)
	if extension := filepath.Ext(base); extension == ".key" || extension == ".private" {
		base = strings.TrimSuffix(base, extension)
	}
	public, err := readPublic(base + ".key")
	if err != nil {
		return nil, err
	}
	file, err := os.Open(base + ".private")
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it is only read
	private, err := public.ReadPrivateKey(file, file.Name())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file.Name(), err)
	}
	s, ok := private.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s: no private key", file.Name())
	}
	k := &key{public, public.KeyTag(), s}
	return k, k.check()
}

func readPublic(path string) (*dns.DNSKEY, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it is only read
	rr, err := dns.ReadRR(file, path)
	if err != nil {
		return nil, err
	}
	public, ok := rr.(*dns.DNSKEY)
	if !ok {
		return nil, fmt.Errorf("%s: no DNSKEY record", path)
	}
	return public, nil
}

// errMismatch is the error of a key whose signatures no resolver accepts.
var errMismatch = errors.New("the public key does not verify signatures of the private key")

// check signs the key with itself: the files may be of different keys, and the flags or algorithm may exclude signatures.
func (k *key) check() error {
	rrset := []dns.RR{k.public}
	signature, err := k.sign(rrset, k.public.Hdr.Name, time.Now())
	if err != nil {
		return err
	}
	if err := signature.Verify(k.public, rrset); err != nil {
		return fmt.Errorf("%w: %w", errMismatch, err)
	}
	return nil
}

// sign returns a signature of an RRset, with the TTL 0.
func (k *key) sign(rrset []dns.RR, zone string, now time.Time) (*dns.RRSIG, error) {
	signature := &dns.RRSIG{
		Algorithm:  k.public.Algorithm,
		KeyTag:     k.tag,
		SignerName: zone,
		OrigTtl:    originalTTL,
		Inception:  uint32(now.Add(-backdated).Unix()), // serial number arithmetic, RFC 4034 section 3.1.5
		Expiration: uint32(now.Add(lifetime).Unix()),
	}
	if err := signature.Sign(k.Signer, rrset); err != nil {
		return nil, fmt.Errorf("sign with key %d of %s: %w", k.tag, k.public.Hdr.Name, err)
	}
	return signature, nil
}

// isKeySigning reports whether it is a zone key with the flag of secure entry points (RFC 4034, section 2.1.1).
func (k *key) isKeySigning() bool { return k.public.Flags&dns.ZONE != 0 && k.public.Flags&dns.SEP != 0 }

// isZoneSigning reports whether it is a zone key without that flag.
func (k *key) isZoneSigning() bool {
	return k.public.Flags&dns.ZONE != 0 && k.public.Flags&dns.SEP == 0
}

// signs reports whether the key signs records of a type, if there are keys of both kinds.
func (k *key) signs(rrtype uint16) bool {
	if rrtype == dns.TypeDNSKEY {
		return k.isKeySigning()
	}
	return k.isZoneSigning()
}

// isSplit reports whether there are keys of both kinds.
func isSplit(keys []*key) bool {
	var keySigning, zoneSigning bool
	for _, k := range keys {
		keySigning = keySigning || k.isKeySigning()
		zoneSigning = zoneSigning || k.isZoneSigning()
	}
	return keySigning && zoneSigning
}

// dnskeys returns the DNSKEY records of a zone.
func (s *signer) dnskeys(zone string) (all []dns.RR) {
	for _, k := range s.keys {
		public := *k.public
		public.Hdr.Name = zone
		all = append(all, &public)
	}
	return all
}
