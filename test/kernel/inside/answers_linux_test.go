package inside

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// way is how the machine's kernel is to call the program that answers queries.
var way = flag.String("way", "tcx", "`way` in which the program that answers queries is attached: tcx or clsact")

// programs are the programs at an interface with answers in the kernel, by the way.
var programs = map[string][]string{
	"tcx":    {"tcx nearside_answer"},
	"clsact": {"clsact nearside_filter"},
}

// metrics is the address of nodecache's metrics.
const metrics = "127.0.0.1:9153"

// pod is a pod, and the interface of the node at which its queries arrive.
type pod struct {
	*netns.Namespace
	device string
}

// TestAnswers has nodecache's program answer queries of pods, whose interfaces are veths, and netkits where the kernel has
// them. It answers until the process is killed, again after a restart, and until a graceful end. nodecache has no capabilities
// but those that it is deployed with.
func TestAnswers(t *testing.T) {
	needsMachine(t)
	bed := netns.New(t)
	pods := []pod{{bed.Pod[0], "pod0"}, {bed.Pod[1], "pod1"}}
	if *way == "tcx" {
		pods = append(pods, addNetkit(t, bed, 2, netlink.NETKIT_MODE_L2), addNetkit(t, bed, 3, netlink.NETKIT_MODE_L3))
	}
	write := func(corefile string) string {
		return kit.File(t, "Corefile", corefile)
	}
	bed.Upstream.Start(t, "nodecache", "-conf", write(answering("upstream", "")))
	conf := write(fmt.Sprintf(".:53 {\n\tbind 169.254.20.10 fd00::a\n\tnodelocal 169.254.20.10 fd00::a {\n\t\tfallback %v %v\n\t}\n"+
		"\terrors\n\tprometheus %s\n\tfastpath {\n\t\tkernel on\n\t}\n\tcache\n\tforward . %v\n}\n",
		bed.Upstream.IPv4, bed.Upstream.IPv6, metrics, bed.Upstream.IPv4))

	local := startLimited(t, bed.Node, conf)
	for _, p := range pods {
		answeredInKernel(t, bed, p)
	}
	programsAre(t, bed.Node, "lo", programs[*way])
	for _, p := range pods {
		programsAre(t, bed.Node, p.device, programs[*way])
	}
	local.Kill(t)
	for _, p := range pods {
		answersCome(t, p.Namespace, []string{"upstream", p.IPv4.String()}, []string{"upstream", p.IPv6.String()})
	}

	local = startLimited(t, bed.Node, conf)
	answeredInKernel(t, bed, pods[0])
	programsAre(t, bed.Node, "pod0", programs[*way])
	if code := local.Stop(t); code != 0 {
		t.Errorf("nodecache ended with code %d", code)
	}
	for _, p := range pods {
		programsAre(t, bed.Node, p.device, nil)
	}
}

// addNetkit adds a pod to a bed whose interface is a netkit. number is that of its network.
func addNetkit(t *testing.T, bed *netns.Bed, number int, mode netlink.NetkitMode) pod {
	t.Helper()
	p := pod{netns.Add(t, fmt.Sprint("netkit", number)), fmt.Sprint("netkit", number)}
	ns, err := os.Open("/run/netns/" + p.Name)
	kit.Must(t, err)
	defer func() { _ = ns.Close() }() // it was only read
	near, far := netlink.NewLinkAttrs(), netlink.NewLinkAttrs()
	near.Name, far.Name, far.Namespace = p.device, "eth0", netlink.NsFd(ns.Fd())
	interf := &netlink.Netkit{LinkAttrs: near, Mode: mode, Policy: netlink.NETKIT_POLICY_FORWARD, PeerPolicy: netlink.NETKIT_POLICY_FORWARD}
	interf.SetPeerAttrs(&far)
	kit.Must(t, bed.Node.Do(func() error { return netlink.LinkAdd(interf) }))
	bed.Node.Run(t, "ip", "link", "set", p.device, "up")
	p.Run(t, "ip", "link", "set", "eth0", "up")
	for _, format := range []string{"10.1.%d.%d/24", "fd01:0:0:%d::%d/64"} {
		router, own := netip.MustParsePrefix(fmt.Sprintf(format, number, 1)), netip.MustParsePrefix(fmt.Sprintf(format, number, 2))
		bed.Node.Run(t, "ip", "addr", "add", router.String(), "dev", p.device)
		p.Run(t, "ip", "addr", "add", own.String(), "dev", "eth0")
		if own.Addr().Is4() {
			p.IPv4 = own.Addr()
			p.Run(t, "ip", "route", "add", "0.0.0.0/0", "via", router.Addr().String())
		} else {
			p.IPv6 = own.Addr()
			p.Run(t, "ip", "route", "add", "::/0", "via", router.Addr().String())
		}
	}
	return p
}

// startLimited starts nodecache as root with few capabilities, as its container has them.
func startLimited(t *testing.T, node *netns.Namespace, conf string) *netns.Process {
	t.Helper()
	p := node.Start(t, "setpriv", "--bounding-set=-all,+bpf,+net_admin,+net_bind_service", "--inh-caps=-all", "nodecache", "-conf", conf)
	want := fmt.Sprintf("\nCapEff:\t%016x\n", 1<<unix.CAP_BPF|1<<unix.CAP_NET_ADMIN|1<<unix.CAP_NET_BIND_SERVICE)
	var status []byte
	eventually(t, func() string { return fmt.Sprintf("not %q but %s", want, status) }, func() (limited bool) {
		var err error
		if status, err = os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid())); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(status), want)
	})
	return p
}

// answeredInKernel waits until the kernel answers queries of a pod to each address. They have the stored answer: cluster DNS
// has received the query of nodecache.
func answeredInKernel(t *testing.T, bed *netns.Bed, p pod) {
	t.Helper()
	total := func() float64 {
		return daemon.Scrape(t, bed.Node.Client(), metrics).Sum("nearside_kernel_answered_total")
	}
	want := []string{"upstream", bed.Node.IPv4.String()}
	answersCome(t, p.Namespace, want, want)
	for _, a := range addresses {
		before, last := total(), 0.0
		var got []string
		var err error
		what := func() string {
			return fmt.Sprintf("%v answers of the kernel after %v, and %q, %v from %v for %s", last, before, got, err, a, p.device)
		}
		eventually(t, what, func() bool {
			got, err = p.Ask("udp", a, "host.example.", time.Second)
			last = total()
			return err == nil && slices.Equal(got, want) && last > before
		})
	}
}

// programsAre waits until an interface of the node has these programs at its ingress.
func programsAre(t *testing.T, node *netns.Namespace, device string, want []string) {
	t.Helper()
	var got []string
	eventually(t, func() string { return fmt.Sprintf("programs %q of %s, want %q", got, device, want) }, func() bool {
		err := node.Do(func() (err error) {
			got, err = programsOf(device)
			return err
		})
		kit.Must(t, err)
		return slices.Equal(got, want)
	})
}

// programsOf returns the programs at the ingress of an interface of the thread's namespace, with the ways.
func programsOf(device string) (all []string, err error) {
	l, err := netlink.LinkByName(device)
	if err != nil {
		return nil, err
	}
	result, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, unix.EINVAL) { // the kernel has no tcx
		result, err = &link.QueryResult{}, nil
	}
	if err != nil {
		return nil, err
	}
	for _, attached := range result.Programs {
		p, err := ebpf.NewProgramFromID(attached.ID)
		if err != nil {
			return nil, err
		}
		info, err := p.Info()
		if err := errors.Join(err, p.Close()); err != nil {
			return nil, err
		}
		all = append(all, "tcx "+info.Name)
	}
	filters, err := netlink.FilterList(l, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return nil, err
	}
	for _, f := range filters {
		name := f.Type()
		if b, ok := f.(*netlink.BpfFilter); ok {
			name = b.Name
		}
		all = append(all, "clsact "+name)
	}
	return all, nil
}
