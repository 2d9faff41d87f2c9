package differential

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// server is a running DNS server.
type server struct {
	*kit.Process
	name    string
	address string

	conns map[string]*dns.Conn // by network
}

// start starts a server with a Corefile, which is made for a free port.
func start(t *testing.T, name, binary, host string, corefile func(port string) string) *server {
	t.Helper()
	port := strconv.Itoa(daemon.FreePort(t))
	conf := kit.File(t, "Corefile", corefile(port))
	cmd := exec.Command(binary, "-conf", conf)
	cmd.Dir = filepath.Dir(conf)
	s := &server{Process: kit.Start(t, cmd), name: name, address: net.JoinHostPort(host, port), conns: map[string]*dns.Conn{}}
	t.Cleanup(func() {
		for _, c := range s.conns {
			_ = c.Close() // nothing was left unsent
		}
	})
	return s
}

// ended returns an error if the process has ended.
func (s *server) ended() error {
	if code, err := s.WaitFor(0); err == nil {
		return fmt.Errorf("%s has ended with code %d\n%s", s.name, code, s.log())
	}
	return nil
}

// log returns the end of the server's output.
func (s *server) log() string {
	text := s.Output()
	return text[max(0, len(text)-2000):]
}

// ownAddresses returns the addresses of the machine besides loopback, which both servers use as their own. The first is
// IPv4, and can be bound; there is none if the machine has no such address.
func ownAddresses() (own []netip.Addr, err error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil || prefix.Addr().IsLoopback() {
			continue
		}
		if ip := prefix.Addr(); ip.Is4() && (len(own) == 0 || !own[0].Is4()) {
			own = append([]netip.Addr{ip}, own...)
		} else {
			own = append(own, ip)
		}
	}
	if len(own) > 0 && !own[0].Is4() {
		return nil, nil
	}
	return own, nil
}

// patience is the wait for a reply, and the number of attempts.
type patience struct {
	timeout time.Duration
	tries   int
}

var (
	patient   = patience{2 * time.Second, 3}
	impatient = patience{250 * time.Millisecond, 1}
	// hopeless is for questions that CoreDNS does not answer.
	hopeless = patience{30 * time.Millisecond, 1}
)

// ask sends a query over UDP, and again over TCP if the reply is truncated or the question requires it. It returns nil
// without a reply.
func (s *server) ask(q question, p patience) *dns.Msg {
	m := q.message()
	for range p.tries {
		network := "udp"
		if q.tcp {
			network = "tcp"
		}
		reply := s.exchange(network, m, p.timeout)
		if reply != nil && reply.Truncated && !q.tcp {
			reply = s.exchange("tcp", m, p.timeout)
		}
		if reply != nil {
			return reply
		}
	}
	return nil
}

// exchange sends a message on the open connection, and returns the reply to it or nil.
func (s *server) exchange(network string, m *dns.Msg, timeout time.Duration) *dns.Msg {
	fresh := false
	for {
		c := s.conns[network]
		if c == nil {
			conn, err := net.DialTimeout(network, s.address, timeout)
			if err != nil {
				return nil
			}
			c = &dns.Conn{Conn: conn, UDPSize: dns.MaxMsgSize}
			s.conns[network], fresh = c, true
		}
		reply, err := roundTrip(c, m, timeout)
		if err == nil {
			return reply
		}
		_ = c.Close() // it may be broken
		delete(s.conns, network)
		var netErr net.Error
		if fresh || errors.As(err, &netErr) && netErr.Timeout() {
			return nil
		}
	}
}

func roundTrip(c *dns.Conn, m *dns.Msg, timeout time.Duration) (*dns.Msg, error) {
	m.Id = dns.Id()
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	if err := c.WriteMsg(m); err != nil {
		return nil, err
	}
	for {
		reply, err := c.ReadMsg()
		if err != nil {
			return nil, err
		}
		if reply.Id == m.Id {
			return reply, nil
		}
	}
}
