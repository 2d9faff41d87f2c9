package firewall

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// truth is one of three values; the zero value is no.
type truth int

const (
	no truth = iota
	unknown
	yes
)

// not returns the opposite.
func (t truth) not() truth { return yes - t }

// is returns yes or no.
func is(b bool) truth {
	if b {
		return yes
	}
	return no
}

// action is the verdict of a rule on a packet that it matches.
type action int

const (
	returns action = iota // to the calling chain; also the end of a chain
	accepts
	rejected // dropped, or rejected with an answer
	jumps
	goes   // a jump that does not return here
	either // accepts or rejects: it is not known which
)

// outcome is a possible result of a rule.
type outcome struct {
	condition
	action action
	chain  string // of jumps and goes
	verb   string // of rejected: "drops" or "rejects"
}

// always is the condition of a rule that matches every packet.
var always = condition{match: yes}

// uncertain returns the outcome of a rule whose verdict is not evaluated, as of another part of the kernel
// or another program.
func uncertain(depends ...string) []outcome {
	return []outcome{{condition: condition{unknown, depends}, action: either}}
}

// rule is one rule of a chain. Its outcomes are tried in order; the next rule follows where none matches.
type rule struct {
	text     string // names the rule in its chain, such as "rule 7"
	outcomes func(view) []outcome
}

// condition is whether a rule matches, as far as it is evaluated, and the unknown parts of the packet that
// this depends on.
type condition struct {
	match   truth
	depends []string
}

// require narrows the match of the rule.
func (c *condition) require(t truth, depends ...string) {
	if t == unknown {
		c.depends = append(c.depends, depends...)
	}
	c.match = min(c.match, t)
}

// narrow makes outcomes depend on the condition.
func (c *condition) narrow(outcomes []outcome) []outcome {
	for i := range outcomes {
		outcomes[i].match = min(outcomes[i].match, c.match)
		outcomes[i].depends = slices.Concat(c.depends, outcomes[i].depends)
	}
	return outcomes
}

// base is a chain that a hook of the kernel calls.
type base struct {
	chain    Chain
	priority int
	drops    bool                               // its policy
	rules    func(chain string) ([]rule, error) // of its table
}

// Priorities at which the state of a packet is decided: nodecache and node-local-dns exclude it from
// connection tracking at raw, before the priority of that.
const (
	priorityRaw      = -300
	priorityTracking = -200
)

// sees returns whether the hook of a chain sees a packet.
func (b base) sees(p Packet) bool {
	hooks := []string{"prerouting", "input"}
	if p.Reply {
		hooks = []string{"output", "postrouting"}
	}
	if !slices.Contains(hooks, b.chain.Hook) {
		return false
	}
	return b.chain.Family == "inet" || (b.chain.Family == "ip") == p.Address.Is4()
}

// walk returns what the chain, with its policy, does with a packet.
func (b base) walk(p Packet) result {
	known := priorityRaw
	if p.Tracked {
		known = priorityTracking
	}
	w := walker{base: b, view: view{p, b.priority <= known}, done: map[string]result{}}
	r := w.walk(b.chain.Name, 0)
	if r.may.returns {
		r.may.returns = false
		if b.drops {
			r.may.reject = true
		} else {
			r.may.accept = true
			if r.byDefault == rejected {
				r.accepts("the policy", r.returnsDepend)
			}
		}
	}
	if r.byDefault == returns {
		r.byDefault, r.place = accepts, ""
		if b.drops {
			r.byDefault, r.place = rejected, "its policy drops"
		}
	}
	return r
}

// result is what a chain may do with a packet.
type result struct {
	// may are the possible verdicts.
	may struct{ accept, reject, returns bool }
	// byDefault is the verdict if no rule matches that depends on unknown parts of the packet: returns, accepts
	// or rejected. place names the rule of a rejection.
	byDefault action
	place     string
	// accepting are rules that accept a part of the packets.
	accepting []accepting
	// returnsDepend are the unknown parts that an early return depends on.
	returnsDepend []string
	err           error
}

// accepting is a rule that accepts packets, and the unknown parts that this depends on.
type accepting struct {
	rule    string
	depends []string
}

// accepts adds an accepting rule. A few are enough: people read them, and many rules may call a chain.
func (r *result) accepts(rule string, depends []string) {
	same := func(a accepting) bool { return a.rule == rule && slices.Equal(a.depends, depends) }
	if len(r.accepting) < maxUnless && !slices.ContainsFunc(r.accepting, same) {
		r.accepting = append(r.accepting, accepting{rule, depends})
	}
}

// merged returns the texts of two lists, each once.
func merged(a, b []string) []string {
	all := slices.Clone(a)
	for _, text := range b {
		if !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

// texts returns the accepting rules in words; none if the chain cannot accept.
func (r result) texts() (all []string) {
	if !r.may.accept {
		return nil
	}
	for _, a := range r.accepting {
		text := a.rule
		if len(a.depends) > 0 {
			text += ", by " + strings.Join(a.depends, " and ")
		}
		all = append(all, text)
	}
	if len(all) == 0 {
		all = []string{"a rule that cannot be evaluated"}
	}
	return all
}

// The kernel follows jumps to a depth of 16, and refuses loops.
const maxDepth = 16

var errDepth = errors.New("chains call each other too deeply")

// walker evaluates the chains of one base chain for one packet.
type walker struct {
	base base
	view view
	done map[string]result
}

// walk evaluates a chain, once.
func (w *walker) walk(name string, depth int) result {
	if r, ok := w.done[name]; ok {
		return r
	}
	var r result
	rules, err := w.base.rules(name)
	if depth > maxDepth {
		err = errDepth
	}
	if err != nil {
		// Any verdict is possible; the default is the next rule.
		r.err, r.byDefault = err, returns
		r.may.accept, r.may.reject, r.may.returns = true, true, true
		return r
	}
	c := chainWalk{walker: w, name: name, depth: depth, open: true}
	for _, next := range rules {
		if c.rule(next); !c.mayContinue {
			break
		}
	}
	if c.mayContinue || c.open {
		c.may.returns = true
		c.returnsDepend = merged(c.returnsDepend, c.because)
		c.decide(returns, "")
	}
	w.done[name] = c.result
	return c.result
}

// chainWalk is the way of a packet through one chain.
type chainWalk struct {
	*walker
	result
	name        string
	depth       int
	open        bool     // byDefault is not decided yet
	mayContinue bool     // the packet may reach the next rule
	because     []string // the unknown parts that this depends on, if byDefault is decided
}

// rule evaluates a rule.
func (c *chainWalk) rule(r rule) {
	c.mayContinue = true
	place := r.text
	if c.name != c.base.chain.Name {
		place = fmt.Sprintf("%s of chain %s", r.text, c.name)
	}
	for _, o := range r.outcomes(c.view) {
		if o.match == no {
			continue
		}
		if c.mayContinue = c.outcome(place, o); !c.mayContinue {
			return
		}
	}
}

// outcome evaluates one outcome, and returns whether the packet may reach the next one.
func (c *chainWalk) outcome(place string, o outcome) (mayContinue bool) {
	sure := o.match == yes
	depends := merged(c.because, o.depends)
	switch o.action {
	case accepts:
		c.may.accept = true
		if !sure || !c.open {
			c.accepts(place, depends)
		}
	case rejected:
		c.may.reject = true
		place += " " + o.verb
	case either:
		c.may.accept, c.may.reject = true, true
		c.accepts(place, depends)
		o.action = accepts
	case returns:
		c.may.returns = true
		c.returnsDepend = merged(c.returnsDepend, depends)
	case jumps, goes:
		return c.call(place, o, depends)
	}
	if sure {
		c.decide(o.action, place)
	}
	return !sure
}

// call evaluates a jump to another chain.
func (c *chainWalk) call(place string, o outcome, depends []string) (mayContinue bool) {
	sub := c.walk(o.chain, c.depth+1)
	c.may.accept = c.may.accept || sub.may.accept
	c.may.reject = c.may.reject || sub.may.reject
	c.err = cmp.Or(c.err, sub.err)
	for _, a := range sub.accepting {
		c.accepts(a.rule, merged(depends, a.depends))
	}
	if sub.byDefault == accepts && (o.match != yes || !c.open) {
		c.accepts(place, depends)
	}
	sure := o.match == yes
	if o.action == goes {
		c.may.returns = c.may.returns || sub.may.returns
		if sub.may.returns {
			c.returnsDepend = merged(c.returnsDepend, merged(depends, sub.returnsDepend))
		}
		if sure {
			c.decide(sub.byDefault, sub.place)
		}
		return !sure
	}
	if !sure || sub.byDefault == returns {
		return true
	}
	c.decide(sub.byDefault, sub.place)
	c.because = merged(c.because, sub.returnsDepend)
	return sub.may.returns
}

// decide sets the verdict for the case that no unknown rule matches, unless an earlier rule has set it.
func (c *chainWalk) decide(a action, place string) {
	if c.open {
		c.open, c.byDefault, c.place = false, a, place
	}
}
