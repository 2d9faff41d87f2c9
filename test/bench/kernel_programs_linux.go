package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Results of a program at an interface (linux/bpf.h, enum tcx_action_base).
const (
	tcxNext = -1
	tcxDrop = 2
)

// Offsets of fields in struct __sk_buff (linux/bpf.h).
const (
	skbProtocol = 16
	skbIfindex  = 40
	skbData     = 76
	skbDataEnd  = 80
)

// ETH_P_IP and ETH_P_IPV6 in network order, on a processor whose own order is the other one, as those of the objects of
// plugin/fastpath/kernel.
const (
	ipv4Order = 0x0008
	ipv6Order = 0xdd86
)

// dropProgram drops every IPv4 and IPv6 packet.
func dropProgram() asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, skbProtocol, asm.Word),
		asm.Mov.Imm(asm.R0, tcxDrop),
		asm.JEq.Imm(asm.R2, ipv4Order, "end"),
		asm.JEq.Imm(asm.R2, ipv6Order, "end"),
		asm.Mov.Imm(asm.R0, tcxNext),
		asm.Return().WithSymbol("end"),
	}
}

// turnProgram sends UDP datagrams over IPv4 back: with exchanged addresses and ports, the bit QR set, and the rest unchanged.
func turnProgram() asm.Instructions {
	const (
		ether, ip, udp = 0, 14, 14 + 20 // offsets of the headers
		bit            = udp + 8 + 2    // of QR, the highest one
	)
	all := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R1, skbProtocol, asm.Word),
		asm.JNE.Imm(asm.R2, ipv4Order, "pass"),
		asm.LoadMem(asm.R7, asm.R1, skbData, asm.Word),
		asm.LoadMem(asm.R8, asm.R1, skbDataEnd, asm.Word),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Add.Imm(asm.R2, bit+1),
		asm.JGT.Reg(asm.R2, asm.R8, "pass"),
	}
	// exchange exchanges two fields of the packet.
	exchange := func(a, b int16, size asm.Size) {
		all = append(all, asm.LoadMem(asm.R2, asm.R7, a, size), asm.LoadMem(asm.R3, asm.R7, b, size),
			asm.StoreMem(asm.R7, a, asm.R3, size), asm.StoreMem(asm.R7, b, asm.R2, size))
	}
	exchange(ether, ether+6, asm.Word)
	exchange(ether+4, ether+10, asm.Half)
	exchange(ip+12, ip+16, asm.Word)
	exchange(udp, udp+2, asm.Half)
	return append(all,
		asm.LoadMem(asm.R2, asm.R7, bit, asm.Byte),
		asm.Or.Imm(asm.R2, 0x80),
		asm.StoreMem(asm.R7, bit, asm.R2, asm.Byte),
		asm.LoadMem(asm.R1, asm.R6, skbIfindex, asm.Word),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, tcxNext).WithSymbol("pass"),
		asm.Return(),
	)
}

// attached is a program at an interface.
type attached struct {
	program *ebpf.Program
	link    link.Link
}

// attach attaches a program to the ingress of the node's end of the veth.
func (n *network) attach(name string, code asm.Instructions) (a *attached, err error) {
	a = &attached{}
	spec := ebpf.ProgramSpec{Name: name, Type: ebpf.SchedCLS, Instructions: code, License: "GPL"}
	if a.program, err = ebpf.NewProgram(&spec); err != nil {
		return nil, fmt.Errorf("load %s: %w", name, err)
	}
	err = n.node.do(func() (err error) {
		a.link, err = link.AttachTCX(link.TCXOptions{Interface: n.device, Program: a.program, Attach: ebpf.AttachTCXIngress})
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach %s: %w", name, err), a.program.Close())
	}
	return a, nil
}

func (a *attached) close() error { return errors.Join(a.link.Close(), a.program.Close()) }

// programTime returns the mean time of the program at the veth, while f runs.
func (n *network) programTime(f func() error) (mean time.Duration, err error) {
	var result *link.QueryResult
	err = n.node.do(func() (err error) {
		result, err = link.QueryPrograms(link.QueryOptions{Target: n.device, Attach: ebpf.AttachTCXIngress})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("programs at the veth: %w", err)
	}
	if len(result.Programs) != 1 {
		return 0, fmt.Errorf("%d programs at the veth, want one", len(result.Programs))
	}
	p, err := ebpf.NewProgramFromID(result.Programs[0].ID)
	if err != nil {
		return 0, fmt.Errorf("program at the veth: %w", err)
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	var counting io.Closer
	if counting, err = ebpf.EnableStats(unix.BPF_STATS_RUN_TIME); err != nil {
		return 0, fmt.Errorf("statistics of programs: %w", err)
	}
	defer func() { err = errors.Join(err, counting.Close()) }()
	before, err := p.Stats()
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	after, err := p.Stats()
	if err != nil || after.RunCount == before.RunCount {
		return 0, errors.Join(err, errors.New("the program did not run"))
	}
	return (after.Runtime - before.Runtime) / time.Duration(after.RunCount-before.RunCount), nil // #nosec G115
}
