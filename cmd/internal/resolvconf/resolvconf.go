// Package resolvconf finds the nameservers of a node. Input: the paths of the node's files; output: the nameservers
// that nodecache can query, the warnings for the log, and the files whose change may change the result. It imports
// nothing of nodecache.
package resolvconf

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

const (
	// Path is where the C library reads the nameservers.
	Path = "/etc/resolv.conf"
	// Uplinks is the file in which systemd-resolved names its upstreams, where Path names systemd-resolved itself.
	Uplinks = "/run/systemd/resolve/resolv.conf"
	// HostRoot is where the manifests mount /etc and /run/systemd/resolve of the node. Path in a container is a copy that
	// the kubelet made when the pod was created, and never updates.
	HostRoot = "/host"

	// maxLinks is how many symbolic links Linux follows in one path before it returns ELOOP.
	maxLinks = 40
	// maxNameservers is how many nameservers the kubelet copies, as many as the C library reads (MAXNS).
	maxNameservers = 3
)

// byteOrderMark begins a text file that some editors wrote.
var byteOrderMark = []byte("\ufeff")

// Reader reads the nameservers of a node.
type Reader struct {
	Own     []netip.Addr // addresses that this process answers on: a query to one would return to it
	Path    string       // the container's resolv.conf
	Uplinks string       // the path of systemd-resolved's file in the container
	Host    string       // the folder with the node's files: if it has /etc, its resolv.conf is read instead of Path

	AllowCopy bool // read Path where the node's file has no usable server
	Compare   bool // warn if the node's file is read and Path names other servers
}

// Result are the nameservers of a file.
type Result struct {
	Servers  []string
	From     string   // the file that names them
	Skipped  []string // servers of that file whose queries would loop back to this node
	Warnings []string
	Files    []string // all files that were read or looked for
	Copy     bool     // the servers are from the copy, because of AllowCopy
}

// UselessError is the reason why none of the servers of a file can be queried.
type UselessError struct{ reason string }

func (e UselessError) Error() string { return e.reason }

// Nameservers returns the usable nameservers of a resolv.conf. Files is set with any error, From and Skipped with a
// UselessError.
func (r Reader) Nameservers(file string) (found Result, err error) {
	if file != r.Path || !Mounted(r.Host) {
		err = r.usable(&found, file, r.Uplinks)
		return found, err
	}
	path, err := onHost(r.Host, Path, &found)
	if err == nil {
		err = r.usable(&found, path, filepath.Join(r.Host, Uplinks), r.Uplinks)
	}
	switch {
	case err == nil:
		r.compare(&found)
		return found, nil
	case !r.AllowCopy:
		return found, err
	}
	copied := found
	copyErr := r.usable(&copied, file, r.Uplinks)
	if copyErr != nil {
		found.Files = copied.Files
		return found, err
	}
	copied.Copy = true
	copied.Warnings = append(copied.Warnings, fmt.Sprintf("resolv.conf of the node not used, its copy from the start of the pod is, and changes are not followed: %s; see the mounts of the nodecache manifest", err))
	return copied, nil
}

// compare warns about a copy that names other servers than the node's file: the kubelet has copied another file
// (--resolv-conf), or the node's file has changed since.
func (r Reader) compare(found *Result) {
	if !r.Compare {
		return
	}
	var other Result
	if err := r.usable(&other, r.Path, r.Uplinks); err != nil {
		return
	}
	compared, copied := found.Servers, other.Servers
	if len(copied) == maxNameservers {
		compared = compared[:min(len(compared), maxNameservers)]
	}
	if slices.Equal(slices.Sorted(slices.Values(compared)), slices.Sorted(slices.Values(copied))) {
		return
	}
	found.Warnings = append(found.Warnings, fmt.Sprintf("servers of the node's %s (%s) are used, not those of the copy that the kubelet made for the pod (%s). "+
		"If the node's file has changed since the pod was created, nothing is to be done. If --resolv-conf of the kubelet names another file, whose servers are to be used, "+
		"remove the mount %s/etc (followResolvConf: false in the chart), or name that file below %[4]s after forward in the Corefile",
		Path, strings.Join(found.Servers, " "), strings.Join(copied, " "), r.Host))
}

// Mounted reports whether a folder has the node's /etc.
func Mounted(host string) bool {
	info, err := os.Stat(filepath.Join(host, filepath.Dir(Path)))
	return err == nil && info.IsDir()
}

// onHost returns the path of a file of the node below the folder with the node's files. It resolves symbolic links as
// the node does: an absolute target is below that folder, and not in the container.
func onHost(host, file string, found *Result) (string, error) {
	for range maxLinks {
		if rest, cut := strings.CutPrefix(file, "/var/run/"); cut { // a link to /run on every node
			file = "/run/" + rest
		}
		path := filepath.Join(host, file)
		found.Files = append(found.Files, path)
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

// usable sets the nameservers of a file without those that lead back to this node: a resolver on a loopback address may
// query this cache, and an own address is this cache. If the file names only such servers, one of them on a loopback
// address, the servers are those of the first of the other files that has usable ones.
func (r Reader) usable(found *Result, file string, others ...string) error {
	servers, skipped, err := r.parse(found, file)
	if err != nil {
		return err
	}
	found.Servers, found.From, found.Skipped = servers, file, skipped
	for _, other := range others {
		if len(servers) > 0 || !slices.ContainsFunc(skipped, IsLocal) || other == file {
			break
		}
		servers, _, err = r.parse(found, other)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if len(servers) > 0 {
			found.Servers, found.From, found.Skipped = servers, other, nil
		}
	}
	switch {
	case len(servers) > 0:
		return nil
	case len(skipped) == 0:
		return UselessError{file + " names no nameserver"}
	}
	return UselessError{fmt.Sprintf("%s names only %s, which would loop back to this node; name the servers behind it, in upstreamNameservers of the kube-dns ConfigMap or after forward",
		file, strings.Join(skipped, " and "))}
}

func (r Reader) parse(found *Result, file string) (servers, skipped []string, err error) {
	found.Files = append(found.Files, file)
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
		case err != nil: // the C library ignores it, which resolv.conf(5) does not mention
			found.Warnings = append(found.Warnings, fmt.Sprintf("%s: nameserver %q is not an IP address, so it is left out", file, s))
		case IsLocal(s) || slices.Contains(r.Own, ip.Unmap()):
			skipped = append(skipped, s)
		case !slices.Contains(servers, s):
			servers = append(servers, s)
		}
	}
	return servers, skipped, nil
}

// IsLocal reports whether an address is that of a resolver on this node: 127.0.0.0/8, ::1, or the unspecified address,
// which means the node itself in resolv.conf(5).
func IsLocal(server string) bool {
	ip, err := netip.ParseAddr(server)
	return err == nil && (ip.Unmap().IsLoopback() || ip.Unmap().IsUnspecified())
}
