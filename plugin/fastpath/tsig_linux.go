package fastpath

import "github.com/miekg/dns"

// tsig verifies the signature of a query and signs the reply, RFC 8945, as the server of miekg/dns does. A server with
// secrets has no fast path; but if a reload has added them, the listener hands all queries to the chain. A query with a
// signature fails if no secret has its name.
type tsig struct {
	secrets    map[string]string // nil if the server does not verify signatures
	status     error
	requestMAC string
	timersOnly bool
}

// verify verifies the signature of a query, if it has one.
func (t *tsig) verify(secrets map[string]string, packed []byte, m *dns.Msg) {
	t.secrets = secrets
	signature := m.IsTsig()
	if signature == nil || secrets == nil {
		return
	}
	t.requestMAC = signature.MAC
	secret, ok := secrets[signature.Hdr.Name]
	if !ok {
		t.status = dns.ErrSecret
		return
	}
	t.status = dns.TsigVerify(packed, secret, "", false)
}

// sign returns the packed reply with a signature, nil if it has none.
func (t *tsig) sign(m *dns.Msg) (packed []byte, err error) {
	if t.secrets == nil {
		return nil, nil
	}
	signature := m.IsTsig()
	if signature == nil {
		return nil, nil
	}
	secret, ok := t.secrets[signature.Hdr.Name]
	if !ok && signature.Error != dns.RcodeBadKey && signature.Error != dns.RcodeBadSig { // these have no MAC
		return nil, dns.ErrSecret
	}
	packed, t.requestMAC, err = dns.TsigGenerate(m, secret, t.requestMAC, t.timersOnly)
	return packed, err
}

// TsigStatus implements dns.ResponseWriter.
func (t *tsig) TsigStatus() error { return t.status }

// TsigTimersOnly implements dns.ResponseWriter.
func (t *tsig) TsigTimersOnly(only bool) { t.timersOnly = only }
