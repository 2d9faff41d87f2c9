package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// outcome is the result of a load: how many queries were answered, and which were lost.
type outcome struct {
	Sent     int
	Answered int
	Lost     []lost
}

// lost is a query without an answer, or with an answer other than NOERROR with a record.
type lost struct {
	Sent time.Time
	Why  string
}

// loads are the running loads, by their ids.
type loads struct {
	mu      sync.Mutex
	running map[string]*load
}

// load sends queries at a steady rate.
type load struct {
	end     chan struct{}
	queries sync.WaitGroup

	mu  sync.Mutex
	got outcome
}

func (l *loads) start(r *http.Request) (string, error) {
	q, err := read(r)
	if err != nil {
		return "", err
	}
	rate, err := strconv.Atoi(r.FormValue("rate"))
	if err != nil || rate < 1 || rate > 1000 {
		return "", fmt.Errorf("rate %q is not from 1 to 1000", r.FormValue("rate"))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	id := r.PathValue("id")
	if l.running[id] != nil {
		return "", fmt.Errorf("load %s is running", id)
	}
	started := &load{end: make(chan struct{})}
	l.running[id] = started
	started.queries.Go(func() { started.send(q, time.Second/time.Duration(rate)) })
	return "", nil
}

// send starts a query at each time of the schedule, also while earlier ones wait for their answers.
func (l *load) send(q question, pause time.Duration) {
	start := time.Now()
	for i := 0; ; i++ {
		select {
		case <-l.end:
			return
		case <-time.After(time.Until(start.Add(time.Duration(i) * pause))):
		}
		next := q
		next.name = strings.ReplaceAll(q.name, "#", strconv.Itoa(i))
		l.queries.Go(func() { l.query(next) })
	}
}

func (l *load) query(q question) {
	sent := time.Now()
	reply, err := q.exchange()
	switch {
	case err != nil:
	case reply.Rcode != dns.RcodeSuccess:
		err = errors.New(dns.RcodeToString[reply.Rcode])
	case len(reply.Answer) == 0:
		err = errors.New("no record")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.got.Sent++
	if err == nil {
		l.got.Answered++
		return
	}
	l.got.Lost = append(l.got.Lost, lost{Sent: sent, Why: err.Error()})
}

func (l *loads) stop(r *http.Request) (string, error) {
	id := r.PathValue("id")
	l.mu.Lock()
	ended := l.running[id]
	delete(l.running, id)
	l.mu.Unlock()
	if ended == nil {
		return "", fmt.Errorf("no load %s is running", id)
	}
	close(ended.end)
	ended.queries.Wait()
	ended.mu.Lock()
	defer ended.mu.Unlock()
	text, err := json.Marshal(ended.got)
	return string(text), err
}
