package rogue

import (
	"syscall"
	"testing"
)

// TestReadsAgain ends Deaf: a connection that was accepted with a small buffer gets the buffer of a new one. Otherwise a
// burst of queries would take seconds on it.
func TestReadsAgain(t *testing.T) {
	s := Start(t, Behaviour{Deaf: true})
	old := dial(t, "tcp", s)
	old.query("a.test.")
	s.Behave(Behaviour{})
	right(t, old.answer(), "a.test.")
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) != 1 {
		t.Errorf("%d connections, want 1", len(s.streams))
	}
	for st := range s.streams {
		for name, option := range map[string][2]int{
			"buffer": {syscall.SOL_SOCKET, syscall.SO_RCVBUF}, "window": {syscall.IPPROTO_TCP, syscall.TCP_WINDOW_CLAMP},
		} {
			size := 0
			err := control(st.tcp, func(fd int) (err error) {
				size, err = syscall.GetsockoptInt(fd, option[0], option[1])
				return err
			})
			if err != nil || size < usualBuffer {
				t.Errorf("%s of %d bytes, error %v, want at least %d", name, size, err, usualBuffer)
			}
		}
	}
}
