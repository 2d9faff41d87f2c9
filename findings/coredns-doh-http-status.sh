#!/usr/bin/env bash
# CoreDNS v1.15.0, plugin forward with an upstream over HTTPS (RFC 8484): the HTTP status of a reply has no effect.
#
# One expects a reply with 503 to be an error that names the status, since its body is no DNS message (RFC 8484 section 4.2.1: only
# a 2xx status carries the result of the query). Instead:
# 1. The page of a proxy before the DoH server is unpacked as a DNS message. The logged error is one of the DNS parser, which points
#    to a damaged answer; the status is nowhere.
# 2. If the body of a 503 happens to be a DNS message, it is the client's answer, with NOERROR.
#
# Needs Go. It sends to loopback only, and exits with 0 while CoreDNS behaves so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
cd -- "$work"
cat >go.mod <<'MOD'
module finding

go 1.26

require (
	github.com/coredns/coredns v1.15.0
	github.com/miekg/dns v1.1.73
)
MOD
mkdir server check
cat >server/main.go <<'GO'
// CoreDNS with the plugins of this finding.
package main

import (
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
)

func main() { coremain.Run() }
GO
cat >check/main.go <<'GO'
// Queries CoreDNS, whose upstream is an HTTPS server of this program that answers each request with 503.
package main

import (
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/miekg/dns"
)

func reply(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		log.Fatal(err)
	}
	var query dns.Msg
	if err := query.Unpack(body); err != nil {
		log.Fatal(err)
	}
	if query.Question[0].Name != "message.example." {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, "<html><body>503 Service Unavailable: no backend is ready</body></html>")
		return
	}
	address, err := dns.NewRR("message.example. 60 IN A 192.0.2.1")
	if err != nil {
		log.Fatal(err)
	}
	answer := new(dns.Msg).SetReply(&query)
	answer.Answer = []dns.RR{address}
	packed, err := answer.Pack()
	if err != nil {
		log.Fatal(err)
	}
	w.Header().Set("Content-Type", "application/dns-message")
	w.WriteHeader(http.StatusServiceUnavailable)
	w.Write(packed)
}

func main() {
	upstream := httptest.NewUnstartedServer(http.HandlerFunc(reply))
	upstream.EnableHTTP2 = true
	upstream.StartTLS()
	defer upstream.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: upstream.Certificate().Raw})
	free, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	address := free.LocalAddr().String()
	free.Close()
	_, port, _ := net.SplitHostPort(address)
	corefile := fmt.Sprintf(".:%s {\n bind 127.0.0.1\n errors\n forward . %s {\n  tls ca.pem\n  tls_servername example.com\n  max_fails 0\n }\n}\n", port, upstream.URL)
	for name, text := range map[string]string{"ca.pem": string(ca), "Corefile": corefile} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			log.Fatal(err)
		}
	}
	var out strings.Builder
	coredns := exec.Command("./coredns", "-conf", "Corefile")
	coredns.Stdout, coredns.Stderr = &out, &out
	if err := coredns.Start(); err != nil {
		log.Fatal(err)
	}
	query := func(name string) *dns.Msg {
		client := dns.Client{Timeout: 8 * time.Second}
		for range 50 {
			if m, _, err := client.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), address); err == nil {
				return m
			}
			time.Sleep(100 * time.Millisecond) // it is starting
		}
		log.Fatalf("no answer to %s", name)
		return nil
	}
	page, message := query("page.example."), query("message.example.")
	coredns.Process.Kill()
	coredns.Wait()
	logged := ""
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, "page.example.") {
			logged = strings.TrimSpace(line)
		}
	}
	fmt.Printf("503 with a page of HTML: %s; logged: %s\n", dns.RcodeToString[page.Rcode], logged)
	fmt.Printf("503 with a DNS message:  %s %v\n", dns.RcodeToString[message.Rcode], message.Answer)
	if page.Rcode != dns.RcodeServerFailure || logged == "" || strings.Contains(logged, "503") || !strings.Contains(logged, ": dns: ") {
		log.Fatal("CHANGED: the error has the HTTP status, or the page is no error")
	}
	if message.Rcode != dns.RcodeSuccess || len(message.Answer) != 1 {
		log.Fatal("CHANGED: the message of a 503 is not the client's answer")
	}
}
GO
export GOFLAGS=-mod=mod GOWORK=off
go mod tidy >/dev/null 2>tidy.log || { cat tidy.log; exit 1; }
echo "coredns $(go list -m -f '{{.Version}}' github.com/coredns/coredns)"
go build -o coredns ./server
go run ./check
