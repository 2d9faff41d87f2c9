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

// Servers returns the listeners of the program: its sockets on the ports of the Corefile, in the order of the Corefile.
func (i *Instance) Servers() (all []Server) {
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
				if s.port == l.port {
					all = append(all, Server{s.tcp(), udpBeside(udp, s)})
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

// udpBeside returns the UDP address beside a TCP socket.
func udpBeside(udp []socket, beside socket) net.Addr {
	if slices.ContainsFunc(udp, func(s socket) bool { return s.port == beside.port && s.ip.Equal(beside.ip) }) {
		return beside.udp()
	}
	return nil
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
