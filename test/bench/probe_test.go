package main

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestProbe probes a server that does not answer one query, and delays another.
func TestProbe(t *testing.T) {
	const queries, delay = 40, 20 * time.Millisecond
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		b := make([]byte, 512)
		for i := 0; ; i++ {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			switch i {
			case 3:
				continue
			case 5:
				time.Sleep(delay)
			}
			_, _ = conn.WriteTo(b[:n], from)
		}
	}()
	address, _ := conn.LocalAddr().(*net.UDPAddr)
	var out strings.Builder
	job := fmt.Sprintf(`{"Port": %d, "Name": "a.example.", "Queries": %d}`, address.Port, queries)
	if err := serveProbe(job, &out); err != nil {
		t.Fatal(err)
	}
	var latencies []time.Duration
	if err := json.Unmarshal([]byte(out.String()), &latencies); err != nil {
		t.Fatal(err)
	}
	if len(latencies) != queries || !slices.IsSorted(latencies) || latencies[queries-1] < delay || latencies[queries-1] > time.Second {
		t.Errorf("latencies %v", latencies)
	}
}
