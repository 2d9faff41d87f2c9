package nodelocaldns

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/miekg/dns"
)

// uplinks is where systemd-resolved says which servers it asks, while /etc/resolv.conf names
// systemd-resolved itself.
const uplinks = "/run/systemd/resolve/resolv.conf"

// byteOrderMark begins a text file that some editors wrote.
var byteOrderMark = []byte("\ufeff")

// hostRoot is where the manifests mount folders of the node: /etc, and /run/systemd/resolve. The kubelet
// gives a container a copy of the node's resolv.conf when the pod is created, and never another.
const hostRoot = "/host"

// maxLinks is how many symbolic links Linux follows in one path before it returns ELOOP.
const maxLinks = 40

// maxNameservers is how many nameservers the kubelet copies, like the C library's MAXNS.
const maxNameservers = 3

// resolvConf finds the nameservers of a node.
type resolvConf struct {
	own     addresses                   // addresses on which this cache answers
	copy    string                      // the container's resolv.conf, nodeResolvConf but in tests
	uplinks string                      // the file to read where only a resolver on this node is named
	host    string                      // the folder with the node's files; if it has its /etc, that is read instead of copy
	read    func(string)                // called with every file that is read, there or not
	remark  func(remark)                // called for lines that are ignored
	copied  bool                        // the copy may be used where the node's file has no server
	useCopy func(error)                 // called if it is used, with the reason
	differ  func(node, copied []string) // called if the node's file is used and copy names other servers; may be nil
}

// uselessError says why no server of a file can be asked.
type uselessError struct{ reason string }

func (e uselessError) Error() string { return e.reason }

// nameservers returns those of a resolv.conf. Where the node's /etc is mounted, the node's resolv.conf is read instead
// of the container's.
func (r resolvConf) nameservers(file string) ([]string, error) {
	if file != r.copy || !mounted(r.host) {
		return r.usable(file, r.uplinks)
	}
	path, err := onHost(r.host, nodeResolvConf, r.read)
	var servers []string
	if err == nil {
		servers, err = r.usable(path, filepath.Join(r.host, r.uplinks), r.uplinks)
	}
	if err == nil {
		r.compare(servers)
	}
	if err == nil || !r.copied {
		return servers, err
	}
	servers, copyErr := r.usable(file, r.uplinks)
	if copyErr != nil {
		return nil, err
	}
	r.useCopy(err)
	return servers, nil
}

// compare reports a copy that names other servers than the node's file: the kubelet has copied another file
// (--resolv-conf), or the node's file has changed since.
func (r resolvConf) compare(servers []string) {
	if r.differ == nil {
		return
	}
	ignore := resolvConf{own: r.own, read: func(string) {}, remark: func(remark) {}}
	copied, err := ignore.usable(r.copy, r.uplinks)
	if err != nil {
		return
	}
	compared := servers
	if len(copied) == maxNameservers {
		compared = servers[:min(len(servers), maxNameservers)]
	}
	if !slices.Equal(slices.Sorted(slices.Values(compared)), slices.Sorted(slices.Values(copied))) {
		r.differ(servers, copied)
	}
}

// Nameservers returns the nameservers that a nodecache with this root folder and these addresses finds in a
// resolv.conf, the file that has them, and those that it skips there, since queries to them would return to this
// node. Without any that it can use there is no error.
func Nameservers(root, file string, own []netip.Addr) (servers, skipped []string, from string, err error) {
	path, behind := filepath.Join(root, file), []string{filepath.Join(root, uplinks)}
	if host := filepath.Join(root, hostRoot); file == nodeResolvConf && mounted(host) {
		if onNode, err := onHost(host, nodeResolvConf, func(string) {}); err == nil {
			path, behind = onNode, append([]string{filepath.Join(host, uplinks)}, behind...)
		}
	}
	r := resolvConf{own: own, read: func(path string) { from = path }, remark: func(remark) {}}
	if _, skipped, err = r.parse(path); err != nil {
		return nil, nil, path, err
	}
	servers, err = r.usable(path, behind...)
	if errors.As(err, new(uselessError)) {
		return nil, skipped, path, nil
	}
	if from != path {
		skipped = nil
	}
	return servers, skipped, from, err
}

// mounted reports whether a folder has the node's /etc.
func mounted(host string) bool {
	info, err := os.Stat(filepath.Join(host, filepath.Dir(nodeResolvConf)))
	return err == nil && info.IsDir()
}

// onHost returns the path of a file of the node below the folder that has the node's files. It resolves symbolic
// links as the node does: an absolute target is below that folder, and not in the container. It calls read with the
// path of each link and of the file.
func onHost(host, file string, read func(string)) (string, error) {
	for range maxLinks {
		if rest, found := strings.CutPrefix(file, "/var/run/"); found { // a link to /run on every node
			file = "/run/" + rest
		}
		path := filepath.Join(host, file)
		read(path)
		info, err := os.Lstat(path)
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			return path, nil
		}
		target, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(file), target)
		}
		file = filepath.Clean(target)
	}
	return "", &fs.PathError{Op: "open", Path: filepath.Join(host, file), Err: syscall.ELOOP}
}

// usable returns the nameservers of a file, without those that would come back to this node: a query sent
// to a loopback address is answered by a resolver that may query this cache, and one sent to an own address
// certainly does. Where only those are left, the first of the other files that is there counts.
func (r resolvConf) usable(file string, uplinks ...string) ([]string, error) {
	servers, skipped, err := r.parse(file)
	if err != nil {
		return nil, err
	}
	for _, other := range uplinks {
		if len(servers) > 0 || !slices.ContainsFunc(skipped, isLocal) || other == file {
			break
		}
		behind, _, err := r.parse(other)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		servers = behind
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
