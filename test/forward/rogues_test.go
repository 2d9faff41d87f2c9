//go:build linux

package forward

import (
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/forward/rogue"
)

const (
	// pipelined bounds the connections to an upstream that answers out of order and leaves connections open: two,
	// and as many that have been left on a busy machine, until what is outstanding on them has come.
	pipelined = 4
	// few is far from one for each query, of which there are hundreds on their way: for a server that hangs up, or
	// that does more for each connection than a busy machine does in time.
	few = 40
	// single bounds the connections to an upstream that gets one query on each, with those that are being
	// closed: a load has 300 queries on their way.
	single = 650
	// delay keeps the queries of a load on their way at the same time.
	delay = 150 * time.Millisecond
)

// answerable is a server that misbehaves and can still be asked: every query gets its right answer.
type answerable struct {
	behaviour rogue.Behaviour
	options   []string // besides force_tcp
	load      load
	most      int // connections at one time
	metric    []string
}

// oneQuery is counted of a server that is found to take one query at a time on a connection.
var oneQuery = []string{fallbacks, "reason", "one_query_per_connection"}

var answerables = map[string]answerable{
	"well":          {behaviour: rogue.Behaviour{Delay: delay}, load: load{tcp: 4}, most: pipelined},
	"well, at once": {behaviour: rogue.Behaviour{}, load: load{tcp: 4}, most: pipelined},
	"a second late": {behaviour: rogue.Behaviour{Delay: time.Second}, load: load{queries: 900}, most: pipelined},
	"out of order":  {behaviour: rogue.Behaviour{Shuffle: 2 * delay}, load: load{tcp: 4}, most: pipelined},
	// One that says nothing for a while is left, and what waits longest on it goes out on one of its own.
	"some slow":              {behaviour: rogue.Behaviour{Slow: time.Second}, load: load{slow: 10}, most: pipelined + 2},
	"in order":               {behaviour: rogue.Behaviour{InOrder: true, Delay: time.Millisecond}, most: single},
	"in order, some slow":    {behaviour: rogue.Behaviour{InOrder: true, Slow: time.Second}, load: load{slow: 25}, most: single, metric: oneQuery},
	"closes after each":      {behaviour: rogue.Behaviour{CloseAfter: 1, Delay: delay}, most: single, metric: oneQuery},
	"closes after each, RST": {behaviour: rogue.Behaviour{CloseAfter: 1, Reset: true, Delay: delay}, most: single},
	"closes after each, in order": {
		behaviour: rogue.Behaviour{CloseAfter: 1, InOrder: true, Delay: time.Millisecond}, most: single},
	"closes after 10":      {behaviour: rogue.Behaviour{CloseAfter: 10, Delay: delay}, most: single},
	"closes after 10, RST": {behaviour: rogue.Behaviour{CloseAfter: 10, Reset: true, Delay: delay}, most: single},
	"closes on the second": {behaviour: rogue.Behaviour{CloseOnQuery: 2}, most: single},
	"pauses in frames":     {behaviour: rogue.Behaviour{Pause: 2 * time.Millisecond}, load: load{tcp: 4}, most: pipelined},
	"wrong ids":            {behaviour: rogue.Behaviour{Wrong: rogue.WrongID, Delay: delay}, metric: []string{dropped, "reason", "id"}, most: pipelined},
	"wrong question":       {behaviour: rogue.Behaviour{Wrong: rogue.WrongQuestion, Delay: delay}, metric: []string{dropped, "reason", "question"}, most: pipelined},
	"wrong type":           {behaviour: rogue.Behaviour{Wrong: rogue.WrongType, Delay: delay}, metric: []string{dropped, "reason", "question"}, most: pipelined},
	"wrong case":           {behaviour: rogue.Behaviour{Wrong: rogue.WrongCase, Delay: delay}, metric: []string{dropped, "reason", "case"}, most: pipelined},
	"not a response":       {behaviour: rogue.Behaviour{Wrong: rogue.WrongDirection, Delay: delay}, metric: []string{dropped}, most: pipelined},
	"frames of 0 bytes":    {behaviour: rogue.Behaviour{Wrong: rogue.Empty, Delay: delay}, metric: []string{dropped, "reason", "malformed"}, most: single},
	"frames of 3 bytes":    {behaviour: rogue.Behaviour{Wrong: rogue.Short, Delay: delay}, metric: []string{dropped, "reason", "malformed"}, most: single},
	"frames of noise":      {behaviour: rogue.Behaviour{Wrong: rogue.Noise, Delay: delay}, metric: []string{dropped}, most: single},
	"everything wrong": {
		behaviour: rogue.Behaviour{Wrong: rogue.WrongID | rogue.WrongQuestion | rogue.WrongType | rogue.WrongCase | rogue.WrongDirection, Shuffle: delay},
		metric:    []string{dropped}, most: pipelined},
	// Chance decides here, so that the number of attempts is not to.
	"resets some": {
		behaviour: rogue.Behaviour{ResetShare: 0.02, Delay: delay}, options: []string{"max_connect_attempts 0"}, most: single},
	"cuts some": {
		behaviour: rogue.Behaviour{Cut: 0.02, Delay: delay}, options: []string{"max_connect_attempts 0"}, most: single},
	"keepalive of 0":      {behaviour: rogue.Behaviour{Keepalive: new(uint16(0)), Delay: delay}, most: single},
	"keepalive of 300 ms": {behaviour: rogue.Behaviour{Keepalive: new(uint16(3)), Delay: delay}, most: single},
	"without pipelining":  {behaviour: rogue.Behaviour{Delay: delay}, options: []string{"max_in_flight 1"}, most: single},
	"few in flight": {
		behaviour: rogue.Behaviour{Delay: delay}, options: []string{"max_in_flight 100", "max_connections 3"}, most: 3},
}

// TestAnswerable asks one misbehaving server over TCP. A second load comes after the first, for what has
// been learnt about the server is not to hurt.
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
			wantConnections(t, r, c.most)
			if got := r.Counts(); got.UDP > 0 {
				t.Errorf("%d queries came over UDP", got.UDP)
			}
			if all := s.scrape(t); len(c.metric) > 0 && all.Sum(c.metric[0], c.metric[1:]...) == 0 {
				t.Errorf("none of %q; there are\n%s", c.metric, like(all, "nearside_forward_"))
			}
		})
	}
}

// wantConnections fails the test if a server had too many connections, or packets that are no queries.
func wantConnections(t *testing.T, r *rogue.Server, most int) {
	t.Helper()
	c := r.Counts()
	if c.MaxOpen > most {
		t.Errorf("%d connections at one time, want %d at most", c.MaxOpen, most)
	}
	if c.Malformed > 0 {
		t.Errorf("%d packets were no queries", c.Malformed)
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
	"only wrong case":      {Wrong: rogue.WrongCase, OnlyWrong: true},
	"only empty frames":    {Wrong: rogue.Empty, OnlyWrong: true},
	"only noise":           {Wrong: rogue.Noise, OnlyWrong: true},
	"never answers":        {Drop: 1},
	"does not read":        {Deaf: true},
	"refuses":              {Refuse: true},
	"black hole":           {BlackHole: true},
	"resets all":           {ResetShare: 1},
	"too late":             {Delay: 4 * time.Second},
}

// TestHopeless asks a server that answers nothing: clients are told so within their budget.
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
				t.Errorf("%d answers were made of nothing", right)
			}
			wantConnections(t, r, single)
			r.Behave(rogue.Behaviour{})
			recovered(t, s)
		})
	}
}

// recoveryTime bounds how long an upstream is thought to be down that is not: the time between two
// checks of it, and what a busy machine takes.
const recoveryTime = 5 * time.Second

// recovered waits until queries are answered, and fails the test if one of those that follow is not.
func recovered(t *testing.T, s *server) {
	t.Helper()
	within(t, recoveryTime, "an answer", func() bool { return load{queries: 1}.run(s)[0].problem() == "" })
	load{queries: 200}.run(s).wantRight(t)
}

// TestBeside asks a server that answers nothing and a good one: every query is answered.
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

// TestBesideByChance is TestBeside with a server that fails now and then, and no more attempts than are
// made if the Corefile does not say how many.
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

// settled returns how many queries a server has got, once it gets no more.
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

// TestCache has a cache in front: each name goes to the upstream once, and comes again from the cache.
func TestCache(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]rogue.Behaviour{
		"well":              {Delay: delay},
		"in order":          {InOrder: true, Delay: time.Millisecond},
		"closes after each": {CloseAfter: 1, Delay: delay},
		"wrong ids":         {Wrong: rogue.WrongID | rogue.WrongCase, Delay: delay},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rogueServer(t, b)
			s := start(t, zone("cache 30", forward(r.Addr, "force_tcp")))
			first := load{tcp: 4}.run(s)
			first.wantRight(t)
			asked := settled(r) // copies of queries may still be worked on
			for i := range first {
				first[i].ask(s.Addr, budget+margin)
			}
			first.wantRight(t)
			if again := r.Counts().Queries() - asked; again > 0 {
				t.Errorf("%d queries went to the upstream again", again)
			}
		})
	}
}

// TestTLS asks a few of the servers over TLS.
func TestTLS(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]answerable{
		"well":              {behaviour: rogue.Behaviour{Delay: delay}, most: pipelined},
		"out of order":      {behaviour: rogue.Behaviour{Shuffle: 2 * delay}, most: pipelined},
		"wrong ids":         {behaviour: rogue.Behaviour{Wrong: rogue.WrongID, Delay: delay}, most: pipelined},
		"pauses in frames":  {behaviour: rogue.Behaviour{Pause: 2 * time.Millisecond}, most: pipelined},
		"closes after 10":   {behaviour: rogue.Behaviour{CloseAfter: 10, Delay: delay}, most: single},
		"closes after each": {behaviour: rogue.Behaviour{CloseAfter: 1, Delay: delay}, load: load{queries: 100}, most: single},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const serverName = "dns.rogue.test"
			cert := rogue.NewCertificate(t, serverName)
			r := rogue.StartAt(t, rogue.Options{Host: rogueHost, TLS: cert.Config}, c.behaviour)
			s := start(t, zone(forward("tls://"+r.Addr, "tls "+cert.CA, "tls_servername "+serverName)))
			c.load.run(s).wantRight(t)
			wantConnections(t, r, c.most)
			if got := s.scrape(t).Sum(packets, "proto", "tcp-tls", "direction", "sent"); got == 0 {
				t.Error("no packets over TLS are counted")
			}
		})
	}
}

// TestSteadyInOrder has a server that works on one query of a connection at a time, and never pauses: the
// connection always says something, while queries wait ever longer behind each other. They get their answers as
// soon as it is found out.
func TestSteadyInOrder(t *testing.T) {
	t.Parallel()
	r := rogueServer(t, rogue.Behaviour{InOrder: true, Delay: 20 * time.Millisecond})
	s := start(t, zone(forward(r.Addr, "force_tcp")))
	load{queries: 1000, pace: 4 * time.Millisecond}.run(s).wantRight(t)
	if n := s.scrape(t).Sum("nearside_forward_fallbacks_total", "reason", "one_query_per_connection"); n == 0 {
		t.Error("it was not found out")
	}
}
