package traffic

import (
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// Waiters are goroutines that wait for a peer until it is gone, and when they were told.
type Waiters struct {
	mu   sync.Mutex
	told []time.Time // guarded by mu
	work sync.WaitGroup
}

// Add runs op until it fails, which must be for the peer's death.
func (w *Waiters) Add(t testing.TB, op func() error) {
	w.work.Go(func() {
		var err error
		for err == nil {
			err = op()
		}
		w.mu.Lock()
		w.told = append(w.told, time.Now())
		w.mu.Unlock()
		told := errors.Is(err, syscall.EPIPE) // by a Write, where the Read was told of the reset
		assert.True(t, told || errors.Is(err, syscall.ECONNRESET), "%v", err)
		var call *os.SyscallError
		assert.ErrorAs(t, err, &call)
	})
}

// Use reads and writes the near end of a connection whose far end behaves as
// mode says.
func (w *Waiters) Use(t testing.TB, c net.Conn, mode byte) {
	buf := make([]byte, 64<<10)
	read := func() error { _, err := c.Read(buf); return err }
	write := func() error { _, err := c.Write(make([]byte, 64<<10)); return err }
	w.Add(t, read) // blocked, unless the peer writes
	if mode != Source {
		w.Add(t, write) // blocked, unless the peer reads
	}
}

// Wait waits until all have been told.
func (w *Waiters) Wait() { w.work.Wait() }

// Told returns when they were told, those that have been by now.
func (w *Waiters) Told() []time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.told)
}
