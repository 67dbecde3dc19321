package harness

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// computing is work that has nothing to do with connections: a goroutine for
// each processor that never waits.
type computing struct {
	stopped    *atomic.Bool // nil if nothing computes
	goroutines sync.WaitGroup
}

func (b *computing) start() {
	if b.stopped != nil {
		return
	}
	stopped := new(atomic.Bool)
	b.stopped = stopped
	for range runtime.GOMAXPROCS(0) {
		b.goroutines.Go(func() {
			for !stopped.Load() {
				compute(10 * time.Microsecond)
			}
		})
	}
}

func (b *computing) stop() {
	if b.stopped == nil {
		return
	}
	b.stopped.Store(true)
	b.goroutines.Wait()
	b.stopped = nil
}

// compute keeps a processor for d.
func compute(d time.Duration) {
	for began := time.Now(); time.Since(began) < d; {
	}
}

// neighbour is a process that computes from prepare to finish, on one
// processor, beside those that are measured.
type neighbour struct{ beside computing }

func newNeighbour() *neighbour {
	runtime.GOMAXPROCS(1)
	return &neighbour{}
}

func (n *neighbour) obey(cmd command) reply {
	switch cmd {
	case prepare:
		n.beside.start()
	case finish:
		n.beside.stop()
	}
	return reply{}
}

func (n *neighbour) close() { n.beside.stop() }
