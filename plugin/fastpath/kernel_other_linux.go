//go:build !amd64 && !arm64

package fastpath

import "net/netip"

// kernelAnswers stands for the program that answers in the kernel, which is built for other machines.
type kernelAnswers struct{}

func newKernelAnswers() *kernelAnswers { return new(kernelAnswers) }

type kernelListener struct{}

func (kernelAnswers) serve(l *listener) {
	if l.server.Load().wantsKernel() {
		log.Warningf("%s: the kernel answers no queries: the program is built for amd64 and arm64 only", l.address)
	}
}

func (kernelAnswers) remove([]*listener) {}

func (kernelAnswers) exit() {}

func (*reader) offer(*kernelListener, netip.Addr) {}
