package firewall

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// legacyPriorities are the priorities of the tables of iptables that filter.
var legacyPriorities = map[string]int{"raw": priorityRaw, "mangle": -150, "filter": 0, "security": 50}

// legacyBases returns the chains of iptables-legacy that hooks call.
func legacyBases(ctx context.Context) (all []base, err error) {
	tables, err := rules.OpenLegacy(ctx)
	for _, t := range tables {
		for _, name := range t.Tables {
			priority, ok := legacyPriorities[name]
			if !ok {
				continue
			}
			text, e := t.List(ctx, name)
			err = errors.Join(err, e)
			all = append(all, legacyTable(t.Family, name, priority, text)...)
		}
	}
	return all, err
}

// legacyTable reads a table as "iptables -S" prints it.
func legacyTable(family, table string, priority int, text string) (all []base) {
	chains := map[string][]rule{}
	find := func(name string) ([]rule, error) { return chains[name], nil }
	declared := func(name string) bool { _, ok := chains[name]; return ok }
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		words := rules.SplitWords(line)
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "-N":
			chains[words[1]] = nil
		case "-P":
			chains[words[1]] = nil
			all = append(all, base{
				chain:    Chain{Legacy: true, Family: family, Table: table, Name: words[1], Hook: strings.ToLower(words[1])},
				priority: priority, drops: slices.Contains(words[2:], "DROP"), rules: find,
			})
		case "-A":
			chains[words[1]] = append(chains[words[1]], rule{
				text:     "rule " + strconv.Quote(line),
				outcomes: func(v view) []outcome { return legacyOutcomes(words[2:], v, declared) },
			})
		}
	}
	return all
}

// legacyRule is a rule of iptables being evaluated.
type legacyRule struct {
	view
	condition
	inverted bool // the next option is
}

// legacyOutcomes returns what a rule, in words, does with a packet. declared returns whether a chain exists.
func legacyOutcomes(words []string, v view, declared func(string) bool) []outcome {
	r := legacyRule{view: v, condition: always}
	var target []outcome
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		switch {
		case word == "!":
			r.inverted = true
			continue
		case !strings.HasPrefix(word, "-"):
			continue // an argument of an option that is not evaluated
		}
		n := 0
		if word == "--comment" && len(words) > 0 {
			n = 1 // its text may begin with -
		}
		for n < len(words) && !strings.HasPrefix(words[n], "-") && words[n] != "!" {
			n++
		}
		args := words[:n]
		words = words[n:]
		switch {
		case n > 0 && (word == "-j" || word == "-g"):
			target = legacyTarget(word, args[0], declared)
			words = nil // the rest are options of the target
		default:
			r.option(word, args)
		}
		r.inverted = false
	}
	return r.narrow(target)
}

// legacyTarget returns the effect of a target.
func legacyTarget(option, name string, declared func(string) bool) []outcome {
	o := outcome{condition: always}
	switch {
	case name == "ACCEPT":
		o.action = accepts
	case name == "DROP":
		o.action, o.verb = rejected, "drops"
	case name == "RETURN":
		o.action = returns
	case option == "-g":
		o.action, o.chain = goes, name
	case declared(name):
		o.action, o.chain = jumps, name
	default:
		return targetOf(name)
	}
	return []outcome{o}
}

// require narrows the match of the rule by that of an option. depends is the unknown part of the packet
// that an unknown match tests.
func (r *legacyRule) require(t truth, depends string) {
	if r.inverted {
		t = t.not()
	}
	r.condition.require(t, depends)
}

// legacyParts are the unknown parts of a packet that options depend on which are not evaluated.
var legacyParts = map[string]string{
	"-s": bySource, "-d": bySource, "--mark": byMark,
	"--limit": byRate, "--limit-burst": byRate, "--hashlimit-upto": byRate, "--hashlimit-above": byRate,
}

// option evaluates one option of a rule.
func (r *legacyRule) option(name string, args []string) {
	first := strings.Join(args[:min(1, len(args))], "")
	local, localType := "-d", "--dst-type"
	if r.Reply {
		local, localType = "-s", "--src-type"
	}
	switch name {
	case "-m", "--comment":
		// the options of the match follow
	case local:
		in := unknown
		if p, err := netip.ParsePrefix(first); err == nil {
			in = is(p.Contains(r.Address))
		}
		r.require(in, byOther)
	case "-p":
		r.require(is(slices.Contains(legacyProtocols[r.Protocol], first)), "")
	case "-i", "-o":
		r.require(legacyInterface(first), byInterface)
	case "--sport", "--sports", "--dport", "--dports", "--ports":
		r.require(r.portIn(name, first))
	case "--ctstate", "--state":
		r.require(r.stateIn(legacyStates(first)))
	case localType:
		r.require(is(slices.Contains(strings.Split(first, ","), "LOCAL")), "")
	case "--dst-type", "--src-type":
		r.require(unknown, bySource)
	case "--tcp-flags":
		r.require(r.tcpFlags(args))
	default:
		part, ok := legacyParts[name]
		if !ok {
			part = "the option " + name + " of iptables, which is not evaluated"
		}
		r.require(unknown, part)
	}
}

var legacyProtocols = map[uint8][]string{UDP: {"udp", "17", "all", "0"}, TCP: {"tcp", "6", "all", "0"}}

// legacyInterface returns whether an interface other than lo matches a name; one that ends in + matches all
// names with this prefix.
func legacyInterface(name string) truth {
	switch name {
	case "+":
		return yes
	case "lo":
		return no
	}
	return unknown
}

// portIn returns whether the port of an option is in a list such as 53,1000:2000: --sport, --sports, --dport,
// --dports, or --ports, which stands for either.
func (v view) portIn(option, list string) (truth, string) {
	local := "--dport"
	if v.Reply {
		local = "--sport"
	}
	either := option == "--ports"
	if !either && !strings.HasPrefix(option, local) {
		return unknown, bySourcePort
	}
	in := no
	for part := range strings.SplitSeq(list, ",") {
		low, high, isRange := strings.Cut(part, ":")
		if !isRange {
			high = low
		}
		from, err := strconv.ParseUint(low, 10, 16)
		to, err2 := strconv.ParseUint(high, 10, 16)
		if err != nil || err2 != nil {
			return unknown, byOther
		}
		in = max(in, is(from <= uint64(v.Port) && uint64(v.Port) <= to))
	}
	if either && in == no {
		return unknown, bySourcePort
	}
	return in, ""
}

// legacyStates returns the mask of states such as RELATED,ESTABLISHED.
func legacyStates(list string) (mask uint16) {
	bits := map[string]uint16{"INVALID": stateInvalid, "ESTABLISHED": stateEstablished, "RELATED": stateRelated, "NEW": stateNew, "UNTRACKED": stateUntracked}
	for state := range strings.SplitSeq(list, ",") {
		mask |= bits[state]
	}
	return mask
}

// tcpFlags evaluates two lists of flags: those that are compared, and those of them that have to be set.
func (r *legacyRule) tcpFlags(args []string) (truth, string) {
	if len(args) != 2 {
		return unknown, byHeader
	}
	flags := func(list string) (mask byte) {
		for i, name := range []string{"FIN", "SYN", "RST", "PSH", "ACK", "URG"} {
			if slices.Contains(strings.Split(list, ","), name) {
				mask |= 1 << i
			}
		}
		return mask
	}
	return is(r.flags()&flags(args[0]) == flags(args[1])), ""
}
