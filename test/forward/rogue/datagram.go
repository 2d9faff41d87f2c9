package rogue

import (
	"errors"
	"net"
	"net/netip"

	"github.com/miekg/dns"
)

// serveUDP answers datagrams until the socket is closed.
func (s *Server) serveUDP(conn *net.UDPConn) {
	buffer := make([]byte, 65536)
	for {
		n, client, err := conn.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.t.Errorf("rogue server %s: %v", s.Addr, err)
			return
		}
		s.receiveDatagram(conn, client, append([]byte(nil), buffer[:n]...))
	}
}

// receiveDatagram counts a query and starts its answer.
func (s *Server) receiveDatagram(conn *net.UDPConn, client netip.AddrPort, packet []byte) {
	b := s.Behaviour().overUDP()
	query := new(dns.Msg)
	if err := query.Unpack(packet); err != nil || query.Response || len(query.Question) != 1 {
		s.ledger.malformed()
		return
	}
	s.ledger.datagram(query.Question[0].Name)
	if b.BlackHole || b.Deaf || chance(b.Drop) {
		return
	}
	s.tasks.Go(func() { s.answerDatagram(b, conn, client, query) })
}

func (s *Server) answerDatagram(b Behaviour, conn *net.UDPConn, client netip.AddrPort, query *dns.Msg) {
	messages, err := b.messages(query, false)
	if err != nil {
		s.t.Errorf("rogue server %s: %v", s.Addr, err)
		return
	}
	if !s.pause(b.wait(query.Question[0].Name), nil) {
		return
	}
	if !b.OnlyWrong {
		s.ledger.answered(false)
	}
	for _, m := range messages {
		if _, err := conn.WriteToUDPAddrPort(m, client); err != nil {
			return // the socket is closed, or the client is gone
		}
	}
}
