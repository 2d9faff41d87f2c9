package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Engine is a program that enforces network policies by packet filters of the node. The filters are behind the program at the
// pod's interface, and do not process the packets that it answers.
type Engine struct {
	Name  string // such as "Calico"
	Place string // of the packet filter, such as "chain cali-FORWARD of table ip filter"
}

// String returns the engine in a few words, "" for none.
func (e Engine) String() string {
	if e == (Engine{}) {
		return ""
	}
	return fmt.Sprintf("%s (%s)", e.Name, e.Place)
}

// engines are the policy engines, by the prefixes of the names of their chains and by the names of their tables in nftables.
var engines = []struct {
	name   string
	chains []string
	tables []string
}{
	{"Calico", []string{"cali-"}, []string{"calico"}},                              // and Canal
	{"kube-router", []string{"KUBE-ROUTER-", "KUBE-NWPLCY-", "KUBE-POD-FW-"}, nil}, // and k3s
	{"kube-network-policies", nil, []string{"kube-network-policies", "kindnet-network-policies"}},
	// The agent attaches programs to each pod's interface while the pod starts. Its chains exist before.
	{"Cilium", []string{"CILIUM_"}, nil},
	{"Antrea", []string{"ANTREA-"}, nil},
	{"Weave Net", []string{"WEAVE-NPC"}, nil},
	{"Azure Network Policy Manager", []string{"AZURE-NPM"}, nil},
	{"Romana", []string{"ROMANA-"}, nil},
}

// engineOf returns the engine of a chain, none for a chain of another program.
func engineOf(family, table, chain string) Engine {
	for _, e := range engines {
		for _, prefix := range e.chains {
			if strings.HasPrefix(chain, prefix) {
				return Engine{e.name, fmt.Sprintf("chain %s of table %s %s", chain, family, table)}
			}
		}
		for _, name := range e.tables {
			if table == name {
				return Engine{e.name, fmt.Sprintf("table %s %s of nftables", family, table)}
			}
		}
	}
	return Engine{}
}

// FindEngine returns the policy engine of the node, none without one. It reads nftables, iptables-legacy and the netfilter
// queues. It returns an error if one of these cannot be read, and the others have no engine.
func FindEngine() (Engine, error) {
	var all error
	for _, find := range []func() (Engine, error){tablesEngine, legacyEngine, queueEngine} {
		e, err := find()
		if e != (Engine{}) {
			return e, nil
		}
		all = errors.Join(all, err)
	}
	return Engine{}, all
}

// procNet is the folder with the files of the thread's network namespace.
const procNet = "/proc/thread-self/net"

// queueEngine returns the process that decides on packets of a netfilter queue. The queue of kube-network-policies has number 100
// by default.
func queueEngine() (Engine, error) {
	text, err := os.ReadFile(filepath.Join(procNet, "netfilter", "nfnetlink_queue"))
	switch {
	case errors.Is(err, fs.ErrNotExist): // the kernel has no queues
		return Engine{}, nil
	case err != nil:
		return Engine{}, &KernelError{"list netfilter queues", err}
	}
	if fields := strings.Fields(string(text)); len(fields) > 0 {
		return Engine{"a process that filters packets", "netfilter queue " + fields[0]}, nil
	}
	return Engine{}, nil
}

// policy is the last known policy engine.
type policy struct {
	engine Engine
	read   time.Time // when all packet filters were read, the zero time before
	due    time.Time
}

func (p policy) String() string { return p.engine.String() }

func (f *follower) policyDue(now time.Time) bool { return !now.Before(f.policy.due) }

// readPolicy reads the policy engine of the node, logs a change and reports it.
func (f *follower) readPolicy() (changed bool) {
	const (
		share   = 1000            // at most 1/1000 of a processor for reading
		trusted = 2 * time.Minute // how long the last reading without an engine counts while readings fail
	)
	start := f.options.now()
	engine, err := f.options.findEngine()
	now := f.options.now()
	f.policy.due = now.Add(min(max(now.Sub(start)*share, f.options.tick), f.options.policyPause))
	switch {
	case err == nil:
		f.policy.read = now
	case f.policy.engine != (Engine{}) && !f.policy.read.IsZero() || now.Sub(f.policy.read) < trusted:
		f.logRarely("packet filters", "The packet filters of the node cannot be read, and are retried in %s; the last known policy engine is %q: %v", f.options.policyPause, f.policy, err)
		return false
	default:
		engine = Engine{"An unknown policy engine", err.Error()}
	}
	before := f.policy.engine
	if f.policy.engine = engine; before.Name == engine.Name {
		return false
	}
	switch {
	case engine == (Engine{}):
		f.options.Log("No policy engine has packet filters on this node any longer: the kernel answers")
	case f.options.Force:
		f.options.Log("The kernel answers with %s on this node: network policies do not apply to the queries that it answers, since \"kernel force\" is set", engine)
	default:
		f.options.Log("No answers in the kernel: %s may enforce network policies; %s", engine, forceMeaning)
	}
	return true
}

// Obstacle is why the program is not attached to an interface.
type Obstacle struct {
	Interface string // "" for all
	Reason    Reason
	Text      string // the cause, such as "Calico (chain cali-FORWARD of table ip filter)"
}

// Obstacles returns the obstacles of the node, for a diagnosis by another process than the one with Interfaces. With an error
// it also returns the obstacles that it has found.
func Obstacles() (all []Obstacle, err error) {
	engine, err := FindEngine()
	if engine != (Engine{}) {
		all = append(all, Obstacle{Reason: ReasonPolicy, Text: engine.String()})
	}
	l, e := openLister()
	defer l.close()
	if e != nil {
		return all, errors.Join(err, e)
	}
	links, e := l.links()
	err = errors.Join(err, e)
	uplinks, e := l.uplinks()
	err = errors.Join(err, e)
	ports := switches(links)
	for _, interf := range links {
		if !candidate(interf, uplinks) {
			continue
		}
		found := obstacleBefore(interf, Engine{}, ports, false)
		if found.reason == "" {
			programs, e := l.list(interf, true)
			if e != nil {
				if !gone(e) {
					err = errors.Join(err, e)
				}
				continue
			}
			found = obstacleOf(programs)
		}
		if found.reason != "" {
			all = append(all, Obstacle{interf.Attrs().Name, found.reason, found.text})
		}
	}
	return all, err
}
