package fastpath

import (
	"unsafe"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

func init() { prometheus.MustRegister(&receiveDrops{}) }

// receiveDrops tells how many datagrams the kernel has dropped since a socket's buffer was full. It is
// asked when somebody wants to know: the kernel counts anyway.
type receiveDrops struct{}

var receiveDropsDesc = prometheus.NewDesc(namespace+"_"+subsystem+"_receive_drops_total",
	"Datagrams that the kernel dropped since the buffers of the sockets were full.", []string{"server"}, nil)

// Describe implements prometheus.Collector.
func (*receiveDrops) Describe(to chan<- *prometheus.Desc) { to <- receiveDropsDesc }

// Collect implements prometheus.Collector.
func (*receiveDrops) Collect(to chan<- prometheus.Metric) {
	listeners.mu.Lock()
	defer listeners.mu.Unlock()
	for address, l := range listeners.all {
		drops := listeners.dropped[address]
		for _, r := range l.readers {
			drops += r.socket.drops()
		}
		to <- prometheus.MustNewConstMetric(receiveDropsDesc, prometheus.CounterValue, float64(drops), address)
	}
}

// Facts of SO_MEMINFO: the kernel fills in nine numbers, of which the last counts the drops.
const (
	meminfoNumbers = 9
	meminfoDrops   = 8
)

// drops returns how many datagrams the kernel has dropped for lack of room.
func (s *socket) drops() (n uint64) {
	_ = s.raw.Control(func(fd uintptr) { // a closed socket drops nothing
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
