#!/usr/bin/env bash
# client-go v0.37.1: QPS and Burst of rest.Config, "the maximum QPS to the master from this client", do not count watches.
#
# One expects a client with QPS 1 and Burst 1 to send one request a second, whatever its verb. Its first attempts at watches pass no
# limiter, so that 100 watches, which the server ends at once as it may (HTTP 200 and the end of the stream), are sent within less
# than a second, where 3 gets take two seconds. A controller with low limits, on every node of a cluster, can still send hundreds of
# watches a second each if its server or a proxy ends them early.
#
# Needs Go. It sends to loopback only, and exits with 0 while client-go behaves so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
cd -- "$work"
cat >go.mod <<'MOD'
module finding

go 1.26

require k8s.io/client-go v0.37.1
MOD
cat >main.go <<'GO'
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func main() {
	var watches, gets atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") != "" {
			watches.Add(1)
			return
		}
		gets.Add(1)
		fmt.Fprint(w, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"a"}}`)
	}))
	defer server.Close()
	clients, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: 1, Burst: 1})
	if err != nil {
		log.Fatal(err)
	}
	namespaces := clients.CoreV1().Namespaces()
	ctx := context.Background()
	took := func(n int, send func() error) time.Duration {
		began := time.Now()
		for range n {
			if err := send(); err != nil {
				log.Fatal(err)
			}
		}
		return time.Since(began)
	}
	watching := took(100, func() error {
		w, err := namespaces.Watch(ctx, metav1.ListOptions{})
		if err == nil {
			w.Stop()
		}
		return err
	})
	getting := took(3, func() error {
		_, err := namespaces.Get(ctx, "a", metav1.GetOptions{})
		return err
	})
	fmt.Printf("QPS 1, Burst 1: %d watches in %.1f s, %d gets in %.1f s\n", watches.Load(), watching.Seconds(), gets.Load(), getting.Seconds())
	if watches.Load() != 100 || watching > 10*time.Second {
		log.Fatal("CHANGED: watches are limited")
	}
	if gets.Load() != 3 || getting < 1900*time.Millisecond {
		log.Fatal("CHANGED: gets are not limited")
	}
}
GO
export GOFLAGS=-mod=mod GOWORK=off
go mod tidy >/dev/null 2>tidy.log || { cat tidy.log; exit 1; }
echo "client-go $(go list -m -f '{{.Version}}' k8s.io/client-go)"
go run .
