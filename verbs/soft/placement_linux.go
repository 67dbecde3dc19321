package soft

// Where the two ends of a pair run decides whether spinning pays. These
// methods are for callers that know the provider; they find them by an
// interface assertion on verbs.QP.Driver.

// PublishCPU tells the peer on which CPU we run; a negative number says that
// we do not know. It costs a store if that has changed, and a load if not.
func (q *qp) PublishCPU(cpu int) {
	q.recvMu.Lock()
	defer q.recvMu.Unlock()
	if q.in == nil {
		return
	}
	word := &q.in.seg.hdr.cpu
	if next := uint32(max(cpu, -1) + 1); word.Load() != next {
		word.Store(next)
	}
}

// PeerCPU returns the CPU that the peer published last; ok is false if it has
// not, or there is no peer. The number is the peer's claim: do not index with
// it unchecked.
func (q *qp) PeerCPU() (cpu int, ok bool) {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	if q.link == nil {
		return 0, false
	}
	n := q.out.hdr.cpu.Load()
	if n == 0 || n > maxCPU {
		return 0, false
	}
	return int(n) - 1, true
}

// maxCPU is more than any machine has.
const maxCPU = 1 << 16

// PeerPID returns the process id of the peer, 0 if it is not paired yet or
// lives in a PID namespace that we cannot see.
func (q *qp) PeerPID() int {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	if q.link == nil {
		return 0
	}
	return q.link.pid()
}

// PeerIsLocal reports whether the peer is in this process.
func (q *qp) PeerIsLocal() bool {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	return q.out.seg != nil
}
