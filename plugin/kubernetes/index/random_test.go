package index

import (
	"fmt"
	"testing"
	"time"
)

// alphabets are what the random tests run over: in the small one everything collides, in the wide one
// the tables grow and shrink.
var alphabets = []struct {
	name                         string
	namespaces, names, addresses int
	seeds, steps                 int
	// every is the number of steps from one comparison of all to the next.
	every int
}{
	{name: "small", namespaces: 2, names: 3, addresses: 3, seeds: 40, steps: 200, every: 1},
	{name: "wide", namespaces: 4, names: 40, addresses: 60, seeds: 4, steps: 1500, every: 25},
}

// TestRandomOperations compares all that readers see with the model.
func TestRandomOperations(t *testing.T) {
	for _, a := range alphabets {
		for seed := range uint64(a.seeds) {
			t.Run(fmt.Sprintf("%s/seed=%d", a.name, seed), func(t *testing.T) {
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
						t.Fatalf("seed %d, step %d, after %s:\n%v", seed, step, op.text, err)
					}
				}
			})
		}
	}
}

// TestRandomGenerations keeps the answer to every question and asks again after each operation: an
// answer that has changed must not count as valid, and nothing advances for what has not changed.
func TestRandomGenerations(t *testing.T) {
	for _, a := range alphabets {
		for seed := range uint64(a.seeds) {
			t.Run(fmt.Sprintf("%s/seed=%d", a.name, seed), func(t *testing.T) {
				t.Parallel()
				o := newOperations(seed, newAlphabet(a.namespaces, a.names, a.addresses))
				ix := New()
				clock := time.Unix(1_000_000, 0)
				ix.now = func() time.Time { return clock }
				questions := o.questions()
				answers := make([]kept, len(questions))
				for i, q := range questions {
					answers[i] = q.ask(ix)
				}
				before := takeStock(ix, o.m)
				for step := range a.steps {
					clock = clock.Add(time.Second)
					op := o.next()
					op.run(ix)
					after := takeStock(ix, o.m)
					if err := before.precise(after, clock.Unix()); err != nil {
						t.Fatalf("seed %d, step %d, after %s:\n%v", seed, step, op.text, err)
					}
					before = after
					for i, q := range questions {
						now := q.ask(ix)
						if answers[i].valid() && answers[i].content != now.content {
							t.Fatalf("seed %d, step %d, after %s:\nthe answer to %#v counts as valid:\n%q\nit is\n%q",
								seed, step, op.text, q, answers[i].content, now.content)
						}
						if !answers[i].valid() || step%7 == 0 {
							answers[i] = now
						}
					}
				}
			})
		}
	}
}
