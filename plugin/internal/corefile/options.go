package corefile

import (
	"maps"
	"slices"
	"strings"

	"github.com/coredns/caddy"
)

// Option is an option of a directive's block: a line "NAME ARGUMENT...".
type Option[T any] struct {
	Min, Max int  // number of arguments; a Max of -1 is any number
	Once     bool // repeating the option is an error
	// Shared permits another option after the arguments on the same line, of which there are exactly Min, as CoreDNS's
	// forward does.
	Shared bool
	Form   string // the accepted arguments, for error messages
	Parse  func(to T, args []string) error
}

// Options are the options of a directive, by name.
type Options[T any] map[string]Option[T]

// Parse parses the block of a directive, if it has one. The caller must have parsed the directive's arguments. Parse returns
// the position of each option, the last one of a repeated option.
func (o Options[T]) Parse(c *caddy.Controller, to T) (map[string]Position, error) {
	seen := map[string]Position{}
	before := ""
	for c.NextBlock() {
		name, here := c.Val(), At(c)
		option, ok := o[name]
		switch _, twice := seen[name]; {
		case !ok && before != "" && o[before].Shared && here == seen[before]:
			return nil, here.Errorf("%s takes %s and nothing else, got %q after it", before, o[before].Form, name)
		case !ok:
			return nil, here.Errorf("unknown option %q, known are %s", name, o.names())
		case twice && option.Once:
			return nil, here.Errorf("%s is given twice", name)
		}
		args, ok := option.arguments(c)
		if !ok {
			return nil, here.Errorf("%s takes %s, got %q", name, option.Form, args)
		}
		if err := option.Parse(to, args); err != nil {
			return nil, here.Errorf("%s: %w; it takes %s", name, err, option.Form)
		}
		seen[name], before = here, name
	}
	return seen, nil
}

// arguments returns the arguments of an option. ok reports whether their number is valid.
func (o Option[T]) arguments(c *caddy.Controller) (args []string, ok bool) {
	if o.Shared {
		for len(args) < o.Min && c.NextArg() {
			args = append(args, c.Val())
		}
		return args, len(args) == o.Min
	}
	args = c.RemainingArgs()
	if c.NextArg() { // an opening brace, at which RemainingArgs ends
		return append(args, c.Val()), false
	}
	return args, len(args) >= o.Min && (o.Max < 0 || len(args) <= o.Max)
}

// Without returns the options without some of them.
func (o Options[T]) Without(names ...string) Options[T] {
	left := maps.Clone(o)
	maps.DeleteFunc(left, func(name string, _ Option[T]) bool { return slices.Contains(names, name) })
	return left
}

func (o Options[T]) names() string {
	return strings.Join(slices.Sorted(maps.Keys(o)), ", ")
}
