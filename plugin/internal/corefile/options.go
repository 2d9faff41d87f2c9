package corefile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/coredns/caddy"
)

// Option is an option of a directive's block: a line "NAME ARGUMENT...".
type Option[T any] struct {
	Min, Max int  // number of arguments; a Max of -1 is any number
	Once     bool // repeating the option is an error
	// Shared permits another option on the same line, after exactly Min arguments, as CoreDNS's forward does.
	Shared bool
	Form   string // the accepted arguments, for error messages
	// Parse sets fields. Its error begins with the invalid argument, quoted.
	Parse func(to T, args []string) error
}

// Options are the options of a directive, by name.
type Options[T any] map[string]Option[T]

// Once calls parse for a directive that a server block may have once.
func Once[R any](c *caddy.Controller, parse func(*caddy.Controller) (R, error)) (R, error) {
	var none, result R
	for n := 0; c.Next(); n++ {
		if n > 0 {
			return none, At(c).Errorf("duplicate %s: want one in a server block", c.Val())
		}
		var err error
		if result, err = parse(c); err != nil {
			return none, err
		}
	}
	return result, nil
}

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
			return nil, o.Invalid(before, here, fmt.Errorf("%q: unexpected argument", name))
		case !ok:
			return nil, here.Errorf("unknown option %q: want one of %s", name, o.names())
		case twice && option.Once:
			return nil, here.Errorf("duplicate option %s", name)
		}
		args, ok := option.arguments(c)
		if !ok {
			return nil, here.Errorf("invalid %s: want %s", strings.TrimSpace(name+" "+Quote(args)), option.Form)
		}
		if err := option.Parse(to, args); err != nil {
			return nil, o.Invalid(name, here, err)
		}
		seen[name], before = here, name
	}
	return seen, nil
}

// Invalid returns the error of an invalid option at a position. The cause begins with the invalid argument, quoted.
func (o Options[T]) Invalid(name string, here Position, cause error) error {
	return here.Errorf("invalid %s %w: want %s", name, cause, o[name].Form)
}

// Conflict returns an error, at the later line, if two options are set that exclude each other for a reason.
func Conflict(seen map[string]Position, one, other, reason string) error {
	at, ok := seen[one]
	later, both := seen[other]
	if !ok || !both {
		return nil
	}
	if later.Line > at.Line {
		at = later
	}
	return at.Errorf("%s and %s cannot both be set: %s", one, other, reason)
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

// Of returns the options of a part of T as options of T.
func Of[T, P any](options Options[P], part func(T) P) Options[T] {
	all := Options[T]{}
	for name, o := range options {
		all[name] = Option[T]{o.Min, o.Max, o.Once, o.Shared, o.Form, func(to T, args []string) error { return o.Parse(part(to), args) }}
	}
	return all
}

// With returns the options and others.
func (o Options[T]) With(others Options[T]) Options[T] {
	all := maps.Clone(o)
	maps.Copy(all, others)
	return all
}

// Without returns the options without some of them.
func (o Options[T]) Without(names ...string) Options[T] {
	left := maps.Clone(o)
	maps.DeleteFunc(left, func(name string, _ Option[T]) bool { return slices.Contains(names, name) })
	return left
}

// Quote returns the arguments of an option for errors, each quoted.
func Quote(args []string) string { return strings.Trim(fmt.Sprintf("%q", args), "[]") }

func (o Options[T]) names() string {
	return strings.Join(slices.Sorted(maps.Keys(o)), ", ")
}
