package fastpath

import (
	"encoding/binary"

	"github.com/miekg/dns"
)

// accept decides by its header whether a datagram is answered, as CoreDNS's server does. The header is complete.
func (s *service) accept(b []byte) dns.MsgAcceptAction {
	header := dns.Header{
		Id: binary.BigEndian.Uint16(b), Bits: binary.BigEndian.Uint16(b[2:]),
		Qdcount: binary.BigEndian.Uint16(b[4:]), Ancount: binary.BigEndian.Uint16(b[6:]),
		Nscount: binary.BigEndian.Uint16(b[8:]), Arcount: binary.BigEndian.Uint16(b[10:]),
	}
	action := dns.DefaultMsgAcceptFunc(header)
	if action != dns.MsgRejectNotImplemented || !s.opcodes[int(header.Bits>>11)&0xF] {
		return action
	}
	if header.Qdcount != 1 {
		return dns.MsgReject
	}
	return dns.MsgAccept
}

// tsig verifies the signature of a query and signs the reply, RFC 8945, as the server of miekg/dns does. A server with
// secrets has no fast path, but after a reload that added them, its listener hands all queries to the chain. Without
// secrets, no signature is right.
type tsig struct {
	secrets    map[string]string // empty if the server has none; nil if it does not verify signatures
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

// sign returns the packed reply with a signature, nil if it is to have none.
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
