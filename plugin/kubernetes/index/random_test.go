package index

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/property"
)

// alphabets are the names and addresses of the random tests: a small one for collisions, a large one for tables that
// grow and shrink.
var alphabets = []struct {
	name                         string
	namespaces, names, addresses int
	seeds                        uint64
	steps                        int
	// every is the number of steps between two complete comparisons.
	every int
}{
	{name: "small", namespaces: 2, names: 3, addresses: 3, seeds: 40, steps: 200, every: 1},
	{name: "wide", namespaces: 4, names: 40, addresses: 60, seeds: 4, steps: 700, every: 10},
}

// TestRandomOperations compares all results of readers with the model.
func TestRandomOperations(t *testing.T) {
	for _, a := range alphabets {
		t.Run(a.name, func(t *testing.T) {
			property.Seeds(t, 0, a.seeds, func(t *testing.T, seed uint64) {
				t.Parallel()
				o := newOperations(seed, newAlphabet(a.namespaces, a.names, a.addresses))
				ix := New()
				for step := range a.steps {
					op := o.next()
					op.run(ix)
					if (step+1)%a.every != 0 {
						continue
					}
					if err := o.m.compare(ix, o.alphabet); err != nil {
						t.Fatalf("step %d, after %s:\n%v", step, op.text, err)
					}
				}
			})
		})
	}
}

// TestRandomGenerations stores answers before and during each operation: an outdated one must not count as valid, and
// no generation advances without a change.
func TestRandomGenerations(t *testing.T) {
	for _, a := range alphabets {
		t.Run(a.name, func(t *testing.T) {
			property.Seeds(t, 0, a.seeds, func(t *testing.T, seed uint64) {
				t.Parallel()
				o := newOperations(seed, newAlphabet(a.namespaces, a.names, a.addresses))
				ix := New()
				k := newKeeper(seed, ix, o.questions())
				before, advanced := takeStock(ix, o.m), watchShared(ix)
				for step := range a.steps {
					op := o.next()
					k.clock = k.clock.Add(time.Second)
					op.run(ix)
					after := takeStock(ix, o.m)
					if err := before.precise(after, advanced, k.clock.Unix()); err != nil {
						t.Fatalf("step %d, after %s:\n%v", step, op.text, err)
					}
					before = after
					if err := k.check(); err != nil {
						t.Fatalf("step %d, after %s:\n%v", step, op.text, err)
					}
				}
			})
		})
	}
}

// keeper stores answers to questions about an index, and is its clock. An index reads the clock during a change,
// before it advances generations: a reader at that moment must find the new records.
type keeper struct {
	*rand.Rand
	ix        *Index
	questions []question
	before    map[question]stored // answers from before an operation
	amid      []stored            // answers from during the operation
	clock     time.Time
}

func newKeeper(seed uint64, ix *Index, questions []question) *keeper {
	k := &keeper{
		Rand: rand.New(rand.NewPCG(seed, 1)), ix: ix, questions: questions,
		before: map[question]stored{}, clock: time.Unix(1_000_000, 0),
	}
	ix.now = k.now
	return k
}

// now answers as many questions as the small alphabet has: all those of the large one would take long.
func (k *keeper) now() time.Time {
	const limit = 20
	if len(k.questions) <= limit {
		for _, q := range k.questions {
			k.amid = append(k.amid, q.ask(k.ix))
		}
		return k.clock
	}
	for range limit {
		k.amid = append(k.amid, pick(k.Rand, k.questions).ask(k.ix))
	}
	return k.clock
}

// check returns a stored answer that counts as valid and differs from the current one.
func (k *keeper) check() error {
	answers := make(map[question]stored, len(k.questions))
	for _, q := range k.questions {
		answers[q] = q.ask(k.ix)
	}
	for q, a := range k.before {
		if err := a.check(answers[q]); err != nil {
			return fmt.Errorf("stored before: %w", err)
		}
	}
	for _, a := range k.amid {
		if err := a.check(answers[a.question]); err != nil {
			return fmt.Errorf("stored during the operation: %w", err)
		}
	}
	k.before, k.amid = answers, k.amid[:0]
	return nil
}
