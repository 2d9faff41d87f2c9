//go:build linux

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/nearside-dns/nearside/cmd/internal/doctor/proc"
)

// Names of the features that other checks ask for.
const (
	featureDummy  = "dummy"
	featureBridge = "bridge"
	featureVeth   = "veth"
	featureTables = "nf_tables"
	featureSocket = "nft_socket"
)

// kernelFeatures are what nodecache uses of the kernel.
var kernelFeatures = []struct {
	name, use string
	proc.Feature
}{
	{featureDummy, "the interface", proc.Feature{Option: "DUMMY", Module: "dummy", Symbol: "dummy_xmit"}},
	{featureBridge, "the interface, where there is no dummy", proc.Feature{Option: "BRIDGE", Module: "bridge", Symbol: "br_dev_xmit"}},
	{featureVeth, "queries of nodecache to itself that arrive as those of pods do", proc.Feature{Option: "VETH", Module: "veth", Symbol: "veth_xmit"}},
	{featureTables, "the rules", proc.Feature{Option: "NF_TABLES", Module: "nf_tables", Symbol: "nft_do_chain"}},
	{"nf_conntrack", "the fallback to cluster DNS", proc.Feature{Option: "NF_CONNTRACK", Module: "nf_conntrack", Symbol: "nf_conntrack_in"}},
	{"nft_ct", "notrack in the rules", proc.Feature{Option: "NFT_CT", Module: "nft_ct", Symbol: "nft_notrack_eval"}},
	{"nft_nat", "the fallback to cluster DNS", proc.Feature{Option: "NFT_NAT", Module: "nft_nat", Symbol: "nft_nat_eval"}},
	{"nft_masq", "the fallback to cluster DNS", proc.Feature{Option: "NFT_MASQ", Module: "nft_masq", Symbol: "nft_masq_eval"}},
	{featureSocket, "a killed nodecache to lose its queries at once", proc.Feature{Option: "NFT_SOCKET", Module: "nft_socket"}},
	{"nft_dynset", "leases renewed by packets", proc.Feature{Option: "NF_TABLES", Module: "nf_tables", Symbol: "nft_dynset_eval"}},
}

func (n *node) readFeatures() map[string]proc.Presence {
	features := make([]proc.Feature, len(kernelFeatures))
	for i, f := range kernelFeatures {
		features[i] = f.Feature
	}
	presences := make(map[string]proc.Presence, len(features))
	for i, p := range n.root.Features(features) {
		presences[kernelFeatures[i].name] = p
	}
	return presences
}

// checkFeatures says which features the kernel has, as far as that can be known without a change.
func (n *node) checkFeatures(context.Context) []Line {
	presences := n.features()
	var lines []Line
	for _, f := range kernelFeatures {
		p := presences[f.name]
		if (f.name == featureDummy || f.name == featureVeth) && p == proc.Unknown && n.hasKind(f.name) {
			p = proc.Present
		}
		l := Line{Check: "kernel " + f.name, Verdict: OK}
		switch p {
		case proc.Present:
			l.Value = "yes, for " + f.use
		case proc.Loadable:
			l.Value = "a module, loaded on demand, for " + f.use
		case proc.Absent:
			l.Value = "not in this kernel, for " + f.use
			l.Verdict, l.Advice = n.withoutFeature(f.name, f.Option)
		default:
			l.Value, l.Verdict = "not known from here, for "+f.use, Skip
			l.Advice = "run it on the node, where /lib/modules is seen"
		}
		lines = append(lines, l)
	}
	return lines
}

// withoutFeature says what it means that the kernel lacks a feature.
func (n *node) withoutFeature(name, option string) (Verdict, string) {
	presences := n.features()
	switch name {
	case featureDummy:
		if p := presences[featureBridge]; p == proc.Present || p == proc.Loadable {
			return OK, "" // the bridge does the same
		}
		return Warn, "nodecache puts its addresses on lo; a kernel with CONFIG_DUMMY gives them an interface"
	case featureBridge:
		if presences[featureDummy] == proc.Absent {
			return Warn, "nodecache puts its addresses on lo"
		}
		return OK, "" // not needed
	case featureVeth:
		return Warn, "queries of nodecache to itself take lo, so that it holds its lease behind a firewall that rejects those of pods; use a kernel with CONFIG_" + option
	case featureSocket:
		return Warn, "a killed nodecache keeps its queries until its lease is out, up to a second; a kernel with CONFIG_" + option + " gives them back at once"
	}
	return Warn, "use a kernel with CONFIG_" + option + ", or \"backend iptables\", which has no lease"
}

// hasKind says whether an interface of a kind exists, which proves its driver.
func (n *node) hasKind(kind string) bool {
	links, err := n.links()
	if err != nil {
		return false
	}
	for _, l := range links {
		if l.Kind == kind {
			return true
		}
	}
	return false
}

// The first kernel whose inet tables have chains of the types route and nat, which the rules use.
const oldestMajor, oldestMinor = 5, 2

// checkKernel says which kernel runs.
func (n *node) checkKernel(context.Context) []Line {
	const name = "kernel release"
	release, err := n.root.Release()
	if err != nil {
		return skipped(name, err, "")
	}
	major, minor, ok := version(release)
	switch {
	case !ok:
		return one(name, release, Skip, "its number cannot be read; the rules need 5.2 or later")
	case major < oldestMajor || major == oldestMajor && minor < oldestMinor:
		return one(name, release, Warn, `the nftables rules need 5.2 or later: update it, or use "backend iptables"`)
	}
	return one(name, release, OK, "")
}

// version returns the first two numbers of a release such as 6.1.0-13-amd64.
func version(release string) (major, minor int, ok bool) {
	parts := strings.FieldsFunc(release, func(r rune) bool { return r < '0' || r > '9' })
	if len(parts) < 2 {
		return 0, 0, false
	}
	major, err := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	return major, minor, err == nil && err2 == nil
}

// capNetAdmin is the bit of CAP_NET_ADMIN, see capabilities(7).
const capNetAdmin = 12

// checkPrivileges says whether the other checks may look.
func (n *node) checkPrivileges(context.Context) []Line {
	const name = "privileges"
	const advice = "run it as root, or in the nodecache container: the rules cannot be read without CAP_NET_ADMIN"
	capabilities, err := n.root.Capabilities()
	if err != nil {
		return skipped(name, err, "")
	}
	user := fmt.Sprintf("user %d", os.Geteuid())
	if os.Geteuid() == 0 {
		user = "root"
	}
	if capabilities&(1<<capNetAdmin) == 0 {
		return one(name, user+" without CAP_NET_ADMIN", Warn, advice)
	}
	return one(name, user+" with CAP_NET_ADMIN", OK, "")
}

// adviceFor says what helps against an error of a look at the machine.
func adviceFor(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "run it as root, or in the nodecache container"
	case errors.Is(err, context.DeadlineExceeded):
		return "run it again with a longer -timeout"
	}
	return ""
}
