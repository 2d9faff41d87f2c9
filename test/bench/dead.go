package main

import (
	"fmt"
	"net"
	"strings"

	"github.com/miekg/dns"
)

// deadZone is the zone whose upstream server never answers.
const deadZone = "dead.example.org."

// deadServer is an upstream server that never answers: UDP datagrams and TCP connections reach sockets that are not read.
type deadServer struct {
	port     int
	options  string // of the stanza that forwards to it
	packets  net.PacketConn
	listener net.Listener
}

// startDead starts it for the servers that are started until stopDead.
func (b *bench) startDead(options string) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("dead upstream: %w", err)
	}
	packets, err := net.ListenPacket("udp", listener.Addr().String())
	if err != nil {
		_ = listener.Close()
		return fmt.Errorf("dead upstream: %w", err)
	}
	b.dead = &deadServer{listener.Addr().(*net.TCPAddr).Port, options, packets, listener}
	return nil
}

func (b *bench) stopDead() {
	_ = b.dead.packets.Close()
	_ = b.dead.listener.Close()
	b.dead = nil
}

// deadBlock is a server block for deadZone. Arguments: the DNS port, the port of the dead upstream server, the options of
// forward.
const deadBlock = deadZone + `:%d {
    bind 127.0.0.1
    errors
    cache 30
    forward . 127.0.0.1:%d%s
}
`

// block is the server block for the zone of the dead upstream server, if there is one.
func (d *deadServer) block(port int) string {
	if d == nil {
		return ""
	}
	return fmt.Sprintf(deadBlock, port, d.port, d.options)
}

// unboundDead is the same for Unbound. Argument: the port of the dead upstream server.
const unboundDead = `forward-zone:
    name: "` + deadZone + `"
    forward-addr: 127.0.0.1@%d
`

// deadQuery returns a query for a name that the dead upstream server would have to answer.
func deadQuery(label string) ([]byte, error) {
	return new(dns.Msg).SetQuestion(strings.ToLower(label)+"."+deadZone, dns.TypeA).Pack()
}
