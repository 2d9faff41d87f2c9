package index

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// recorded is the file for the history, nil without the variable.
var recorded = openRecord()

func openRecord() *os.File {
	path := os.Getenv("NEARSIDE_RECORD")
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	return f
}

// begun are the changes of the write that has the lock.
var begun []string

// record is called at the begin of a change of the index, with the writers' lock held.
func record(operation, kind string, changed any) {
	if recorded == nil {
		return
	}
	text, err := json.Marshal(plain(changed))
	if err != nil {
		panic(err)
	}
	begun = append(begun, fmt.Sprintf(`"begin":%d,"wall":%d,"operation":%q,"kind":%q,"record":%s`, monotonic(), time.Now().Unix(), operation, kind, text))
}

// recordEnd is called at the end of a write, when readers see its changes and all generations have advanced.
func recordEnd() {
	end := monotonic()
	for _, change := range begun {
		if _, err := fmt.Fprintf(recorded, `{"end":%d,%s}`+"\n", end, change); err != nil {
			panic(err)
		}
	}
	begun = begun[:0]
}

func monotonic() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}

type object map[string]any

// plain returns the fields of a record that the model of the test reads.
func plain(changed any) object {
	switch r := changed.(type) {
	case Name:
		return object{"namespace": r.Namespace, "name": r.Name}
	case string:
		return object{"name": r}
	case *Service:
		o := object{"namespace": r.Namespace, "name": r.Name, "kind": r.Kind, "ips": r.IPs, "target": r.Target, "ports": plainPorts(r.Ports)}
		if r.Topology != nil {
			o["local"], o["distribution"] = r.Topology.Local, r.Topology.Distribution
		}
		return o
	case *Slice:
		var endpoints []object
		for e := range r.All() {
			endpoints = append(endpoints, object{"address": e.Addr, "name": e.Name, "zone": e.Zone.String(), "node": e.Node.String()})
		}
		return object{"namespace": r.Namespace, "name": r.Name, "service": r.Service, "import": r.Import, "cluster": r.Cluster.String(),
			"ports": plainPorts(r.Ports), "endpoints": endpoints}
	case *Pod:
		return object{"namespace": r.Namespace, "name": r.Name, "ips": r.IPs}
	case *Node:
		zone, _ := r.Label(NewSymbol("topology.kubernetes.io/zone"))
		return object{"name": r.Name.String(), "zone": zone.String()}
	}
	panic(fmt.Sprintf("record of %T", changed))
}

func plainPorts(ports []Port) (all []object) {
	for _, p := range ports {
		all = append(all, object{"name": p.Name.String(), "protocol": p.Protocol.String(), "number": p.Number})
	}
	return all
}
