package fastpath

import (
	"unsafe"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

func init() { prometheus.MustRegister(&receiveDrops{}) }

// receiveDrops collects the kernel's counts of datagrams that were dropped because the buffer of a socket was full.
type receiveDrops struct{}

var receiveDropsDesc = prometheus.NewDesc(namespace+"_"+subsystem+"_receive_drops_total",
	"Datagrams that the kernel dropped because the buffers of the sockets were full.", []string{"server"}, nil)

// Describe implements prometheus.Collector.
func (*receiveDrops) Describe(descs chan<- *prometheus.Desc) { descs <- receiveDropsDesc }

// Collect implements prometheus.Collector.
func (*receiveDrops) Collect(metrics chan<- prometheus.Metric) {
	process.mu.Lock()
	defer process.mu.Unlock()
	for address, l := range process.listeners {
		drops := process.dropped[address]
		for _, r := range l.readers {
			drops += r.socket.drops()
		}
		metrics <- prometheus.MustNewConstMetric(receiveDropsDesc, prometheus.CounterValue, float64(drops), address)
	}
}

// The result of SO_MEMINFO: SK_MEMINFO_VARS numbers, of which SK_MEMINFO_DROPS is the last.
const (
	meminfoNumbers = 9
	meminfoDrops   = 8
)

// drops returns the number of datagrams that the kernel dropped because the socket's buffer was full.
func (s *socket) drops() (n uint64) {
	_ = s.raw.Control(func(fd uintptr) { // a closed socket has no count
		var info [meminfoNumbers]uint32
		size := uint32(unsafe.Sizeof(info))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO,
			uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
		if errno == 0 {
			n = uint64(info[meminfoDrops])
		}
	})
	return n
}
