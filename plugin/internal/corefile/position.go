// Package corefile parses the block of a directive by a table of its options, and has positions in Corefiles. Input is
// the controllers of CoreDNS's parser; output is the result of each option's function, positions, and errors in the form
// of that parser. It imports no plugin of the project.
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

// At returns the position of a controller's current token.
func At(c *caddy.Controller) Position { return Position{c.File(), c.Line()} }

// Errorf returns an error with the position.
func (p Position) Errorf(format string, args ...any) error {
	return fmt.Errorf("%s:%d - Error during parsing: %w", p.File, p.Line, fmt.Errorf(format, args...))
}
