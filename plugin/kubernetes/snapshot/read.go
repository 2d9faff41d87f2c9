package snapshot

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// Read reads a snapshot of a size in bytes. The error of an invalid one is, or wraps, one of the errors of this package.
func Read(from io.ReaderAt, size int64) (Header, index.Contents, error) {
	body := size - sha256.Size
	if body <= 0 {
		return Header{}, index.Contents{}, ErrFormat
	}
	prefix := make([]byte, len(filePrefix))
	if _, err := from.ReadAt(prefix, 0); err != nil || string(prefix) != filePrefix {
		return Header{}, index.Contents{}, ErrFormat // the decoder would read its first bytes as a length
	}
	r := &reader{from: decoding.NewDecoder(bufio.NewReaderSize(io.NewSectionReader(from, 0, body), 1<<16)), symbols: []index.Symbol{{}}}
	var h headerItem
	if err := r.from.Decode(&h); err != nil {
		return Header{}, index.Contents{}, ErrFormat
	}
	header := Header{Cluster: h.Cluster, Server: h.Server, Options: h.Options, Time: time.UnixMilli(h.Time)}
	if h.Version != Version {
		return header, index.Contents{}, fmt.Errorf("%w: %d, want %d", ErrVersion, h.Version, Version)
	}
	if err := check(from, body); err != nil {
		return header, index.Contents{}, err
	}
	for {
		var item recordItem
		err := r.from.Decode(&item)
		if errors.Is(err, io.EOF) {
			return header, r.contents(), nil
		}
		if err == nil {
			err = r.record(item)
		}
		if err != nil {
			return header, index.Contents{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
	}
}

// filePrefix is the beginning of every file: an array of six elements, of which the first one is the magic.
const filePrefix = "\x86\x71" + magic

// decoding permits all objects that an API server can have.
var decoding = mustDecoding()

func mustDecoding() cbor.DecMode {
	mode, err := cbor.DecOptions{
		MaxArrayElements: 1 << 24, MaxMapPairs: 1 << 20, MaxNestedLevels: 8, UTF8: cbor.UTF8DecodeInvalid,
	}.DecMode()
	if err != nil {
		panic(err) // the options are constants
	}
	return mode
}

// check compares the checksum with the body before it.
func check(from io.ReaderAt, body int64) error {
	sum, want := sha256.New(), make([]byte, sha256.Size)
	if _, err := io.Copy(sum, io.NewSectionReader(from, 0, body)); err != nil {
		return err
	}
	if _, err := from.ReadAt(want, body); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return ErrChecksum
	}
	return nil
}

// reader collects the records of a file.
type reader struct {
	from    *cbor.Decoder
	symbols []index.Symbol
	// endpoints are those of the present slice, before they are packed.
	endpoints []index.Endpoint

	services, imports []*index.Service
	slices            []*index.Slice
	namespaces        []string
	pods              []*index.Pod
	nodes             []*index.Node
	clusterID         index.Symbol
}

func (r *reader) contents() index.Contents {
	return index.Contents{
		Services: slices.Values(r.services), Imports: slices.Values(r.imports), Slices: slices.Values(r.slices),
		Namespaces: slices.Values(r.namespaces), Pods: slices.Values(r.pods), Nodes: slices.Values(r.nodes), ClusterID: r.clusterID,
	}
}

func (r *reader) record(item recordItem) error {
	switch item.Kind {
	case serviceKind:
		return read(item, &r.services, service)
	case importKind:
		return read(item, &r.imports, service)
	case sliceKind:
		return read(item, &r.slices, r.slice)
	case namespaceKind:
		return read(item, &r.namespaces, func(name string) (string, error) { return name, nil })
	case podKind:
		return read(item, &r.pods, pod)
	case nodeKind:
		return read(item, &r.nodes, node)
	case clusterIDKind:
		var id string
		err := decoding.Unmarshal(item.Record, &id)
		r.clusterID = index.NewSymbol(id)
		return err
	}
	return fmt.Errorf("unknown kind %d", item.Kind)
}

func read[I, R any](item recordItem, to *[]R, record func(I) (R, error)) error {
	var i I
	if err := decoding.Unmarshal(item.Record, &i); err != nil {
		return err
	}
	made, err := record(i)
	if err != nil {
		return err
	}
	*to = append(*to, made)
	return nil
}

func service(i serviceItem) (*index.Service, error) {
	ips, err := addresses(i.IPs)
	if err != nil {
		return nil, err
	}
	s := &index.Service{
		Namespace: i.Namespace, Name: i.Name, Kind: index.Kind(i.Kind), Wait: i.Wait, IPs: ips, Target: i.Target, Ports: ports(i.Ports),
	}
	if t := i.Topology; t != nil {
		s.Topology = &index.Topology{Keys: texts(t.Keys), Local: t.Local, Auto: t.Auto, Distribution: index.Distribution(t.Distribution)}
	}
	if x := i.External; x != nil {
		ips, err := addresses(x.IPs)
		if err != nil {
			return nil, err
		}
		s.External = &index.External{IPs: ips, Hosts: x.Hosts}
	}
	return s, nil
}

func (r *reader) slice(i sliceItem) (*index.Slice, error) {
	for _, text := range i.Symbols {
		r.symbols = append(r.symbols, index.NewSymbol(text))
	}
	cluster, err := r.symbol(i.Cluster)
	if err != nil {
		return nil, err
	}
	s := &index.Slice{Namespace: i.Namespace, Name: i.Name, Service: i.Service, Import: i.Import, Cluster: cluster, Ports: ports(i.Ports)}
	if i.Size != 4 && i.Size != 16 || len(i.Addrs)%i.Size != 0 {
		return nil, fmt.Errorf("%d bytes of addresses with %d bytes each", len(i.Addrs), i.Size)
	}
	count := len(i.Addrs) / i.Size
	if n := len(i.Names); n != 0 && n != count {
		return nil, fmt.Errorf("%d names of %d endpoints", n, count)
	}
	hints := []*index.Hints{nil}
	for _, h := range i.HintSets {
		nodes, err := r.symbolsOf(h.Nodes)
		if err != nil {
			return nil, err
		}
		zones, err := r.symbolsOf(h.Zones)
		if err != nil {
			return nil, err
		}
		hints = append(hints, &index.Hints{Nodes: nodes, Zones: zones})
	}
	zones, nodes, hinted := len(i.Zones) > 0, len(i.Nodes) > 0, len(i.Hints) > 0
	s.Endpoints = r.endpoints[:0]
	for at := range count {
		a, _ := netip.AddrFromSlice(i.Addrs[at*i.Size : (at+1)*i.Size]) // the size is one of an address
		e := index.Endpoint{Addr: a.Unmap()}
		if len(i.Names) > 0 {
			e.Name = i.Names[at]
		}
		if e.Zone, err = value(&i.Zones, zones, r.symbols); err == nil {
			e.Node, err = value(&i.Nodes, nodes, r.symbols)
		}
		if err == nil {
			e.Hints, err = value(&i.Hints, hinted, hints)
		}
		if err != nil {
			return nil, err
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	r.endpoints = s.Endpoints
	s.Pack()
	return s, nil
}

// value returns the value of the next number of a field, zero for a field that no endpoint has.
func value[T any](field *[]byte, has bool, values []T) (v T, err error) {
	if !has {
		return v, nil
	}
	n, length := binary.Uvarint(*field)
	if length <= 0 || n >= uint64(len(values)) {
		return v, fmt.Errorf("number %d of %d values", n, len(values))
	}
	*field = (*field)[length:]
	return values[n], nil
}

// symbol returns the symbol with a number.
func (r *reader) symbol(n uint32) (index.Symbol, error) {
	if uint64(n) >= uint64(len(r.symbols)) {
		return index.Symbol{}, fmt.Errorf("symbol %d of %d", n, len(r.symbols))
	}
	return r.symbols[n], nil
}

func (r *reader) symbolsOf(numbers []uint32) (all []index.Symbol, err error) {
	for _, n := range numbers {
		y, err := r.symbol(n)
		if err != nil {
			return nil, err
		}
		all = append(all, y)
	}
	return all, nil
}

func pod(i podItem) (*index.Pod, error) {
	ips, err := addresses(i.IPs)
	if err != nil {
		return nil, err
	}
	p := &index.Pod{
		Namespace: i.Namespace, Name: i.Name, IPs: ips, Labels: index.NewPodLabels(i.Labels),
		Node: index.NewSymbol(i.Node), HostNetwork: i.HostNetwork, Ending: i.Ending,
	}
	if d := i.DNS; d != nil {
		p.DNS = &index.PodDNS{Policy: d.Policy, Searches: d.Searches}
	}
	return p, nil
}

func node(i nodeItem) (*index.Node, error) {
	if len(i.Labels)%2 != 0 {
		return nil, errors.New("a label without a value")
	}
	n := &index.Node{Name: index.NewSymbol(i.Name), UID: index.UID(i.UID)}
	for pair := range slices.Chunk(i.Labels, 2) {
		n.Labels = append(n.Labels, index.Label{Key: index.NewSymbol(pair[0]), Value: index.NewSymbol(pair[1])})
	}
	if i.CIDRs != nil {
		n.CIDRs = make([]netip.Prefix, 0, len(i.CIDRs))
	}
	for _, b := range i.CIDRs {
		var p netip.Prefix
		if err := p.UnmarshalBinary(b); err != nil || !p.IsValid() {
			return nil, fmt.Errorf("invalid range %x", b)
		}
		n.CIDRs = append(n.CIDRs, p)
	}
	return n, nil
}

func ports(items []portItem) (all []index.Port) {
	for _, i := range items {
		all = append(all, index.Port{Name: index.NewSymbol(i.Name), Protocol: index.NewSymbol(i.Protocol), Number: i.Number})
	}
	return all
}

func addresses(items [][]byte) (all []netip.Addr, err error) {
	for _, b := range items {
		a, ok := netip.AddrFromSlice(b)
		if !ok {
			return nil, fmt.Errorf("invalid address %x", b)
		}
		all = append(all, a.Unmap())
	}
	return all, nil
}

func texts(all []string) (symbols []index.Symbol) {
	if all != nil {
		symbols = make([]index.Symbol, 0, len(all))
	}
	for _, text := range all {
		symbols = append(symbols, index.NewSymbol(text))
	}
	return symbols
}
