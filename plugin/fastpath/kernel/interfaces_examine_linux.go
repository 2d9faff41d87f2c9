package kernel

import (
	"net"
	"slices"

	"github.com/vishvananda/netlink"
)

// minMTU is the min. MTU in bytes of an interface with the program: that of IPv6, which is enough for the longest answers.
const minMTU = 1280

// kindSwitch is the kind of Open vSwitch's interfaces.
const kindSwitch = "openvswitch"

// candidate reports whether queries of pods or of the node's own programs may arrive on an interface: on the host side of a veth
// or netkit whose peer is in another network namespace, unless a default route uses it, or on lo.
func candidate(l netlink.Link, uplinks map[int]bool) bool {
	a := l.Attrs()
	switch l.Type() {
	case kindVeth, kindNetkit:
		return int32(a.NetNsID) >= 0 && !uplinks[a.Index] // #nosec G115 -- netlink has read the kernel's __s32 as a __u32
	}
	return a.Flags&net.FlagLoopback != 0
}

// switches returns the indices of Open vSwitch's interfaces. Its flows may enforce policies (Antrea, OVN-Kubernetes, Kube-OVN).
func switches(links []netlink.Link) map[int]bool {
	all := map[int]bool{}
	for _, l := range links {
		if l.Type() == kindSwitch {
			all[l.Attrs().Index] = true
		}
	}
	return all
}

// finding is the result of the examination of an interface.
type finding struct {
	reason  Reason // why the program may not be attached, "" if it may
	present bool   // the program is attached
	text    string // of the reason
	gone    bool   // the interface has been removed
}

// examine attaches the program to an interface or detaches it, as the interface requires. With all, every program of the
// interface is listed, otherwise only those whose changes the kernel does not report.
func (f *follower) examine(e *entry, all bool) {
	if e.attached == nil && f.young(e) {
		return
	}
	all = all || e.attached == nil
	programs, found := f.find(e.link, all)
	if found.gone {
		return // the kernel reports the removal
	}
	e.refusal = found.reason
	switch {
	case found.reason != "":
		f.logRefusal(e.link, found)
		if err := f.detach(e); err != nil {
			f.logRarely("detach", "%v", err)
		}
	case e.attached == nil || !found.present && (all || !f.hook.clsact):
		f.attach(e, programs)
	case all: // another instance may have ended
		if err := f.hook.removeLeftovers(e.link, programs); err != nil && !gone(err) {
			f.logRarely("leftovers", "Interface %s: filters of an instance of nodecache that has ended are not removed: %v", e.link.Attrs().Name, err)
		}
	}
}

// young reports whether network plugins may still be setting an interface up.
func (f *follower) young(e *entry) bool {
	return f.options.now().Sub(e.since) < f.options.settle
}

// attach attaches the program to an interface, again if another program has removed it.
func (f *follower) attach(e *entry, programs []Program) {
	err := f.detach(e)
	if err == nil {
		e.attached, err = f.hook.attach(e.link, programs)
	}
	if err != nil && !gone(err) {
		e.refusal = ReasonError
		f.logRefusal(e.link, finding{reason: ReasonError, text: err.Error()})
	}
}

// find examines an interface, and returns its programs.
func (f *follower) find(l netlink.Link, all bool) (programs []Program, found finding) {
	if found = obstacleBefore(l, f.policy.engine, f.switches, f.options.Force); found.reason != "" {
		return nil, found
	}
	programs, err := f.hook.list(l, all)
	if err != nil {
		return nil, finding{reason: ReasonError, text: err.Error(), gone: gone(err)}
	}
	if !f.options.Force {
		found = obstacleOf(programs)
	}
	found.present = slices.ContainsFunc(programs, func(p Program) bool { return p.ID == f.hook.own() })
	return programs, found
}

// obstacleBefore returns why the program may not be attached to an interface, before its programs are listed.
func obstacleBefore(l netlink.Link, engine Engine, switches map[int]bool, force bool) finding {
	switch mtu := l.Attrs().MTU; {
	case mtu < minMTU:
		return finding{reason: ReasonMTU, text: "its MTU is below 1280"}
	case force:
	case engine != (Engine{}):
		return finding{reason: ReasonPolicy, text: engine.String()}
	case switches[l.Attrs().MasterIndex]:
		return finding{reason: ReasonPolicy, text: "it is a port of Open vSwitch, which may enforce network policies"}
	}
	return finding{}
}

// obstacleOf returns why the program may not be attached beside these programs.
func obstacleOf(programs []Program) finding {
	for _, p := range programs {
		if p.foreign() {
			return finding{reason: ReasonProgram, text: p.String() + " is attached, which may enforce network policies"}
		}
	}
	return finding{}
}

// logRefusal logs why the program is not attached to an interface, at most once an hour for each reason. readPolicy
// logs policy engines.
func (f *follower) logRefusal(l netlink.Link, found finding) {
	remedy := ""
	switch {
	case found.reason == ReasonPolicy && f.policy.engine != (Engine{}):
		return
	case found.reason == ReasonPolicy || found.reason == ReasonProgram:
		remedy = "; " + forceMeaning
	}
	f.logRarely(string(found.reason), "No answers in the kernel on interface %s, and on others for the same reason: %s%s", l.Attrs().Name, found.text, remedy)
}

// forceMeaning ends log lines of refusals that Options.Force overrides.
const forceMeaning = `with "kernel force" the kernel answers nevertheless, and network policies do not apply to the queries that it answers`
