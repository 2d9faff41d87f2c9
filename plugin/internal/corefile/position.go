// Package corefile says where in a Corefile something stands. In go controllers that read one; out come
// positions, and errors in the form that those of the parser have. It is a leaf.
package corefile

import (
	"fmt"

	"github.com/coredns/caddy"
)

// Position is a line of a Corefile.
type Position struct {
	File string
	Line int // from 1
}

// At returns where a controller reads.
func At(c *caddy.Controller) Position { return Position{c.File(), c.Line()} }

// Errorf returns an error with the position.
func (p Position) Errorf(format string, args ...any) error {
	return fmt.Errorf("%s:%d - Error during parsing: %w", p.File, p.Line, fmt.Errorf(format, args...))
}
