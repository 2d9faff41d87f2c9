package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// resolvConf is the file that the kubelet writes.
const resolvConf = "/etc/resolv.conf"

// queryTimeout is the wait for an answer. Then the query is lost: it is not repeated. It is longer than the five seconds
// of resolvers, so that a slow machine is no loss.
const queryTimeout = 15 * time.Second

func newHandler() http.Handler {
	mux := http.NewServeMux()
	loads := &loads{running: map[string]*load{}}
	for pattern, f := range map[string]func(*http.Request) (string, error){
		"GET /resolv.conf": func(*http.Request) (string, error) {
			text, err := os.ReadFile(resolvConf)
			return string(text), err
		},
		"GET /lookup":       lookup,
		"GET /ask":          ask,
		"POST /load/{id}":   loads.start,
		"DELETE /load/{id}": loads.stop,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			text, err := f(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
			fmt.Fprint(w, text)
		})
	}
	return mux
}

// lookup resolves a name as a program written in Go does.
func lookup(r *http.Request) (string, error) {
	name := r.FormValue("name")
	var found []string
	var err error
	switch r.FormValue("kind") {
	case "":
		found, err = net.DefaultResolver.LookupHost(r.Context(), name)
	case "addr":
		found, err = net.DefaultResolver.LookupAddr(r.Context(), name)
	case "srv":
		var all []*net.SRV
		_, all, err = net.DefaultResolver.LookupSRV(r.Context(), "", "", name)
		for _, s := range all {
			found = append(found, fmt.Sprintf("%s:%d", s.Target, s.Port))
		}
	default:
		err = fmt.Errorf("unknown kind %q", r.FormValue("kind"))
	}
	return strings.Join(found, " "), err
}

// question is a query and its server.
type question struct {
	server, network, name string
	kind                  uint16
}

// read reads a question from the parameters of a request.
func read(r *http.Request) (question, error) {
	q := question{network: "udp", name: dns.Fqdn(r.FormValue("name")), kind: dns.TypeA, server: r.FormValue("server")}
	if q.server == "" {
		config, err := dns.ClientConfigFromFile(resolvConf)
		if err != nil {
			return question{}, err
		}
		if len(config.Servers) == 0 {
			return question{}, errors.New("no server in " + resolvConf)
		}
		q.server = config.Servers[0]
	}
	if _, _, err := net.SplitHostPort(q.server); err != nil {
		q.server = net.JoinHostPort(q.server, "53")
	}
	if n := r.FormValue("network"); n != "" {
		q.network = n
	}
	if t := r.FormValue("type"); t != "" {
		kind, known := dns.StringToType[t]
		if !known {
			return question{}, fmt.Errorf("unknown type %q", t)
		}
		q.kind = kind
	}
	return q, nil
}

// exchange sends one query, from a new port.
func (q question) exchange() (*dns.Msg, error) {
	client := &dns.Client{Net: q.network, Timeout: queryTimeout}
	reply, _, err := client.Exchange(new(dns.Msg).SetQuestion(q.name, q.kind), q.server)
	return reply, err
}

// ask sends one query. The text is the response code, then a line for each record of the answer, without class and TTL.
func ask(r *http.Request) (string, error) {
	q, err := read(r)
	if err != nil {
		return "", err
	}
	reply, err := q.exchange()
	if err != nil {
		return "", err
	}
	lines := []string{dns.RcodeToString[reply.Rcode]}
	for _, record := range reply.Answer {
		data := strings.TrimPrefix(record.String(), record.Header().String())
		lines = append(lines, fmt.Sprintf("%s %s %s", record.Header().Name, dns.TypeToString[record.Header().Rrtype], data))
	}
	return strings.Join(lines, "\n"), nil
}
