package index

import "sync/atomic"

// Generation counts the changes of one thing that answers are made from. A writer publishes the
// records first and advances the number then, before the event that brought the change counts as
// processed. So an answer that is kept with the number never outlives the last processed event, if its
// reader (1) finds the Generation, (2) loads the number, (3) looks up again and goes on only if it
// finds the same Generation, and (4) makes the answer from what that second look gave: a thing that
// went and came back has another Generation, and the old one never advances again.
//
// An answer about a Service hangs on the Generation of its Entry, or where there is none on the one of
// the namespace; a PTR on the one of its address; and all of them on NamespacesGeneration, since a
// namespace takes its names with it and leaves its objects to be deleted one by one.
type Generation struct{ n atomic.Uint64 }

// Load returns the present number.
func (g *Generation) Load() uint64 { return g.n.Load() }

func (g *Generation) advance() { g.n.Add(1) }
