// Package kernel answers queries of pods in the kernel, at the interface on which they arrive, from answers of the store. Input is
// entries of the store, the lease of each address and the interfaces of the node; output is replies, and their numbers for the
// metrics. The program answer.c creates no answer: it repeats stored ones. The package imports no plugin.
package kernel

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cflags "-O2 -g -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" -go-package kernel -type record -type key answer answer.c
