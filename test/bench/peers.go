package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/bench/child"
)

// stockCorefile is that of node-local-dns, without health: two programs would share the port. Arguments: the DNS port,
// the metrics port, the port of cluster DNS, further directives.
const stockCorefile = `cluster.local:%[1]d {
    errors
    cache {
        success 9984 30
        denial 9984 5
    }
    reload
    loop
    bind 127.0.0.1
    forward . 127.0.0.1:%[3]d {
        force_tcp
    }
    prometheus 127.0.0.1:%[2]d%[4]s
}
in-addr.arpa:%[1]d ip6.arpa:%[1]d .:%[1]d {
    errors
    cache 30
    reload
    loop
    bind 127.0.0.1
    forward . 127.0.0.1:%[3]d {
        force_tcp
    }
    prometheus 127.0.0.1:%[2]d
}
`

// unboundConf is Unbound with one thread. It forwards everything to one upstream server, so that no packet leaves the
// machine. Arguments: the port, more lines for the server, the folder, the port of the upstream server.
const unboundConf = `server:
    interface: 127.0.0.1
    port: %d
    access-control: 127.0.0.0/8 allow
    num-threads: 1
%s    msg-cache-size: 64m
    rrset-cache-size: 64m
    module-config: "iterator"
    do-not-query-localhost: no
    do-daemonize: no
    use-syslog: no
    verbosity: 0
    username: ""
    chroot: ""
    pidfile: ""
    directory: "%s"
remote-control:
    control-enable: no
forward-zone:
    name: "."
    forward-addr: 127.0.0.1@%d
`

// dnsdistConf is dnsdist with its packet cache; one thread receives queries, another the replies of cluster DNS. Its
// health check queries a name of the cluster. Arguments: the port, the port of cluster DNS, the name.
const dnsdistConf = `setLocal("127.0.0.1:%d")
setACL({"127.0.0.0/8"})
setSecurityPollSuffix("")
newServer({address="127.0.0.1:%d", checkName="%s"})
getPool(""):setCache(newPacketCache(100000))
`

// cache is a server of the part hits, with its start.
type cache struct {
	name  string
	start func(b *bench, ctx context.Context, s *server) error
	// own is set if nothing can be measured without it.
	own bool
}

var caches = []cache{
	{nameNodeCache, (*bench).startNodeCache, true},
	{nameUnbound, (*bench).startUnbound, false},
	{nameDNSdist, (*bench).startDNSdist, false},
	{nameCoreDNS, (*bench).startCoreDNSCache, false},
	{nameEcho, (*bench).startEcho, true},
}

// startCaches starts them, with clusterdns as upstream.
func (b *bench) startCaches(ctx context.Context) error {
	for _, c := range caches {
		if c.name == nameCoreDNS && b.coredns == "" {
			continue // find has recorded the reason
		}
		if !b.has(partHits) && c.name != nameNodeCache && c.name != nameCoreDNS {
			continue // whose memory is not compared
		}
		s := &server{name: c.name, port: child.FreePort()}
		err := c.start(b, ctx, s)
		if err == nil {
			b.caches = append(b.caches, s)
			err = child.Await(ctx, 10*time.Second, "an answer", func() bool { return b.alive(s) })
		}
		switch {
		case err != nil && c.own:
			return err
		case err != nil:
			b.caches = slices.DeleteFunc(b.caches, func(other *server) bool { return other == s })
			b.drop(s, err)
		}
	}
	return nil
}

// drop continues without a server.
func (b *bench) drop(s *server, err error) {
	if s.Process != nil {
		s.Stop()
		if text, readErr := os.ReadFile(s.Logs); readErr == nil && len(text) > 0 {
			first, _, _ := strings.Cut(string(text), "\n")
			err = fmt.Errorf("%w: %s", err, first)
		}
	}
	b.miss(s.name, err)
}

func (b *bench) alive(s *server) bool {
	if s.name != nameEcho {
		return answers(s.port, serviceName(b.cluster.Service(0)))
	}
	c := dns.Client{Timeout: time.Second}
	_, _, err := c.Exchange(new(dns.Msg).SetQuestion(".", dns.TypeA), net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)))
	return err == nil
}

// upstream is the port of clusterdns.
func (b *bench) upstream() int { return b.servers[0].port }

func (b *bench) startNodeCache(ctx context.Context, s *server) error {
	return b.run(ctx, s, b.nodecache, fmt.Sprintf(stockCorefile, s.port, child.FreePort(), b.upstream(), b.profiled(s)), "-conf")
}

func (b *bench) startCoreDNSCache(ctx context.Context, s *server) error {
	return b.run(ctx, s, b.coredns, fmt.Sprintf(stockCorefile, s.port, child.FreePort(), b.upstream(), ""), "-conf")
}

// unbound returns the path of Unbound. Debian's AppArmor profile lets the program of the installed path read
// /etc/unbound alone, so that it is a copy.
func (b *bench) unbound() (string, error) {
	path := filepath.Join(b.folder, "unbound")
	if _, err := os.Stat(path); err == nil {
		return path, nil // which may be running, and can't be written
	}
	installed, err := program("unbound")
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(installed)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(path, text, 0o700); err != nil {
		return "", err
	}
	b.note(child.Version(path, "-V"))
	return path, nil
}

func (b *bench) startUnbound(ctx context.Context, s *server) error {
	path, err := b.unbound()
	if err != nil {
		return err
	}
	return b.run(ctx, s, path, fmt.Sprintf(unboundConf, s.port, "", b.folder, b.upstream()), "-d", "-c")
}

func (b *bench) startDNSdist(ctx context.Context, s *server) error {
	path, err := program("dnsdist")
	if err != nil {
		return err
	}
	b.note(child.Version(path, "--version"))
	conf := fmt.Sprintf(dnsdistConf, s.port, b.upstream(), serviceName(b.cluster.Service(0)))
	return b.run(ctx, s, path, conf, "--supervised", "--disable-syslog", "-C")
}

func (b *bench) startEcho(ctx context.Context, s *server) (err error) {
	s.Process, err = b.launchEcho(ctx, child.ServerCore, s.port)
	return err
}

func (b *bench) launchEcho(ctx context.Context, core string, port int) (*child.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return child.Start(ctx, core, b.folder, fmt.Sprintf("%s-%d", nameEcho, port), self, echoMode, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}

// echoMode is the argument that makes this program the echo server.
const echoMode = "echo"

// program finds a server, whose folder a user's PATH may lack.
func program(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	if path, sbinErr := exec.LookPath(filepath.Join("/usr/sbin", name)); sbinErr == nil {
		return path, nil
	}
	return "", fmt.Errorf("%w; run test/install.sh %s", err, name)
}
