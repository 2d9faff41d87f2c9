package snapshot

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"iter"
	"maps"
	"net/netip"

	"github.com/fxamacker/cbor/v2"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// Write writes the records. It may take seconds, and blocks neither readers nor writers of the index.
func Write(w io.Writer, h Header, c index.Contents) error {
	buffered, sum := bufio.NewWriterSize(w, 1<<16), sha256.New()
	out := &writer{to: cbor.NewEncoder(io.MultiWriter(buffered, sum)), symbols: map[index.Symbol]uint32{{}: 0}}
	out.encode(headerItem{Magic: magic, Version: Version, Cluster: h.Cluster, Server: h.Server, Options: h.Options, Time: h.Time.UnixMilli()})
	// In the order in which Restore puts them.
	writeAll(out, nodeKind, c.Nodes, nodeOf)
	if c.ClusterID != (index.Symbol{}) {
		out.record(clusterIDKind, c.ClusterID.String())
	}
	writeAll(out, sliceKind, c.Slices, out.slice)
	writeAll(out, podKind, c.Pods, podOf)
	writeAll(out, serviceKind, c.Services, serviceOf)
	writeAll(out, importKind, c.Imports, serviceOf)
	writeAll(out, namespaceKind, c.Namespaces, func(name string) string { return name })
	if out.err != nil {
		return out.err
	}
	if _, err := buffered.Write(sum.Sum(nil)); err != nil {
		return err
	}
	return buffered.Flush()
}

// writer encodes items, until the first error.
type writer struct {
	to      *cbor.Encoder
	symbols map[index.Symbol]uint32 // numbers of the symbols in the file so far
	err     error
}

func (w *writer) encode(item any) {
	if w.err == nil {
		w.err = w.to.Encode(item)
	}
}

func (w *writer) record(k kind, record any) {
	data, err := cbor.Marshal(record)
	if err != nil {
		w.err = err
		return
	}
	w.encode(recordItem{Kind: k, Record: data})
}

func writeAll[R, I any](w *writer, k kind, all iter.Seq[R], item func(R) I) {
	for r := range all {
		if w.err != nil {
			return
		}
		w.record(k, item(r))
	}
}

func serviceOf(s *index.Service) serviceItem {
	item := serviceItem{
		Namespace: s.Namespace, Name: s.Name, Kind: uint8(s.Kind), Wait: s.Wait,
		IPs: addressesOf(s.IPs), Target: s.Target, Ports: portsOf(s.Ports),
	}
	if t := s.Topology; t != nil {
		item.Topology = &topologyItem{Keys: textsOf(t.Keys), Local: t.Local, Auto: t.Auto, Distribution: uint8(t.Distribution)}
	}
	if x := s.External; x != nil {
		item.External = &externalItem{IPs: addressesOf(x.IPs), Hosts: x.Hosts}
	}
	return item
}

func (w *writer) slice(s *index.Slice) sliceItem {
	item := sliceItem{Namespace: s.Namespace, Name: s.Name, Service: s.Service, Import: s.Import, Ports: portsOf(s.Ports), Size: 4}
	symbol := func(y index.Symbol) uint32 {
		n, known := w.symbols[y]
		if !known {
			n = uint32(len(w.symbols)) // #nosec G115 -- fewer than endpoints
			w.symbols[y] = n
			item.Symbols = append(item.Symbols, y.String())
		}
		return n
	}
	item.Cluster = symbol(s.Cluster)
	count := s.Len()
	set := func(list *[]byte, at int, n uint32) {
		if n != 0 && *list == nil {
			*list = make([]byte, at, 2*count) // a zero for each endpoint before, which has no value
		}
		if n != 0 || *list != nil {
			*list = binary.AppendUvarint(*list, uint64(n))
		}
	}
	sets := map[*index.Hints]uint32{nil: 0}
	for at := range count {
		e := s.Endpoint(at)
		if !e.Addr.Is4() {
			item.Size = 16
		}
		if e.Name != "" && item.Names == nil {
			item.Names = make([]string, count)
		}
		if e.Name != "" {
			item.Names[at] = e.Name
		}
		set(&item.Zones, at, symbol(e.Zone))
		set(&item.Nodes, at, symbol(e.Node))
		n, known := sets[e.Hints]
		if !known {
			n = uint32(len(sets)) // #nosec G115 -- as above
			sets[e.Hints] = n
			item.HintSets = append(item.HintSets, hintsItem{Nodes: numbers(e.Hints.Nodes, symbol), Zones: numbers(e.Hints.Zones, symbol)})
		}
		set(&item.Hints, at, n)
	}
	item.Addrs = make([]byte, 0, count*item.Size)
	for at := range count {
		if a := s.Endpoint(at).Addr; item.Size == 4 {
			item.Addrs = append(item.Addrs, a.AsSlice()...)
		} else {
			b := a.As16()
			item.Addrs = append(item.Addrs, b[:]...)
		}
	}
	return item
}

func numbers(all []index.Symbol, symbol func(index.Symbol) uint32) []uint32 {
	if all == nil {
		return nil
	}
	list := make([]uint32, 0, len(all))
	for _, y := range all {
		list = append(list, symbol(y))
	}
	return list
}

func podOf(p *index.Pod) podItem {
	item := podItem{
		Namespace: p.Namespace, Name: p.Name, IPs: addressesOf(p.IPs), Labels: maps.Collect(p.Labels.All()),
		Node: p.Node.String(), HostNetwork: p.HostNetwork, Ending: p.Ending,
	}
	if d := p.DNS; d != nil {
		item.DNS = &podDNSItem{Policy: d.Policy, Searches: d.Searches}
	}
	return item
}

func nodeOf(n *index.Node) nodeItem {
	item := nodeItem{Name: n.Name.String(), UID: uint64(n.UID)}
	for l := range n.AllLabels() {
		item.Labels = append(item.Labels, l.Key.String(), l.Value.String())
	}
	if n.CIDRs != nil {
		item.CIDRs = make([][]byte, 0, len(n.CIDRs))
	}
	for _, p := range n.CIDRs {
		b, _ := p.MarshalBinary() // never fails
		item.CIDRs = append(item.CIDRs, b)
	}
	return item
}

func portsOf(all []index.Port) (items []portItem) {
	for _, p := range all {
		items = append(items, portItem{Name: p.Name.String(), Protocol: p.Protocol.String(), Number: p.Number})
	}
	return items
}

func addressesOf(all []netip.Addr) (items [][]byte) {
	for _, a := range all {
		items = append(items, a.AsSlice())
	}
	return items
}

func textsOf(all []index.Symbol) (texts []string) {
	if all != nil {
		texts = make([]string, 0, len(all))
	}
	for _, y := range all {
		texts = append(texts, y.String())
	}
	return texts
}
