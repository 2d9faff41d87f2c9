//go:build linux

package forward

import (
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/forward/rogue"
	"github.com/nearside-dns/nearside/test/kit"
)

const (
	// retired is the max number of connections that get no more queries but still have unanswered ones, on a busy machine.
	retired = 2
	// pipelined is the max number of connections to an upstream that answers out of order and leaves connections open.
	pipelined = 2 + retired
	// few is a max number of connections far below the hundreds of queries in flight: for a server that closes
	// connections, or whose connections are slow to establish on a busy machine.
	few = 40
	// single is the max number of connections to an upstream that gets one query on each, including those that are
	// being closed: a load has 300 queries in flight.
	single = 650
	// delay of answers puts the queries of a load in flight at the same time.
	delay = 150 * time.Millisecond
)

// answerable is a misbehaving server for which every query still gets its right answer.
type answerable struct {
	behaviour rogue.Behaviour
	options   []string // in addition to force_tcp
	load      load
	maxOpen   int // connections at one time
	metric    []string
}

// oneQuery is the metric of a server that is classified as one query per connection.
var oneQuery = []string{fallbacks, "reason", "one_query_per_connection"}

var answerables = map[string]answerable{
	"well":          {behaviour: rogue.Behaviour{Delay: delay}, load: load{tcp: 4}, maxOpen: pipelined},
	"well, at once": {behaviour: rogue.Behaviour{}, load: load{tcp: 4}, maxOpen: pipelined},
	"a second late": {behaviour: rogue.Behaviour{Delay: time.Second}, load: load{queries: 900}, maxOpen: pipelined},
	"out of order":  {behaviour: rogue.Behaviour{Shuffle: 2 * delay}, load: load{tcp: 4}, maxOpen: pipelined},
	// A connection without answers for a while gets no more queries; its oldest query is repeated on another one.
	"some slow":              {behaviour: rogue.Behaviour{Slow: time.Second}, load: load{slow: 10}, maxOpen: pipelined + 2},
	"in order":               {behaviour: rogue.Behaviour{InOrder: true, Delay: time.Millisecond}, maxOpen: single},
	"in order, some slow":    {behaviour: rogue.Behaviour{InOrder: true, Slow: time.Second}, load: load{slow: 25}, maxOpen: single, metric: oneQuery},
	"closes after each":      {behaviour: rogue.Behaviour{CloseAfter: 1, Delay: delay}, maxOpen: single, metric: oneQuery},
	"closes after each, RST": {behaviour: rogue.Behaviour{CloseAfter: 1, Reset: true, Delay: delay}, maxOpen: single},
	"closes after each, in order": {
		behaviour: rogue.Behaviour{CloseAfter: 1, InOrder: true, Delay: time.Millisecond}, maxOpen: single},
	"closes after 10":      {behaviour: rogue.Behaviour{CloseAfter: 10, Delay: delay}, maxOpen: single},
	"closes after 10, RST": {behaviour: rogue.Behaviour{CloseAfter: 10, Reset: true, Delay: delay}, maxOpen: single},
	"closes on the second": {behaviour: rogue.Behaviour{CloseOnQuery: 2}, maxOpen: single},
	"pauses in frames":     {behaviour: rogue.Behaviour{Pause: 2 * time.Millisecond}, load: load{tcp: 4}, maxOpen: pipelined},
	"wrong ids":            {behaviour: rogue.Behaviour{Wrong: rogue.WrongID, Delay: delay}, metric: []string{dropped, "reason", "id"}, maxOpen: pipelined},
	"wrong question":       {behaviour: rogue.Behaviour{Wrong: rogue.WrongQuestion, Delay: delay}, metric: []string{dropped, "reason", "question"}, maxOpen: pipelined},
	"wrong type":           {behaviour: rogue.Behaviour{Wrong: rogue.WrongType, Delay: delay}, metric: []string{dropped, "reason", "question"}, maxOpen: pipelined},
	"not a response":       {behaviour: rogue.Behaviour{Wrong: rogue.WrongDirection, Delay: delay}, metric: []string{dropped}, maxOpen: pipelined},
	"frames of 0 bytes":    {behaviour: rogue.Behaviour{Wrong: rogue.Empty, Delay: delay}, metric: []string{dropped, "reason", "malformed"}, maxOpen: single},
	"frames of 3 bytes":    {behaviour: rogue.Behaviour{Wrong: rogue.Short, Delay: delay}, metric: []string{dropped, "reason", "malformed"}, maxOpen: single},
	"frames of noise":      {behaviour: rogue.Behaviour{Wrong: rogue.Noise, Delay: delay}, metric: []string{dropped}, maxOpen: single},
	"everything wrong": {
		behaviour: rogue.Behaviour{Wrong: rogue.WrongID | rogue.WrongQuestion | rogue.WrongType | rogue.WrongDirection, Shuffle: delay},
		metric:    []string{dropped}, maxOpen: pipelined},
	// Resets and cuts are random: with a limited number of attempts a query could fail.
	"resets some": {
		behaviour: rogue.Behaviour{ResetShare: 0.02, Delay: delay}, options: []string{"max_connect_attempts 0"}, maxOpen: single},
	"cuts some": {
		behaviour: rogue.Behaviour{Cut: 0.02, Delay: delay}, options: []string{"max_connect_attempts 0"}, maxOpen: single},
	"keepalive of 0":      {behaviour: rogue.Behaviour{Keepalive: new(uint16(0)), Delay: delay}, maxOpen: single},
	"keepalive of 300 ms": {behaviour: rogue.Behaviour{Keepalive: new(uint16(3)), Delay: delay}, maxOpen: single},
	"without pipelining":  {behaviour: rogue.Behaviour{Delay: delay}, options: []string{"max_in_flight 1"}, maxOpen: single},
	"few in flight": {
		behaviour: rogue.Behaviour{Delay: delay}, options: []string{"max_in_flight 100", "max_connections 3"}, maxOpen: 3 + retired},
}

// TestAnswerable queries one misbehaving server over TCP. The second load checks that the classification of the server by
// the first one causes no failure.
func TestAnswerable(t *testing.T) {
	t.Parallel()
	for name, c := range answerables {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rogueServer(t, c.behaviour)
			s := start(t, zone(forward(r.Addr, append([]string{"force_tcp"}, c.options...)...)))
			for range 2 {
				c.load.run(s).wantRight(t)
			}
			wantConnections(t, r, c.maxOpen)
			if got := r.Counts(); got.UDP > 0 {
				t.Errorf("%d queries over UDP, want none", got.UDP)
			}
			if all := s.scrape(t); len(c.metric) > 0 && all.Sum(c.metric[0], c.metric[1:]...) == 0 {
				t.Errorf("metric %q is 0; metrics:\n%s", c.metric, like(all, "nearside_forward_"))
			}
		})
	}
}

// wantConnections fails the test if a server had too many connections at one time, or received malformed queries.
func wantConnections(t *testing.T, r *rogue.Server, maxOpen int) {
	t.Helper()
	c := r.Counts()
	if c.MaxOpen > maxOpen {
		t.Errorf("%d connections at one time, want at most %d", c.MaxOpen, maxOpen)
	}
	if c.Malformed > 0 {
		t.Errorf("%d packets were not well-formed queries", c.Malformed)
	}
	t.Logf("%d queries over TCP, %d connections, %d at one time; %d queries at one time on one", c.TCP, c.Connections, c.MaxOpen, c.MaxOnConnection)
}

// hopeless are servers that answer no query over TCP.
var hopeless = map[string]rogue.Behaviour{
	"closes at once":       {CloseAtOnce: true},
	"resets at once":       {CloseAtOnce: true, Reset: true},
	"closes after reading": {CloseOnQuery: 1},
	"resets after reading": {CloseOnQuery: 1, Reset: true},
	"cuts all":             {Cut: 1},
	"only wrong ids":       {Wrong: rogue.WrongID, OnlyWrong: true},
	"only wrong questions": {Wrong: rogue.WrongQuestion, OnlyWrong: true},
	"only empty frames":    {Wrong: rogue.Empty, OnlyWrong: true},
	"only noise":           {Wrong: rogue.Noise, OnlyWrong: true},
	"never answers":        {Drop: 1},
	"does not read":        {Deaf: true},
	"refuses":              {Refuse: true},
	"black hole":           {BlackHole: true},
	"resets all":           {ResetShare: 1},
	"too late":             {Delay: 4 * time.Second},
}

// TestHopeless queries a server that never answers: clients get SERVFAIL within the timeout.
func TestHopeless(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second
	for name, b := range hopeless {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rogueServer(t, b)
			s := start(t, zone(forward(r.Addr, "force_tcp", "timeout "+timeout.String())))
			l := load{tcp: 4, wait: timeout + margin}
			if right, _ := l.run(s).wantRcode(t, dns.RcodeServerFailure); right > 0 {
				t.Errorf("%d answers, though the upstream sent none", right)
			}
			wantConnections(t, r, single)
			r.Behave(rogue.Behaviour{})
			recovered(t, s)
		})
	}
}

// recoveryTime bounds the time for which an upstream counts as down after it works again: the time between two checks,
// and a margin for a busy machine.
const recoveryTime = 5 * time.Second

// recovered waits until a query is answered, and fails the test if one of the next queries is not.
func recovered(t *testing.T, s *server) {
	t.Helper()
	kit.Within(t, recoveryTime, "an answer", func() bool { return load{queries: 1}.run(s)[0].problem() == "" })
	load{queries: 200}.run(s).wantRight(t)
}

// TestBeside queries a server that never answers and a good one: every query is answered.
func TestBeside(t *testing.T) {
	t.Parallel()
	for name, b := range hopeless {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad, good := rogueServer(t, b), rogueServer(t, rogue.Behaviour{Delay: delay})
			s := start(t, zone(forward(bad.Addr+" "+good.Addr, "force_tcp")))
			for range 2 {
				load{tcp: 4}.run(s).wantRight(t)
			}
			wantConnections(t, good, pipelined)
			wantConnections(t, bad, single)
		})
	}
}

// TestBesideByChance is TestBeside with a server that fails for a part of the queries, and the default of
// max_connect_attempts.
func TestBesideByChance(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]rogue.Behaviour{
		"resets some":  {ResetShare: 0.1, Delay: delay},
		"cuts some":    {Cut: 0.1, Delay: delay},
		"answers some": {Drop: 0.3, Delay: delay},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad, good := rogueServer(t, b), rogueServer(t, rogue.Behaviour{Delay: delay})
			s := start(t, zone(forward(bad.Addr+" "+good.Addr, "force_tcp")))
			load{tcp: 4}.run(s).wantRight(t)
			wantConnections(t, good, pipelined)
			wantConnections(t, bad, single)
		})
	}
}

// settled returns the number of queries that a server received, after it receives no more.
func settled(r *rogue.Server) int {
	for n := r.Counts().Queries(); ; {
		time.Sleep(delay)
		now := r.Counts().Queries()
		if now == n {
			return n
		}
		n = now
	}
}

// TestCache enables the cache: the upstream receives each name once, and repeated queries are answered from the cache.
func TestCache(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]rogue.Behaviour{
		"well":              {Delay: delay},
		"in order":          {InOrder: true, Delay: time.Millisecond},
		"closes after each": {CloseAfter: 1, Delay: delay},
		"wrong ids":         {Wrong: rogue.WrongID | rogue.WrongType, Delay: delay},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rogueServer(t, b)
			s := start(t, zone("cache 30", forward(r.Addr, "force_tcp")))
			first := load{tcp: 4}.run(s)
			first.wantRight(t)
			before := settled(r) // repeated queries may still be in flight
			for i := range first {
				first[i].query(s.Addr, budget+margin)
			}
			first.wantRight(t)
			if again := r.Counts().Queries() - before; again > 0 {
				t.Errorf("%d more queries to the upstream, want none", again)
			}
		})
	}
}

// TestTLS queries some of the servers over TLS.
func TestTLS(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]answerable{
		"well":              {behaviour: rogue.Behaviour{Delay: delay}, maxOpen: pipelined},
		"out of order":      {behaviour: rogue.Behaviour{Shuffle: 2 * delay}, maxOpen: pipelined},
		"wrong ids":         {behaviour: rogue.Behaviour{Wrong: rogue.WrongID, Delay: delay}, maxOpen: pipelined},
		"pauses in frames":  {behaviour: rogue.Behaviour{Pause: 2 * time.Millisecond}, maxOpen: pipelined},
		"closes after 10":   {behaviour: rogue.Behaviour{CloseAfter: 10, Delay: delay}, maxOpen: single},
		"closes after each": {behaviour: rogue.Behaviour{CloseAfter: 1, Delay: delay}, load: load{queries: 100}, maxOpen: single},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const serverName = "dns.rogue.test"
			cert := rogue.NewCertificate(t, serverName)
			r := rogue.StartAt(t, rogue.Options{Host: rogueHost, TLS: cert.Config}, c.behaviour)
			s := start(t, zone(forward("tls://"+r.Addr, "tls "+cert.CA, "tls_servername "+serverName)))
			c.load.run(s).wantRight(t)
			wantConnections(t, r, c.maxOpen)
			if got := s.scrape(t).Sum(packets, "proto", "tcp-tls", "direction", "sent"); got == 0 {
				t.Error("no packets over TLS counted")
			}
		})
	}
}

// TestSteadyInOrder has a server that processes one query of a connection at a time, without pauses: the connection always
// delivers answers, but each one later than the one before. The server must be classified as one query per connection.
func TestSteadyInOrder(t *testing.T) {
	t.Parallel()
	r := rogueServer(t, rogue.Behaviour{InOrder: true, Delay: 20 * time.Millisecond})
	s := start(t, zone(forward(r.Addr, "force_tcp")))
	load{queries: 1000, pace: 4 * time.Millisecond}.run(s).wantRight(t)
	if n := s.scrape(t).Sum("nearside_forward_fallbacks_total", "reason", "one_query_per_connection"); n == 0 {
		t.Error("the server is not classified as one query per connection")
	}
}
