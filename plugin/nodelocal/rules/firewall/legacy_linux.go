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
func legacyBases(ctx context.Context, procNet string) (all []base, err error) {
	tables, err := rules.OpenLegacy(ctx, procNet)
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
	match   truth
	depends []string
	not     bool // the next option is inverted
}

// legacyOutcomes evaluates the words of a rule. declared returns whether there is a chain of a name.
func legacyOutcomes(words []string, v view, declared func(string) bool) []outcome {
	r := legacyRule{view: v, match: yes}
	var target []outcome
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		switch {
		case word == "!":
			r.not = true
			continue
		case !strings.HasPrefix(word, "-"):
			continue // an argument of something that is not evaluated
		}
		n := 0
		if word == "--comment" && len(words) > 0 {
			n = 1 // whatever it begins with
		}
		for n < len(words) && !strings.HasPrefix(words[n], "-") && words[n] != "!" {
			n++
		}
		args := words[:n]
		words = words[n:]
		switch {
		case n > 0 && (word == "-j" || word == "-g"):
			target = legacyTarget(word, args[0], declared)
			words = nil // the rest belongs to the target, and what is behind it in print is not a match
		default:
			r.option(word, args)
		}
		r.not = false
	}
	for i := range target {
		target[i].match = min(target[i].match, r.match)
		target[i].depends = slices.Concat(r.depends, target[i].depends)
	}
	return target
}

// legacyTarget returns what a target does.
func legacyTarget(option, name string, declared func(string) bool) []outcome {
	switch {
	case name == "ACCEPT":
		return []outcome{{match: yes, action: accepts}}
	case name == "DROP":
		return []outcome{{match: yes, action: rejected, verb: "drops"}}
	case name == "RETURN":
		return []outcome{{match: yes, action: returns}}
	case option == "-g":
		return []outcome{{match: yes, action: goes, chain: name}}
	case declared(name):
		return []outcome{{match: yes, action: jumps, chain: name}}
	}
	return targetOf(name)
}

// require narrows the match of the rule.
func (r *legacyRule) require(t truth, depends string) {
	if r.not {
		t = t.not()
	}
	if t == unknown {
		r.depends = append(r.depends, depends)
	}
	r.match = min(r.match, t)
}

// option evaluates one option of a rule.
func (r *legacyRule) option(name string, args []string) {
	first := ""
	if len(args) > 0 {
		first = args[0]
	}
	local, localPorts := "-d", []string{"--dport", "--dports"}
	if r.packet.Reply {
		local, localPorts = "-s", []string{"--sport", "--sports"}
	}
	switch name {
	case "-m", "--comment":
		// the options of the match follow
	case local:
		p, err := netip.ParsePrefix(first)
		r.known(err == nil && p.Contains(r.packet.Address), err)
	case "-s", "-d":
		r.require(unknown, bySource)
	case "-p":
		r.require(is(slices.Contains(legacyProtocols[r.packet.Protocol], first)), "")
	case "-i", "-o":
		r.require(legacyInterface(first), byInterface)
	case localPorts[0], localPorts[1], "--ports":
		in, err := inPorts(first, r.packet.Port)
		if name == "--ports" && !in {
			r.require(unknown, bySourcePort)
			return
		}
		r.known(in, err)
	case "--sport", "--dport", "--sports", "--dports":
		r.require(unknown, bySourcePort)
	case "--ctstate", "--state":
		r.require(r.stateIn(legacyStates(first)))
	case "--dst-type", "--src-type":
		if (name == "--dst-type") == r.packet.Reply {
			r.require(unknown, bySource)
			return
		}
		r.require(is(slices.Contains(strings.Split(first, ","), "LOCAL")), "")
	case "--mark":
		r.require(unknown, byMark)
	case "--limit", "--limit-burst", "--hashlimit-upto", "--hashlimit-above":
		r.require(unknown, byRate)
	case "--tcp-flags":
		r.require(r.tcpFlags(args))
	default:
		r.require(unknown, "the option "+name+" of iptables, which is not evaluated")
	}
}

// known adds the result of a match to the conditions of the rule; with an error the result is unknown.
func (r *legacyRule) known(match bool, err error) {
	if err != nil {
		r.require(unknown, byOther)
		return
	}
	r.require(is(match), "")
}

var legacyProtocols = map[uint8][]string{UDP: {"udp", "17", "all", "0"}, TCP: {"tcp", "6", "all", "0"}}

// legacyInterface returns whether an interface other than lo has a name, which ends in + for all that
// begin so.
func legacyInterface(name string) truth {
	prefix, all := strings.CutSuffix(name, "+")
	switch {
	case all && prefix == "":
		return yes
	case all && prefix == "lo", !all && name == "lo":
		if all {
			return unknown
		}
		return no
	}
	return unknown
}

// inPorts returns whether a list such as 53,1000:2000 has a port.
func inPorts(list string, port uint16) (in bool, err error) {
	for part := range strings.SplitSeq(list, ",") {
		low, high, isRange := strings.Cut(part, ":")
		if !isRange {
			high = low
		}
		from, err := strconv.ParseUint(low, 10, 16)
		if err != nil {
			return false, err
		}
		to, err := strconv.ParseUint(high, 10, 16)
		if err != nil {
			return false, err
		}
		in = in || uint64(port) >= from && uint64(port) <= to
	}
	return in, nil
}

// legacyStates returns the mask of states such as RELATED,ESTABLISHED.
func legacyStates(list string) (mask uint16) {
	bits := map[string]uint16{"INVALID": xtInvalid, "ESTABLISHED": xtEstablished, "RELATED": xtRelated, "NEW": xtNew, "UNTRACKED": xtUntracked}
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
	return is(r.packet.flags()&flags(args[0]) == flags(args[1])), ""
}
