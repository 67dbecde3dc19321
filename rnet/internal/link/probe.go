package link

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// A probe is an RDMA READ from the peer's ring, of no bytes. The peer's device
// answers it, after all that was sent before, whatever the peer's process
// does; it takes neither a receive nor room in the ring, so it can be sent
// when nothing else can. Two things are found out by it:
//
//   - that the peer is still there, when there is nothing else to tell it:
//     a device on a network does not notice the death of a machine by itself,
//     and on iWARP TCP repeats for a quarter of an hour what nobody receives;
//   - on iWARP, that the peer's device has what was sent. Elsewhere a WRITE is
//     done when it has arrived, there when TCP has taken it, and what TCP has
//     may be lost when the process ends.
//
// One probe at most is under way. On devices without immediates it reads a few
// bytes, which nobody looks at: the kernel's siw driver answers a READ of none
// with as many as it sent last, if it is busy when it has to (siw_activate_tx
// leaves sge[0] as it was; kernels 6.1 to 6.12). The ring allows that there: all
// that is in it was written by the one who reads.
type probing struct {
	probed      uint64        // probes posted so far
	probeWanted atomic.Bool   // one more, when the one under way is back; written under the send lock
	probesDone  atomic.Uint64 // probes that are back; written by the owner of the poll lock

	// Of who calls KeepAlive.
	lastProbe uint64    // probe of the last KeepAlive
	lastLife  lifeSigns // and what had come by then
}

// probe sends a probe, or makes sure that one will be, and returns its number.
// The send lock is held.
func (l *Link) probe() (number uint64, err error) {
	number = l.probed + 1
	if l.probed != l.probesDone.Load() {
		l.probeWanted.Store(true)
		if l.probed != l.probesDone.Load() { // otherwise the poll may not have seen it
			return number, nil
		}
	}
	l.probeWanted.Store(false)
	return number, l.postProbe()
}

// postProbe posts a probe. It has a place in the send queue of its own, and
// does not count as one of the WRs whose completions are in order: devices of
// iWARP may be done with a later WRITE before. The send lock is held.
func (l *Link) postProbe() error {
	if l.stopped {
		return syscall.ECONNRESET
	}
	l.probed++
	wr := &l.wr[0]
	wr.Opcode, wr.RemoteAddr, wr.RKey = verbs.OpRead, l.peer.RingAddr, l.peer.RingKey
	wr.Inline, wr.SGL, wr.Flags = nil, nil, verbs.SendSignaled
	if l.has.emulation != nil {
		wr.SGL = l.has.emulation.sink[:]
	}
	_, err := l.qp.PostSend(l.wr[:])
	if err != nil {
		l.stopped = true
	}
	return err
}

// probeAgain is called by Poll when a probe has come back and another
// one is wanted.
func (l *Link) probeAgain() {
	l.sendMu.Lock()
	defer l.sendMu.Unlock()
	if !l.probeWanted.Load() || l.probed != l.probesDone.Load() || l.stopped {
		return
	}
	l.probeWanted.Store(false)
	if err := l.postProbe(); err != nil {
		go l.user.Fail(fmt.Errorf("rnet: send probe: %w", err))
	}
}

// KeepAlivePeriod is how often KeepAlive is to be called.
const KeepAlivePeriod = 15 * time.Second

// Tidy gives the peer's ring less memory if little was sent, and frees what was discarded.
func (l *Link) Tidy() {
	l.trim()
	l.freeBuffers()
}

// KeepAlive finds out whether the peer can be reached, and calls Tidy. A device that repeats what
// is not acknowledged fails the QP by itself; TCP, below iWARP, does so only after a
// quarter of an hour. So a link has failed on which a probe has been under way for a
// whole period in which nothing else came either. Where there are no probes it returns
// true: any frame will do.
func (l *Link) KeepAlive() (wantsFrame bool, err error) {
	l.Tidy()
	if !l.has.probes {
		return true, nil
	}
	l.in.mu.Lock()
	frames := l.in.frames
	l.in.mu.Unlock()
	life := lifeSigns{frames: frames, released: l.peerReleased.Load(), posted: l.peerPosted.Load(), probes: l.probesDone.Load()}
	if l.has.emulation == nil { // otherwise it is TCP that took it: see probing
		life.done = l.done.Load()
	}
	if l.lastProbe > l.probesDone.Load() && life == l.lastLife {
		return false, fmt.Errorf("%w: nothing came from the peer for %v", syscall.ETIMEDOUT, KeepAlivePeriod)
	}
	l.sendMu.Lock()
	number, err := l.probe()
	l.sendMu.Unlock()
	l.lastProbe, l.lastLife = number, life
	if err != nil {
		return false, fmt.Errorf("rnet: send probe: %w", err)
	}
	return false, nil
}

// lifeSigns changes when anything comes from the peer.
type lifeSigns struct{ frames, released, posted, done, probes uint64 }
