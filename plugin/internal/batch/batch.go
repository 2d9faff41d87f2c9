// Package batch collects output that is sent together. A reader handles the datagrams or frames of one system call; the
// plugins append their output to buffers, and the reader sends each buffer at the end, so that many messages share a
// system call. The package is a leaf: it imports nothing of this project.
package batch

// Flusher has buffered output.
type Flusher interface {
	// Flush sends the output. It must not block for long, and may be called without output.
	Flush()
}

// Batch has the Flushers of one batch. It belongs to one goroutine. The zero value is empty.
type Batch struct{ pending []Flusher }

// Add adds a Flusher that has output. Further calls with it have no effect until Flush.
func (b *Batch) Add(f Flusher) {
	for _, other := range b.pending {
		if other == f {
			return
		}
	}
	b.pending = append(b.pending, f)
}

// Pending returns the Flushers with output. The caller does not change the slice.
func (b *Batch) Pending() []Flusher { return b.pending }

// Flush flushes all Flushers, also those that are added meanwhile, and empties the batch.
func (b *Batch) Flush() {
	for i := 0; i < len(b.pending); i++ {
		b.pending[i].Flush()
	}
	clear(b.pending)
	b.pending = b.pending[:0]
}
