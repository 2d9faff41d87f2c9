package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearside-dns/nearside/test/bench/dnsperf"
)

// The figures of each server in the part stall.
const (
	stallMedian = "stall: median latency"
	stallMax    = "stall: max latency"
	stallTrials = "stall: connections"
)

const (
	stallWanted  = 20               // trials
	stallFewest  = 3                // of a server whose trials take long
	stallLimit   = 20 * time.Second // after which no further trial begins
	stallTimeout = 15 * time.Second // of a trial
	stallDelay   = 100 * time.Millisecond
)

// stallPair are the two queries of a trial, which are sent together on a connection of their own.
type stallPair struct {
	first  []byte      // for a name of the dead upstream server
	second tcpQuestion // whose answer needs no other server
	// A trial counts only if the first answer takes at least this time: the server may have found out that the upstream is
	// dead.
	delay time.Duration
}

// errNotStalled means that the first query was answered soon.
var errNotStalled = errors.New("the dead upstream did not delay the first answer")

// run returns the time until the answer to the second query.
func (p *stallPair) run(server string, timeout time.Duration) (latency time.Duration, err error) {
	conn, err := net.Dial("tcp", server)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return 0, err
	}
	const firstID, secondID = 1, 2
	out := appendFrame(nil, firstID, p.first)
	began := time.Now()
	if _, err := conn.Write(appendFrame(out, secondID, p.second.Query)); err != nil {
		return 0, err
	}
	for {
		answer, err := readAnswer(conn)
		if err != nil {
			return 0, fmt.Errorf("second answer: %w", err)
		}
		switch latency := time.Since(began); {
		case binary.BigEndian.Uint16(answer) == secondID:
			return latency, p.second.judge(answer)
		case latency < p.delay:
			return 0, errNotStalled
		}
	}
}

// addressAt is the address of a server.
func addressAt(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// appendFrame appends a query with its length (RFC 1035 section 4.2.2), and with another id.
func appendFrame(to []byte, id uint16, query []byte) []byte {
	to = binary.BigEndian.AppendUint16(to, uint16(len(query)))
	return append(binary.BigEndian.AppendUint16(to, id), query[2:]...)
}

// readAnswer reads one message of at least the header's size.
func readAnswer(conn net.Conn) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return nil, err
	}
	answer := make([]byte, binary.BigEndian.Uint16(size[:]))
	if len(answer) < headerSize {
		return nil, fmt.Errorf("%w of %d bytes", errWrong, len(answer))
	}
	_, err := io.ReadFull(conn, answer)
	return answer, err
}

// measureStall measures node caches with a cached name, and cluster DNS with a name of the cluster.
func (b *bench) measureStall(ctx context.Context) error {
	if err := b.startDead(""); err != nil {
		return err
	}
	defer b.stopDead()
	if err := b.measureHot(ctx, "stall", b.measureStallBehind); err != nil {
		return err
	}
	return b.measureSmall(ctx, b.measureStallBehind)
}

// measureStallBehind measures servers in turn, which answer the first of the names behind a stalled query.
func (b *bench) measureStallBehind(ctx context.Context, servers []*server, names *load) error {
	return inTurns(b.rounds, servers, func(s *server, round int) error {
		if _, err := check(ctx, s, names); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		p := names.packets[0]
		pair := stallPair{second: tcpQuestion{p.bytes, p.rcode, p.records, p.address}, delay: stallDelay}
		latencies, err := stalls(ctx, s.port, fmt.Sprintf("r%d", round), pair)
		switch {
		case errors.Is(err, errNotStalled) && len(b.results[stallMedian][s.name]) > 0:
			return nil // the server found out in an earlier round that the upstream is dead
		case err != nil:
			return fmt.Errorf("%s, stall: %w", s.name, err)
		}
		b.addStall(s, latencies)
		return nil
	})
}

// stalls returns the latencies of the trials that count, the shortest first.
func stalls(ctx context.Context, port int, tag string, pair stallPair) (all []time.Duration, err error) {
	began := time.Now()
	for n := 0; n < 2*stallWanted && len(all) < stallWanted; n++ {
		if len(all) >= stallFewest && time.Since(began) > stallLimit || ctx.Err() != nil {
			break
		}
		if pair.first, err = deadQuery(fmt.Sprintf("n%d-%s", n, tag)); err != nil {
			return nil, err
		}
		latency, err := pair.run(addressAt(port), stallTimeout)
		switch {
		case err == nil:
			all = append(all, latency)
		case !errors.Is(err, errNotStalled):
			return nil, err
		}
	}
	if len(all) == 0 {
		return nil, errNotStalled
	}
	slices.Sort(all)
	return all, context.Cause(ctx)
}

func (b *bench) addStall(s *server, latencies []time.Duration) {
	p50, highest := dnsperf.Percentile(latencies, 50), dnsperf.Percentile(latencies, 100)
	fmt.Fprintf(os.Stderr, "%s, stall: median %.2f ms, max %.2f ms of %d\n", s.name, p50, highest, len(latencies))
	b.results.add(stallMedian, s.name, p50)
	b.results.add(stallMax, s.name, highest)
	b.results.add(stallTrials, s.name, float64(len(latencies)))
}

// reportStall writes a line for each server.
func (b *bench) reportStall(text *strings.Builder) {
	b.grid(text, "answer behind a stalled query on one connection", append(cacheNames(hotServers), nameClusterDNS, nameClusterCoreDNS), []column{
		{title: "median, ms", what: stallMedian, format: "%.2f"},
		{title: "max, ms", what: stallMax, format: "%.2f"},
		{title: "connections", what: stallTrials, format: "%.0f"},
	})
}
