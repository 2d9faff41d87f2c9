package index

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// tableModel is a simple table. Every value that the tests put is another number.
type tableModel map[uint16][]int

func (m tableModel) size() (n int) {
	for _, all := range m {
		n += len(all)
	}
	return n
}

// tableProgram runs a table and its model through steps encoded as bytes: three for each step, the operation and a
// key.
type tableProgram struct {
	*table[uint16, int]
	model tableModel
	next  int
}

// Steps of a tableProgram.
const (
	stepAdd = iota
	stepSet
	stepRemoveOne  // a certain value of a key
	stepRemoveAny  // any value of a key
	stepRemoveNone // a value that the key does not have
	stepGrow       // adds a value to each of many keys
	stepShrink     // removes a value from each of many keys
	stepEmpty      // removes every value during the iteration
	steps
)

// bulk is the number of keys of stepGrow and stepShrink.
const bulk = 1500

func (p *tableProgram) run(program []byte) error {
	for i := 0; len(program) >= 3; i++ {
		what, k := program[0]%steps, binary.BigEndian.Uint16(program[1:])
		program = program[3:]
		p.step(what, k)
		err := p.check(k)
		if err == nil && (what == stepEmpty || len(program) < 3) {
			err = p.checkAll()
		}
		if err != nil {
			return fmt.Errorf("step %d (%d, key %d): %w", i, what, k, err)
		}
	}
	return nil
}

func (p *tableProgram) step(what byte, k uint16) {
	switch what {
	case stepAdd:
		p.addNext(k)
	case stepSet:
		if len(p.model[k]) > 1 {
			return // set is not used for keys with several values
		}
		p.next++
		p.set(k, p.next)
		p.model[k] = []int{p.next}
	case stepRemoveOne:
		if all := p.model[k]; len(all) > 0 {
			p.removeValue(k, all[len(all)/2])
		}
	case stepRemoveAny:
		p.removeAny(k)
	case stepRemoveNone:
		p.remove(k, -1)
	case stepGrow:
		for i := range uint16(bulk) {
			p.addNext(k + i)
		}
	case stepShrink:
		for i := range uint16(bulk) {
			p.removeAny(k + i)
		}
	case stepEmpty:
		for k, v := range p.each() {
			p.removeValue(k, v)
		}
	}
}

func (p *tableProgram) addNext(k uint16) {
	p.next++
	p.add(k, p.next)
	p.model[k] = append(p.model[k], p.next)
}

func (p *tableProgram) removeValue(k uint16, v int) {
	p.remove(k, v)
	p.forget(k, v)
}

func (p *tableProgram) removeAny(k uint16) {
	if v, ok := p.get(k); ok {
		p.removeValue(k, v)
	}
}

func (p *tableProgram) forget(k uint16, v int) {
	p.model[k] = slices.DeleteFunc(p.model[k], func(w int) bool { return w == v })
	if len(p.model[k]) == 0 {
		delete(p.model, k)
	}
}

// check compares the values of one key, and the size.
func (p *tableProgram) check(k uint16) error {
	want := p.model[k]
	if got := slices.Sorted(p.all(k)); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		return fmt.Errorf("all(%d) = %v, want %v", k, got, want)
	}
	if v, ok := p.get(k); ok != (len(want) > 0) || ok && !slices.Contains(want, v) {
		return fmt.Errorf("get(%d) = %d, %t, want one of %v", k, v, ok, want)
	}
	for v := range p.all(k) {
		if !slices.Contains(want, v) {
			return fmt.Errorf("all(%d) begins with %d, want one of %v", k, v, want)
		}
		break // the iterator must support an early end
	}
	if p.size != p.model.size() {
		return fmt.Errorf("size = %d, want %d", p.size, p.model.size())
	}
	chains := len(*p.buckets.Load())
	if p.size > 2*chains || chains > minBuckets && p.size < chains/8 || chains < minBuckets {
		return fmt.Errorf("%d nodes in %d chains", p.size, chains)
	}
	return nil
}

// checkAll compares all keys.
func (p *tableProgram) checkAll() error {
	got := tableModel{}
	for k, v := range p.each() {
		got[k] = append(got[k], v)
	}
	for _, m := range []tableModel{got, p.model} {
		for k := range m {
			slices.Sort(m[k])
		}
	}
	if !maps.EqualFunc(got, p.model, slices.Equal) {
		return fmt.Errorf("each() has %d values of %d keys, want %d of %d, or has others", got.size(), len(got), p.model.size(), len(p.model))
	}
	for k := range p.model {
		if err := p.check(k); err != nil {
			return err
		}
	}
	for range p.each() {
		break // the iterator must support an early end
	}
	return nil
}

// FuzzTable is best run with -fuzzminimizetime=1x: each table has another hash seed, so that the coverage of a program
// varies and no program can be minimized by it.
func FuzzTable(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{stepAdd, 0, 1, stepAdd, 0, 1, stepAdd, 0, 1, stepRemoveOne, 0, 1, stepRemoveNone, 0, 1, stepRemoveAny, 0, 1})
	f.Add([]byte{stepSet, 0, 1, stepSet, 0, 2, stepSet, 0, 1, stepAdd, 0, 1, stepSet, 0, 2, stepRemoveAny, 0, 2})
	f.Add([]byte{stepGrow, 0, 0, stepGrow, 4, 0, stepGrow, 8, 0, stepSet, 0, 1, stepSet, 8, 1, stepRemoveOne, 4, 1,
		stepShrink, 0, 0, stepShrink, 4, 0, stepSet, 8, 1, stepShrink, 6, 0, stepShrink, 8, 0})
	f.Add([]byte{stepGrow, 0, 0, stepGrow, 0, 0, stepGrow, 0, 0, stepGrow, 0, 0, stepRemoveAny, 0, 9, stepEmpty, 0, 0, stepAdd, 0, 9})
	f.Fuzz(func(t *testing.T, program []byte) {
		if len(program) > 3*50 {
			t.Skip("longer programs only take longer")
		}
		p := &tableProgram{table: newTable[uint16, int](), model: tableModel{}}
		kit.Must(t, p.run(program))
	})
}

// TestTableReadersWhileWriting looks up permanent keys while the table grows and shrinks and chains are rebuilt.
func TestTableReadersWhileWriting(t *testing.T) {
	const always, others = 50, 5000
	tab := newTable[int, int]()
	for k := range always {
		tab.set(k, 0)
	}
	readWhile(t, 2,
		func() error {
			for k := range always {
				if _, ok := tab.get(k); !ok {
					return fmt.Errorf("get(%d) found nothing", k)
				}
				if n := len(slices.Collect(tab.all(k))); n != 1 {
					return fmt.Errorf("all(%d) found %d values", k, n)
				}
			}
			seen := map[int]int{}
			for k := range tab.each() {
				seen[k]++
			}
			for k := range always {
				if seen[k] != 1 {
					return fmt.Errorf("each() found %d values of %d", seen[k], k)
				}
			}
			return nil
		},
		func(failed func() bool) {
			for round := 0; round < 20 && !failed(); round++ {
				for k := always; k < others; k++ {
					tab.add(k, round)
					tab.set(k%always, k)
				}
				for k := always; k < others; k++ {
					v, _ := tab.get(k)
					tab.remove(k, v)
					tab.set(k%always, -k)
				}
			}
		})
	if chains := len(*tab.buckets.Load()); tab.size != always || chains > 8*always {
		t.Errorf("%d nodes are left in %d chains, want %d nodes", tab.size, chains, always)
	}
}
