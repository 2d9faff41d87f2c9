// Package batch collects output that is sent together. A reader handles the datagrams or frames of one system call; the
// plugins append their output to buffers, and the reader sends each buffer at the end, so that many messages share a
// system call. The package is a leaf: it imports nothing of this project.
package batch

import "slices"

// Flusher has buffered output.
type Flusher interface {
	// Flush sends the output. It must not block for long, and may be called without output.
	Flush()
}

// Batch has the Flushers of one batch. It belongs to one goroutine. The zero value is empty.
type Batch struct{ pending []Flusher }

// Add adds a Flusher that has output, unless the batch has it already.
func (b *Batch) Add(f Flusher) {
	if !slices.Contains(b.pending, f) {
		b.pending = append(b.pending, f)
	}
}

// Pending returns the Flushers with output. The caller does not change the slice.
func (b *Batch) Pending() []Flusher { return b.pending }

// Flush flushes and removes all Flushers, also those that are added meanwhile.
func (b *Batch) Flush() {
	for len(b.pending) > 0 {
		f := b.pending[0]
		b.pending = slices.Delete(b.pending, 0, 1) // first, since another goroutine may reuse f
		f.Flush()
	}
}
