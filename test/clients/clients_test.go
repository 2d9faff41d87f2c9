//go:build linux

package clients

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/netns"
)

// client is a program that resolves names.
type client struct {
	name string
	// programs are those that it needs, by name or path.
	programs []string
	// options are the options of resolv.conf for a client that reads that file.
	options []string
	// types are the types of its questions; nil are all but ADDRESSES.
	types []string
	// hidesAliases is set if the client does not print the CNAME records of a chain.
	hidesAliases bool
	// partial is set if the client uses a part of a reply with more than limit() records.
	partial bool
	// sends is the expectation of its queries, which pass a recorder, if it is not nil.
	sends expectation
	// run sends the questions to a server, and returns the replies.
	run func(t *testing.T, n *netns.Namespace, server string, all []question) []reply
}

// limit is the number of records that fit into a UDP reply of 512 bytes.
func (c client) limit() int { return 512 / 16 }

// asks reports whether the client can be given a question.
func (c client) asks(q question) bool {
	if c.types == nil {
		return q.qtype != "ADDRESSES"
	}
	return slices.Contains(c.types, q.qtype)
}

// TestClients compares the output of each client with the records of the cluster.
func TestClients(t *testing.T) {
	n := start(t)
	for _, c := range append(slices.Concat(tools(), languages(t)), resolved()) {
		t.Run(c.name, func(t *testing.T) {
			netns.Require(t, c.programs...)
			var checks []check
			var all []question
			for _, q := range questions() {
				if c.asks(q.question) {
					checks, all = append(checks, q), append(all, q.question)
				}
			}
			if len(all) == 0 {
				t.Fatal("no questions")
			}
			line := fmt.Sprintf("| %s | %s | %d |", c.name, version(t, c.name), len(all))
			for _, s := range servers {
				line += " as wanted |" // the page is written only if all tests pass
				t.Run(s.name, func(t *testing.T) {
					got := c.ask(t, n, s.address, all)
					if len(got) != len(all) {
						t.Fatalf("%d replies to %d questions", len(got), len(all))
					}
					for i, q := range checks {
						c.verify(t, q, got[i])
					}
				})
			}
			page.clients = append(page.clients, line)
		})
	}
}

// ask runs the client with a server, and compares its queries with what is expected of them.
func (c client) ask(t *testing.T, n *netns.Namespace, server string, all []question) []reply {
	t.Helper()
	if c.sends == nil {
		resolvConf(t, n, server, c.options...)
		return c.run(t, n, server, all)
	}
	r := record(t, n, server)
	resolvConf(t, n, recorderIP, c.options...)
	replies := c.run(t, n, recorderIP, all)
	queries := r.stop(t)
	if len(queries) < len(all) {
		t.Errorf("%d queries for %d questions", len(queries), len(all))
	}
	if err := c.sends(queries); err != nil {
		t.Error(err)
	}
	return replies
}

// TestEDNS runs ldns-test-edns, which prints whether a server supports EDNS.
func TestEDNS(t *testing.T) {
	n := start(t)
	netns.Require(t, "ldns-test-edns")
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			out := n.Run(t, "ldns-test-edns", s.address)
			if fields := strings.Fields(out); len(fields) < 2 || fields[len(fields)-1] != "OK" {
				t.Errorf("ldns-test-edns %s: %q, want OK", s.address, out)
			}
			page.edns = append(page.edns, fmt.Sprintf("- %s: `%s`", s.name, strings.TrimSpace(out)))
		})
	}
}
