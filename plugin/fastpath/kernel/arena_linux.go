//go:build amd64 || arm64

package kernel

// maxNew limits the granules in use for copies of new questions. The rest is for copies that replace others.
const maxNew = len(Table{}.used) * 7 / 8

// allocate returns the first of n free granules in a row. With replaces, they are for a copy that replaces another one.
func (t *Table) allocate(n int, replaces bool) (at int, ok bool) {
	if t.minFailed != 0 && n >= t.minFailed || !replaces && t.inUse+n > maxNew {
		return 0, false
	}
	if at, ok = t.search(n); !ok {
		t.minFailed = n
		return 0, false
	}
	t.inUse += n
	return at, true
}

// lastGranule is the last granule at which a record may begin: the program reads maxRecord bytes.
const lastGranule = (arenaLen - maxRecord) / granule

func (t *Table) search(n int) (at int, ok bool) {
	for i, run := 0, 0; i < 2*lastGranule; i++ {
		at := (t.next + i) % (lastGranule + 1)
		if at == 0 {
			run = 0
		}
		if t.used[at] {
			run = 0
			continue
		}
		if run++; run == n {
			first := at - n + 1
			for j := range n {
				t.used[first+j] = true
			}
			t.next = (at + 1) % (lastGranule + 1)
			return first, true
		}
	}
	return 0, false
}

// freeGranules makes n granules free.
func (t *Table) freeGranules(first, n int) {
	t.minFailed = 0
	t.inUse -= n
	clear(t.used[first : first+n])
}
