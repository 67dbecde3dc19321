package soft

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
)

// faultState is a set of injected faults with its counters.
type faultState struct {
	Faults
	calls   [faultCalls]atomic.Int64
	refused atomic.Int64

	mu    sync.Mutex
	since map[*cq]time.Time // guarded by mu: since when completions are withheld
}

// faultCall is a call that can be made to fail.
type faultCall int

const (
	faultAllocMR faultCall = iota
	faultMemfd
	faultMmap
	faultSocketpair
	faultCalls
)

func (d *device) injectFaults(f *Faults) {
	if f == nil {
		d.faults.Store(nil)
	} else {
		d.faults.Store(&faultState{Faults: *f, since: make(map[*cq]time.Time)})
	}
	for _, q := range d.allQPs() {
		q.sendMu.Lock()
		q.posts = 0
		q.open = q.mayRun()
		q.sendMu.Unlock()
	}
	for _, c := range d.allCQs() {
		if c.ch != nil {
			c.notify(true) // what was withheld can be polled now
		}
	}
}

// faultAt counts a call and returns the error that it has to fail with.
func (d *device) faultAt(call faultCall) error {
	f := d.faults.Load()
	if f == nil {
		return nil
	}
	at := [faultCalls]FailCall{f.FailAllocMR, f.FailMemfd, f.FailMmap, f.FailSocketpair}[call]
	if at.At != 0 && f.calls[call].Add(1) == int64(at.At) {
		return os.NewSyscallError("injected fault", at.Err)
	}
	return nil
}

func (d *device) memfd(name string, size int) (int, error) {
	if err := d.faultAt(faultMemfd); err != nil {
		return -1, err
	}
	return sys.NewMemfd(name, size)
}

func (d *device) mmap(fd int, offset int64, size, prot int) ([]byte, error) {
	if err := d.faultAt(faultMmap); err != nil {
		return nil, err
	}
	return sys.MapFD(fd, offset, size, prot)
}

func (d *device) mmapAnonymous(size, flags int) ([]byte, error) {
	if err := d.faultAt(faultMmap); err != nil {
		return nil, err
	}
	return sys.MapAnonymous(size, flags)
}

func (d *device) newWakeSocket() (near, far int, err error) {
	if err := d.faultAt(faultSocketpair); err != nil {
		return -1, -1, err
	}
	return sys.NewWakeSocket()
}

// posted counts a request of q, with sendMu held.
func (f *faultState) posted(q *qp) {
	q.posts++
	if f.FailPostAt != 0 && q.posts == int64(f.FailPostAt) {
		q.failLocked(failure{event: verbs.EventQPFatal, raise: true})
	}
	if l := q.link; f.DropPeerAt != 0 && q.posts == int64(f.DropPeerAt) && l != nil {
		go func() { // ends by itself; both calls take sendMu
			l.close()
			q.peerFault(l, protocol.FaultGone)
		}()
	}
}

func (f *faultState) refuseReceive() bool {
	return f.RNREvery > 0 && f.refused.Add(1)%int64(f.RNREvery) == 0
}

// poll is cq.poll with completions that come late, in batches, or slowly.
func (f *faultState) poll(c *cq, wcs []verbs.WC) (int, error) {
	c.pollMu.Begin()
	if f.withheld(c, true) > 0 {
		c.pollMu.End()
		return 0, nil
	}
	n := c.take(wcs)
	c.endAndTell()
	if c.stamp {
		c.stampArrivals(wcs[:n])
	}
	if f.SlowConsumer > 0 && n > 0 {
		time.Sleep(time.Duration(n) * f.SlowConsumer)
	}
	return n, nil
}

// withheld returns for how long the completions of c are still kept back. If
// they are not any more, and the caller takes them, the next ones begin anew.
func (f *faultState) withheld(c *cq, take bool) time.Duration {
	delay := f.CompletionDelay
	if f.CompletionBatch > 0 && delay == 0 {
		delay = time.Millisecond
	}
	waiting := c.waiting(c.local.capacity())
	if delay == 0 || waiting == 0 {
		return 0
	}
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	since, known := f.since[c]
	if !known {
		f.since[c] = now
		since = now
	}
	if left := delay - now.Sub(since); left > 0 && (f.CompletionBatch == 0 || waiting < f.CompletionBatch) {
		return left
	}
	if take {
		delete(f.since, c)
	}
	return 0
}

// armed notifies c when what is withheld from it may be polled: it arrived
// before Arm, and nothing else will give the event.
func (f *faultState) armed(c *cq) {
	c.pollMu.Lock()
	left := f.withheld(c, false)
	c.pollMu.Unlock()
	if left > 0 {
		time.AfterFunc(left, func() { c.notify(true) })
	}
}
