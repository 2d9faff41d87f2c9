#!/usr/bin/env bash
# client-go v0.37.1: Watch returns no error if the connection ends before the response, but a watch that has ended.
#
# One expects Watch to fail with EOF, as Get does and as Watch does after "connection refused". It returns nil, and a watch whose channel is
# closed: an API server that is away looks like one that has answered and ended the watch at once. A program that counts open watches, or the
# time without one, counts this one. It is so with retries, of which the default is ten, and without.
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
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

func main() {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		requests.Add(1)
		panic(http.ErrAbortHandler) // ends the connection
	}))
	defer server.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	closed.Close()
	core := func(host string) *rest.RESTClient {
		c := &rest.Config{Host: host, APIPath: "/api"}
		c.GroupVersion, c.NegotiatedSerializer = &metav1.Unversioned, scheme.Codecs.WithoutConversion()
		client, err := rest.RESTClientFor(c)
		if err != nil {
			log.Fatal(err)
		}
		return client
	}
	ctx := context.Background()
	get := func(c *rest.RESTClient) error {
		return c.Get().Resource("namespaces").MaxRetries(0).Do(ctx).Error()
	}
	watch := func(c *rest.RESTClient, retries int) (closed bool, err error) {
		w, err := c.Get().Resource("namespaces").MaxRetries(retries).Watch(ctx)
		if err != nil {
			return false, err
		}
		select {
		case _, open := <-w.ResultChan():
			return !open, nil
		case <-time.After(time.Second):
			return false, nil
		}
	}
	ends, refused := core(server.URL), core("http://"+closed.Addr().String())
	getEnds := get(ends)
	_, watchRefused := watch(refused, 0)
	fmt.Printf("Get, the connection ends: error %v\nWatch, the connection is refused: error %v\n", getEnds, watchRefused)
	changed := getEnds == nil || watchRefused == nil
	for _, retries := range []int{0, 10} {
		requests.Store(0)
		ended, err := watch(ends, retries)
		fmt.Printf("Watch, the connection ends, %d retries: %d requests, error %v, its channel is closed: %v\n", retries, requests.Load(), err, ended)
		changed = changed || err != nil || !ended
	}
	if changed {
		log.Fatal("CHANGED")
	}
}
GO
export GOFLAGS=-mod=mod GOWORK=off
go mod tidy >/dev/null 2>tidy.log || { cat tidy.log; exit 1; }
echo "client-go $(go list -m -f '{{.Version}}' k8s.io/client-go)"
go run .
