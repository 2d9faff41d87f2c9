//go:build linux

package forward

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/forward/rogue"
	"github.com/nearside-dns/nearside/test/kit"
)

const (
	// realHost is the address of real servers. No client sends from it, so that none occupies their ports.
	realHost = "127.0.0.3"
	// namedHost is the address of named, which listens on addresses of interfaces only.
	namedHost = "127.0.0.1"
	// serverName is the name in the certificates of real servers.
	serverName = "dns.real.test"
	// hosts is the number of names by hostName in the zone test, each with its rogue.Address.
	hosts    = 400
	hostName = "host-%d.test."
	// large is a name with more addresses than fit in a datagram.
	large          = "large.test."
	largeAddresses = 100
)

// realServer is a running server of another project.
type realServer struct {
	t      *testing.T
	name   string
	host   string // address
	folder string
	cert   rogue.Certificate
	// Ports of DNS, and of TLS, HTTPS and QUIC if the server supports them.
	port, tls, https, quic int
}

func (r *realServer) address(port int) string { return net.JoinHostPort(r.host, strconv.Itoa(port)) }

// realServers are the functions that start each server with the zone.
var realServers = map[string]func(r *realServer){
	"unbound": startUnbound,
	"nsd":     startNSD,
	"dnsmasq": startDnsmasq,
	"named":   startNamed,
	"coredns": startCoreDNS,
}

// startReal starts a server, and waits until it answers. If the program is not installed, the test is skipped, or fails if
// the environment variable NEARSIDE_REQUIRE_ALL is 1.
func startReal(t *testing.T, name string) *realServer {
	t.Helper()
	r := &realServer{t: t, name: name, host: realHost, folder: t.TempDir()}
	if name == "named" {
		r.host = namedHost
	}
	r.cert = rogue.NewCertificate(t, serverName, r.host)
	for _, port := range []*int{&r.port, &r.tls, &r.https, &r.quic} {
		*port = daemon.FreePort(t)
	}
	realServers[name](r)
	return r
}

// program returns the path of the server's program.
func (r *realServer) program() string {
	r.t.Helper()
	if r.name == "coredns" {
		return controlplane.RequireBinary(r.t, r.name)
	}
	for _, folder := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/local/sbin", "/usr/sbin", "/sbin") {
		if path, err := exec.LookPath(filepath.Join(folder, r.name)); err == nil {
			return r.copyOf(path)
		}
	}
	kit.Lacking(r.t, r.name+" is not installed; run test/install.sh")
	return ""
}

// copyOf returns the path of a copy of a program: AppArmor's profiles permit programs in their installed paths to read
// only their default configuration.
func (r *realServer) copyOf(path string) string {
	r.t.Helper()
	text, err := os.ReadFile(path)
	kit.Must(r.t, err)
	own := filepath.Join(r.folder, r.name)
	kit.Must(r.t, os.WriteFile(own, text, 0o700))
	return own
}

// write writes a file for the server, and returns its path.
func (r *realServer) write(name, text string) string {
	r.t.Helper()
	path := filepath.Join(r.folder, name)
	kit.Write(r.t, path, text)
	return path
}

// run runs the server until the end of the test, and waits until it answers over UDP and TCP.
func (r *realServer) run(path string, arguments ...string) {
	r.t.Helper()
	command := exec.Command(path, arguments...)
	command.Dir = r.folder
	p := kit.Start(r.t, command)
	r.t.Cleanup(func() { r.stop(p) })
	p.Succeeds(r.t, kit.Patience, r.name+" answers", r.answers)
}

// stop ends the process group of the server: by SIGTERM, then by SIGKILL.
func (r *realServer) stop(p *kit.Process) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := syscall.Kill(-p.Pid(), s); err != nil && !errors.Is(err, syscall.ESRCH) {
			r.t.Errorf("signal %s: %v", s, err)
		}
		if _, err := p.WaitFor(bounded); err == nil {
			return
		}
	}
	r.t.Errorf("%s does not end", r.name)
}

// answers returns an error unless the server answers for the zone over UDP and TCP.
func (r *realServer) answers() error {
	name := fmt.Sprintf(hostName, hosts-1)
	for _, network := range []string{"udp", "tcp"} {
		m := new(dns.Msg).SetQuestion(name, dns.TypeA)
		reply, err := exchange(network, r.address(r.port), m, time.Now().Add(time.Second))
		if err != nil {
			return err
		}
		if len(reply.Answer) != 1 {
			return fmt.Errorf("over %s: %v", network, reply)
		}
	}
	return nil
}

// records returns the records of the zone, one line each by a format for name and address.
func records(format string) string {
	var b strings.Builder
	for i := range hosts {
		name := fmt.Sprintf(hostName, i)
		fmt.Fprintf(&b, format+"\n", name, rogue.Address(name))
	}
	for i := range largeAddresses {
		fmt.Fprintf(&b, format+"\n", large, largeAddress(i))
	}
	return b.String()
}

func largeAddress(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }

// zoneFile writes the zone as a master file (RFC 1035 section 5), and returns its path.
func (r *realServer) zoneFile() string {
	r.t.Helper()
	return r.write("test.zone", "test. 60 IN SOA ns.test. hostmaster.test. 1 3600 600 86400 60\n"+
		"test. 60 IN NS ns.test.\nns.test. 60 IN A "+r.host+"\n"+records("%s 60 IN A %s"))
}

func startUnbound(r *realServer) {
	path := r.program()
	config := r.write("unbound.conf", fmt.Sprintf(`server:
    directory: "%[1]s"
    chroot: ""
    username: ""
    pidfile: ""
    use-syslog: no
    do-daemonize: no
    num-threads: 1
    interface: %[2]s@%[3]d
    interface: %[2]s@%[4]d
    interface: %[2]s@%[5]d
    tls-port: %[4]d
    https-port: %[5]d
    tls-service-pem: "%[6]s"
    tls-service-key: "%[7]s"
    access-control: 127.0.0.0/8 allow
    module-config: "iterator"
    edns-tcp-keepalive: yes
    local-zone: test. static
`, r.folder, r.host, r.port, r.tls, r.https, r.cert.Cert, r.cert.Key)+records(`    local-data: "%s 60 IN A %s"`)+`remote-control:
    control-enable: no
`)
	r.run(path, "-d", "-c", config)
}

func startNSD(r *realServer) {
	path := r.program()
	config := r.write("nsd.conf", fmt.Sprintf(`server:
    zonesdir: "%[1]s"
    chroot: ""
    username: ""
    database: ""
    pidfile: ""
    zonelistfile: "%[1]s/zone.list"
    xfrdfile: "%[1]s/xfrd.state"
    server-count: 1
    ip-address: %[2]s@%[3]d
    ip-address: %[2]s@%[4]d
    tls-port: %[4]d
    tls-service-pem: "%[5]s"
    tls-service-key: "%[6]s"
    rrl-ratelimit: 0
remote-control:
    control-enable: no
zone:
    name: test.
    zonefile: "%[7]s"
`, r.folder, r.host, r.port, r.tls, r.cert.Cert, r.cert.Key, r.zoneFile()))
	r.run(path, "-d", "-c", config)
}

func startDnsmasq(r *realServer) {
	path := r.program()
	table := r.write("hosts", records("%[2]s %[1]s"))
	r.run(path, "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file", "--user="+userName(r.t), "--log-facility=-",
		"--no-resolv", "--no-hosts", "--addn-hosts="+table, "--local-ttl=60", "--local=/test/", "--bind-interfaces",
		"--listen-address="+r.host, "--port="+strconv.Itoa(r.port))
}

// userName returns the user that runs the test: dnsmasq changes to it, and must be able to read the files of the test.
func userName(t *testing.T) string {
	t.Helper()
	name, err := exec.Command("id", "-un").Output()
	kit.Must(t, err)
	return strings.TrimSpace(string(name))
}

func startNamed(r *realServer) {
	path := r.program()
	config := r.write("named.conf", fmt.Sprintf(`tls own { cert-file "%[1]s"; key-file "%[2]s"; };
http own { endpoints { "/dns-query"; }; };
options {
    directory "%[3]s";
    pid-file none;
    session-keyfile none;
    lock-file none;
    managed-keys-directory "%[3]s";
    listen-on port %[4]d { %[5]s; };
    listen-on port %[6]d tls own { %[5]s; };
    listen-on port %[7]d tls own http own { %[5]s; };
    listen-on-v6 { none; };
    recursion no;
    dnssec-validation no;
};
controls { };
zone "test." { type primary; file "%[8]s"; };
`, r.cert.Cert, r.cert.Key, r.folder, r.port, r.host, r.tls, r.https, r.zoneFile()))
	r.run(path, "-g", "-n", "1", "-c", config)
}

func startCoreDNS(r *realServer) {
	path := r.program()
	block := fmt.Sprintf("{\n    bind %s\n    tls %s %s\n    hosts %s {\n        ttl 60\n    }\n}\n",
		r.host, r.cert.Cert, r.cert.Key, r.write("hosts", records("%[2]s %[1]s")))
	var all strings.Builder
	for scheme, port := range map[string]int{"dns": r.port, "tls": r.tls, "https": r.https, "quic": r.quic} {
		own := block
		if scheme == "dns" {
			own = strings.Replace(block, "tls ", "# ", 1)
		}
		fmt.Fprintf(&all, "%s://.:%d %s", scheme, port, own)
	}
	r.run(path, "-conf", r.write("Corefile", all.String()))
}
