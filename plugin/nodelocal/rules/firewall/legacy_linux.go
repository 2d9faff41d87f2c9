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

// legacyTables are the tables of iptables that filter.
var legacyTables = []string{"raw", "mangle", "filter", "security"}

// legacyBases returns the chains of iptables-legacy that hooks call.
func legacyBases(ctx context.Context) (all []base, err error) {
	found, err := rules.OpenLegacy(ctx)
	for _, l := range found {
		for _, name := range l.Tables {
			if slices.Contains(legacyTables, name) {
				text, unread := l.List(ctx, name)
				err = errors.Join(err, unread)
				all = append(all, legacyTable(l.Family, name, text)...)
			}
		}
	}
	return all, err
}

// legacyTable reads a table as "iptables -S" prints it.
func legacyTable(family, table, text string) (all []base) {
	chains := map[string][]rule{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		words := rules.SplitWords(line)
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "-P":
			all = append(all, base{
				Chain: Chain{Legacy: true, Family: family, Table: table, Name: words[1], Hook: strings.ToLower(words[1])},
				drops: slices.Contains(words[2:], "DROP"),
				rules: func(name string) ([]rule, error) { return chains[name], nil },
			})
		case "-A":
			chains[words[1]] = append(chains[words[1]], rule{"rule " + strconv.Quote(line), func(p Packet) (match, []verdict) { return p.readLegacy(words[2:]) }})
		}
	}
	return all
}

// readLegacy reads the words of a rule. A target that is neither known nor a chain has no effect.
func (p Packet) readLegacy(words []string) (m match, verdicts []verdict) {
	m = always
	for i := 0; i < len(words); i++ {
		argument := ""
		if i+1 < len(words) {
			argument = words[i+1]
		}
		switch word := words[i]; {
		case word == "-m" || word == "--comment": // a comment may be anything
			i++
		case word == "-g":
			return m, []verdict{{goes, argument}}
		case word == "-j": // the options of the target follow
			targets := map[string]action{"ACCEPT": accepts, "DROP": drops, "REJECT": rejects, "RETURN": returns}
			if a, known := targets[argument]; known {
				return m, []verdict{{action: a}}
			}
			return m, []verdict{{jumps, argument}}
		case word == "!":
			m = min(m, maybe)
			i++ // the inverted option
		case strings.HasPrefix(word, "-"):
			m = min(m, p.legacyTest(word, argument))
		}
	}
	return m, nil
}

// legacyTest returns whether an option with its argument applies to a packet.
func (p Packet) legacyTest(option, argument string) match {
	switch option {
	case "-d":
		if network, err := netip.ParsePrefix(argument); err == nil {
			return is(network.Contains(p.To.Addr()))
		}
	case "-p":
		names := map[uint8][]string{UDP: {"udp", "17"}, TCP: {"tcp", "6"}}
		return is(slices.Contains(names[p.Protocol], argument))
	case "--dport":
		if !strings.Contains(argument, ":") { // a range
			return is(argument == strconv.Itoa(int(p.To.Port())))
		}
	case "--ctstate", "--state":
		if !strings.Contains(argument, "NEW") && !strings.Contains(argument, "UNTRACKED") {
			return never
		}
	}
	return maybe
}
