package kubernetes

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// TestStored_WhileTheClusterChanges answers and stores in readers while the cluster changes. An answer may be stored
// long after the change that outdated it: it must not count as valid then. Between two changes, a stored answer must
// equal one made without a store.
func TestStored_WhileTheClusterChanges(t *testing.T) {
	inOrder(t, func(t *testing.T, b *storedBlock, seed uint64) {
		s, _, c := b.start(t, seed)
		r := c.common().Rand
		var queries [][]byte
		for _, q := range c.questions(60) {
			query, err := s.queryOf(r, q.Name, q.Qtype)
			kit.Must(t, err)
			queries = append(queries, query)
		}
		compared := seen{}
		caller := func() client { return s.client(r) }
		change := func() error { return s.compareAfter(c.change(), queries, r, caller, compared) }
		if err := s.whileAsked(queries, change, func() bool { return b.imports || compared["PTR"] > 0 }); err != nil {
			t.Error(err)
		}
		b.requires(t, compared, []string{"A", "NODATA", "NXDOMAIN"}, []string{"PTR"}, nil)
	})
}

// compareAfter compares stored answers to some of the queries with answers made anew, after a change of the cluster.
func (s *storing) compareAfter(change string, queries [][]byte, r *rand.Rand, caller func() client, compared seen) error {
	for range 2 {
		for range 10 {
			if err := s.compare(pick(r, queries), caller(), compared); err != nil {
				return fmt.Errorf("after %s: %w", change, err)
			}
		}
		runtime.Gosched() // a reader that read before the change may store its answer now
	}
	return nil
}

// Readers run for at least this time, and at least this number of changes.
const (
	whileAskedFor     = time.Second
	whileAskedChanges = 400
)

// whileAsked calls change repeatedly while readers send queries, until there is an error. On a busy machine it continues until there is enough.
func (s *storing) whileAsked(queries [][]byte, change func() error, enough func() bool) error {
	var readers sync.WaitGroup
	var stop atomic.Bool
	failed := make(chan error, 2)
	for i := range cap(failed) {
		readers.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for !stop.Load() {
				if _, err := packedReply(s.front, pick(r, queries), pick(r, s.clients)); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	var err error
	deadline := time.Now().Add(whileAskedFor)
	if s.model != nil {
		deadline = time.Now() // there are enough changes, and more blocks
	}
	goesOn := func(n int) bool {
		return n < whileAskedChanges || time.Now().Before(deadline) || !enough() && n < 20*whileAskedChanges
	}
	for n := 0; err == nil && len(failed) == 0 && goesOn(n); n++ {
		err = change()
	}
	stop.Store(true)
	readers.Wait()
	if err == nil && len(failed) > 0 {
		err = <-failed
	}
	return err
}

// compare compares the stored answer to a query, if any, with one made without a store.
func (s *storing) compare(query []byte, from client, counts seen) error {
	got := s.stored(query, from)
	if got == nil {
		return nil
	}
	want, err := packedReply(s.plain, query, from)
	if err != nil {
		return err
	}
	if err := same(got, want); err != nil {
		return err
	}
	return counts.count(query, got)
}

// client draws the client of a query, the first one if it does not matter.
func (s *storing) client(r *rand.Rand) client {
	if s.model == nil && s.imports == nil {
		return s.clients[0]
	}
	return pick(r, s.clients)
}
