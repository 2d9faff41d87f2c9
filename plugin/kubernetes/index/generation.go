package index

import "sync/atomic"

// Generation counts the changes of one thing that answers are made from. A reader that keeps an
// answer takes the number first and reads the records then; the answer holds as long as the number
// is the same. A writer publishes the records first and advances the number then, before the event
// that brought the change counts as processed. So a kept answer is never older than the last
// processed event.
type Generation struct{ n atomic.Uint64 }

// Load returns the present number.
func (g *Generation) Load() uint64 { return g.n.Load() }

func (g *Generation) advance() { g.n.Add(1) }
