package nearside

import (
	"encoding/hex"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coredns/caddy/caddyfile"
)

func lockThread() { runtime.LockOSThread() }

// listener is a protocol and port of the Corefile, in its order.
type listener struct {
	scheme string
	port   int
}

// defaultPorts are those of server blocks without a port. Tests that need them for DNS set -dns.port.
var defaultPorts = map[string]int{"dns": 53, "tls": 853, "quic": 853, "https": 443, "https3": 443, "grpc": 443}

func listenersOf(corefile string) (all []listener) {
	blocks, err := caddyfile.Parse("Corefile", strings.NewReader(corefile), nil)
	if err != nil {
		return nil
	}
	for _, b := range blocks {
		for _, key := range b.Keys {
			scheme, rest, ok := strings.Cut(key, "://")
			if !ok {
				scheme, rest = "dns", key
			}
			port, err := strconv.Atoi(rest[strings.LastIndexByte(rest, ':')+1:])
			if err != nil || !strings.Contains(rest, ":") {
				port = defaultPorts[scheme]
			}
			if l := (listener{scheme, port}); !slices.Contains(all, l) {
				all = append(all, l)
			}
		}
	}
	return all
}

// Server is a listener of a program, as caddy.ServerListener.
type Server struct{ tcp, udp net.Addr }

// Addr returns the address for TCP, or nil.
func (s Server) Addr() net.Addr { return s.tcp }

// LocalAddr returns the address for UDP, or nil.
func (s Server) LocalAddr() net.Addr { return s.udp }

// Servers returns the listeners of the program: its sockets on the ports of the Corefile, in the order of the Corefile. The
// fast path replaces UDP sockets after the start: it waits for them.
func (i *Instance) Servers() (all []Server) {
	for end := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		all = i.servers()
		incomplete := func(s Server) bool { return s.tcp == nil && s.udp == nil }
		if len(all) > 0 && !slices.ContainsFunc(all, incomplete) || time.Now().After(end) || !i.running() {
			return all
		}
	}
}

func (i *Instance) running() bool {
	select {
	case <-i.ended:
		return false
	default:
		return true
	}
}

func (i *Instance) servers() (all []Server) {
	own := inodes(i.cmd.Process.Pid)
	tcp := sockets("tcp", own)
	udp := sockets("udp", own)
	for _, l := range i.listeners {
		switch l.scheme {
		case "quic", "https3":
			for _, s := range unique(udp, l.port) {
				all = append(all, Server{udp: s.udp()})
			}
		case "dns":
			for _, s := range tcp {
				if s.port == l.port && hasUDP(udp, s) {
					all = append(all, Server{s.tcp(), s.udp()})
				} else if s.port == l.port {
					all = append(all, Server{})
				}
			}
		default:
			for _, s := range tcp {
				if s.port == l.port {
					all = append(all, Server{tcp: s.tcp()})
				}
			}
		}
	}
	return all
}

// hasUDP reports whether a UDP socket has the address of a TCP socket.
func hasUDP(udp []socket, tcp socket) bool {
	return slices.ContainsFunc(udp, func(s socket) bool { return s.port == tcp.port && s.ip.Equal(tcp.ip) })
}

// unique returns one socket for each address of a port.
func unique(all []socket, port int) (some []socket) {
	for _, s := range all {
		if s.port == port && !slices.ContainsFunc(some, func(o socket) bool { return o.ip.Equal(s.ip) }) {
			some = append(some, s)
		}
	}
	return some
}

type socket struct {
	ip   net.IP
	port int
}

func (s socket) tcp() net.Addr { return &net.TCPAddr{IP: s.ip, Port: s.port} }
func (s socket) udp() net.Addr { return &net.UDPAddr{IP: s.ip, Port: s.port} }

// inodes returns the inodes of the sockets of a process.
func inodes(pid int) map[string]bool {
	own := map[string]bool{}
	links, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
	for _, link := range links {
		target, err := os.Readlink(link)
		if inode, ok := strings.CutPrefix(target, "socket:["); err == nil && ok {
			own[strings.TrimSuffix(inode, "]")] = true
		}
	}
	return own
}

// listening and unconnected are the states of sockets that are read for connections and datagrams.
const (
	listening   = "0A"
	unconnected = "07"
)

func sockets(protocol string, own map[string]bool) (all []socket) {
	for _, table := range []string{protocol, protocol + "6"} {
		text, err := os.ReadFile("/proc/net/" + table)
		if err != nil {
			continue
		}
		for _, line := range strings.Split(string(text), "\n") {
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != listening && f[3] != unconnected || !own[f[9]] {
				continue
			}
			address, port, _ := strings.Cut(f[1], ":")
			number, err := strconv.ParseUint(port, 16, 16)
			if err == nil {
				all = append(all, socket{addressOf(address), int(number)})
			}
		}
	}
	return all
}

// addressOf returns an address of /proc/net: 32-bit words in the order of the machine, which is little endian.
func addressOf(text string) net.IP {
	ip, err := hex.DecodeString(text)
	if err != nil {
		return nil
	}
	for word := range slices.Chunk(ip, 4) {
		slices.Reverse(word)
	}
	return ip
}
