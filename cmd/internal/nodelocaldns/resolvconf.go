package nodelocaldns

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// uplinks is where systemd-resolved says which servers it asks, while /etc/resolv.conf names
// systemd-resolved itself.
const uplinks = "/run/systemd/resolve/resolv.conf"

// byteOrderMark begins a text file that some editors wrote.
var byteOrderMark = []byte("\ufeff")

// resolvConf finds the nameservers of a node.
type resolvConf struct {
	uplinks string       // the file to read where only a resolver on this node is named
	own     addresses    // what this cache answers on
	read    func(string) // told of every file that was looked at
	remark  func(remark) // told of lines that say nothing
}

// uselessError says why no server of a file can be asked.
type uselessError struct{ reason string }

func (e uselessError) Error() string { return e.reason }

// nameservers returns those of a resolv.conf, without those that would come back to this node: a query
// sent to a loopback address is answered by a resolver that may ask this cache, and one sent to an own
// address certainly does.
func (r resolvConf) nameservers(file string) ([]string, error) {
	servers, skipped, err := r.parse(file)
	if err != nil {
		return nil, err
	}
	local := slices.ContainsFunc(skipped, isLocal)
	if len(servers) == 0 && local && file != r.uplinks {
		other, _, err := r.parse(r.uplinks)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		servers = other
	}
	switch {
	case len(servers) > 0:
		return servers, nil
	case len(skipped) == 0:
		return nil, uselessError{file + " names no nameserver"}
	}
	return nil, uselessError{fmt.Sprintf("%s names only %s, which would come back to this node; name the servers behind it, in upstreamNameservers of the kube-dns ConfigMap or after forward",
		file, strings.Join(skipped, " and "))}
}

func (r resolvConf) parse(file string) (servers, skipped []string, err error) {
	r.read(file)
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	config, err := dns.ClientConfigFromReader(bytes.NewReader(bytes.TrimPrefix(text, byteOrderMark)))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, s := range config.Servers {
		ip, err := netip.ParseAddr(s)
		switch {
		case err != nil: // resolv.conf(5) does not say so, but the C library ignores it
			r.remark(remark{warning, fmt.Sprintf("%s: nameserver %q is not an IP address, so it is left out", file, s)})
		case isLocal(s) || slices.Contains(r.own, ip.Unmap()):
			skipped = append(skipped, s)
		case !slices.Contains(servers, s):
			servers = append(servers, s)
		}
	}
	return servers, skipped, nil
}

// isLocal tells if an address is that of a resolver on this node: 127.0.0.0/8, ::1, or the unspecified
// address, which resolv.conf(5) takes for the node itself.
func isLocal(server string) bool {
	ip, err := netip.ParseAddr(server)
	return err == nil && (ip.Unmap().IsLoopback() || ip.Unmap().IsUnspecified())
}
