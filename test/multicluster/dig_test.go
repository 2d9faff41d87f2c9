//go:build linux

package multicluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// bounded limits the wait for an event that is due soon, on a busy machine.
const bounded = 60 * time.Second

// question is a question for dig.
type question struct{ name, qtype string }

// reply is dig's output of a reply.
type reply kit.DigReply

// asking is the destination of queries, an address and port, with options of dig.
type asking struct {
	address string
	options []string
}

// at returns queries to a server without additions. A cookie, which dig would add, prevents the fast path.
func at(address string) asking { return asking{address: address} }

// with returns the same with further options of dig.
func (a asking) with(options ...string) asking {
	a.options = append(slices.Clone(a.options), options...)
	return a
}

func (a asking) String() string {
	return strings.TrimSpace(fmt.Sprintf("dig @%s %s", a.address, strings.Join(a.options, " ")))
}

// as adds the option with the caller's node and, if set, its zone, as nodecache does: see the README of kubernetes.
func (a asking) as(node, zone string) asking {
	if node == "" {
		return a
	}
	data := fmt.Sprintf("01%02x%x", len(node), node)
	if zone != "" {
		data += fmt.Sprintf("%02x%x", len(zone), zone)
	}
	return a.with("+ednsopt=65313:" + data)
}

// ask runs one dig for all questions. A question without a reply is an error.
func (a asking) ask(questions ...question) ([]reply, error) {
	host, port, err := net.SplitHostPort(a.address)
	if err != nil {
		return nil, err
	}
	args := append([]string{"@" + host, "-p", port, "+nocookie", "+tries=2", "+time=10"}, a.options...)
	for _, q := range questions {
		args = append(args, q.name, q.qtype)
	}
	ctx, cancel := context.WithTimeout(context.Background(), bounded)
	defer cancel()
	out, err := exec.CommandContext(ctx, "dig", args...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%v: %w: %s", a, err, out)
	}
	var replies []reply
	for _, r := range kit.ParseDig(string(out)) {
		replies = append(replies, reply(r))
	}
	if len(replies) != len(questions) {
		return nil, fmt.Errorf("%v: %d replies to %d questions:\n%s", a, len(replies), len(questions), out)
	}
	return replies, nil
}

// String returns the data of the answer, sorted; of SRV the port and the target alone. Without an answer it is NODATA or
// the code: a negative reply must have an SOA record (RFC 2308 section 3).
func (r reply) String() string {
	if len(r.Answer) == 0 {
		negative := r.Status == "NOERROR" || r.Status == "NXDOMAIN"
		switch soa := len(r.Authority) == 1 && r.Authority[0].Type == "SOA"; {
		case negative && !soa:
			return r.Status + " without SOA"
		case r.Status == "NOERROR":
			return "NODATA"
		}
		return r.Status
	}
	var all []string
	for _, rr := range r.Answer {
		data := rr.Data
		if rr.Type == "SRV" {
			data = strings.Join(strings.Fields(data)[2:], " ")
		}
		all = append(all, data)
	}
	slices.Sort(all)
	text := strings.Join(all, ", ")
	if r.Status != "NOERROR" {
		text = r.Status + " " + text
	}
	return text
}

// wish is a question and the wanted reply, in the form of its String.
type wish struct{ name, qtype, reply string }

// answer is a wish for data.
func answer(name, qtype string, data ...string) wish {
	slices.Sort(data)
	return wish{name, qtype, strings.Join(data, ", ")}
}

// check sends queries, and returns the replies that are not as wanted.
func (a asking) check(all ...wish) error {
	var questions []question
	for _, w := range all {
		questions = append(questions, question{w.name, w.qtype})
	}
	replies, err := a.ask(questions...)
	for i, r := range replies {
		if got := r.String(); got != all[i].reply {
			err = errors.Join(err, fmt.Errorf("%v %s %s: got %q, want %q", a, all[i].name, all[i].qtype, got, all[i].reply))
		}
	}
	return err
}

// want fails the test unless all replies are as wanted: over UDP, over TCP, and over UDP again, from the cache.
func (a asking) want(t *testing.T, all ...wish) {
	t.Helper()
	for _, option := range []string{"+notcp", "+tcp", "+notcp"} {
		if err := a.with(option).check(all...); err != nil {
			t.Error(err)
		}
	}
}

// await waits until all replies are as wanted, and checks that they stay so.
func (a asking) await(t *testing.T, what string, all ...wish) {
	t.Helper()
	kit.Succeeds(t, bounded, what, func() error { return a.check(all...) })
	a.want(t, all...)
}

// digEvery is the pause between two background runs of dig: each costs as much as thousands of answers.
const digEvery = 100 * time.Millisecond

// steadily queries a server until the returned function is called, and fails the test if a reply is not as wanted.
func (a asking) steadily(t *testing.T, all ...wish) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int)
	go func() {
		rounds := 0
		for ; ctx.Err() == nil && !t.Failed(); rounds++ {
			time.Sleep(digEvery)
			if err := a.check(all...); err != nil {
				t.Errorf("meanwhile: %v", err)
			}
		}
		done <- rounds
	}()
	return func() {
		t.Helper()
		cancel()
		if rounds := <-done; rounds < 3 && !t.Failed() {
			t.Errorf("%v was asked %d times only", a, rounds)
		}
	}
}
