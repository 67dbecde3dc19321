package rnet

import (
	"fmt"
	"net"
	"runtime"
	"slices"
	"syscall"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// outBuffer is the registered memory that a Conn's Reserve gives out. It is
// the Conn's until Close, also when the session is gone. If it was given out by
// then it stays until the application's next call, for it may be filling it, or
// until nothing refers to the Conn any more.
type outBuffer struct {
	mr       *verbs.MR
	reserved int    // bytes given out and not committed
	until    uint64 // the device may read it until so many WRs are done

	unreachable runtime.Cleanup // for when nothing refers to the Conn any more
}

// MaxReserve is the largest n of Reserve, in bytes.
const MaxReserve = 256 << 10

// Reserve returns n bytes of registered memory, at most MaxReserve, to be
// filled and then sent by Commit, without a copy of ours: the device sends
// them from where they lie. It waits until the device has done so with what
// was committed before. The memory stays the connection's: it must not be
// used after Commit or the next Reserve. Until then it is valid, whatever happens
// meanwhile: a Close by another goroutine and the end of the session leave it
// where it is. One goroutine at a time may use the two. The first Reserve of a
// connection registers MaxReserve bytes, which count as pinned memory until Close,
// or if there is nothing committed of the last Reserve then, until the next call
// of the two or until nothing refers to the connection any more: keep the
// connection as long as the memory. It fails if they cannot be had.
func (c *Conn) Reserve(n int) ([]byte, error) {
	c.writeMu.Lock()
	defer c.unlockOut()
	c.endReserve()
	p, err := c.reserve(n)
	if err != nil {
		return nil, c.opError("write", err)
	}
	return p, nil
}

func (c *Conn) reserve(n int) ([]byte, error) {
	if n <= 0 || n > MaxReserve {
		return nil, fmt.Errorf("rnet: %d bytes to reserve, want 1 to %d", n, MaxReserve)
	}
	if err := c.writable(); err != nil {
		return nil, err
	}
	out := c.out.Load()
	if out == nil {
		var err error
		if out, err = c.s.makeOut(); err != nil {
			return nil, err
		}
		out.unreachable = runtime.AddCleanup(c, c.s.dropUnreachable, out)
		c.out.Store(out)
	}
	if err := c.awaitSent(out.until); err != nil {
		return nil, err
	}
	out.reserved = n
	return out.mr.Bytes()[:n:n], nil
}

// awaitSent waits until the device has done so many WRs.
func (c *Conn) awaitSent(until uint64) error {
	for c.s.sqDone.Load() < until {
		c.sendWait.Begin()
		if err := c.writable(); err != nil {
			return err
		}
		if c.s.failed.Load() {
			return syscall.ECONNRESET
		}
		if c.s.awaitDone(c, sendMark{wrs: until}) {
			c.s.pollLock.Wait(&c.sendWait) // ended by a completion, deadline, close, peer death
			c.s.forgetDone(c)
		} else if c.s.sqDone.Load() < until {
			return syscall.ECONNRESET
		}
	}
	return c.writable()
}

// Commit sends the first n bytes of what Reserve returned, 0 to all of them.
// Each Reserve allows one Commit. It blocks as Write does; if it fails some of
// the bytes may be on their way, and it does not tell how many.
func (c *Conn) Commit(n int) error {
	c.writeMu.Lock()
	defer c.unlockOut()
	if err := c.commit(n); err != nil {
		return c.opError("write", err)
	}
	return nil
}

func (c *Conn) commit(n int) error {
	if c.closed.Load() {
		c.endReserve()
		return net.ErrClosed
	}
	out := c.out.Load()
	if out == nil || n < 0 || n > out.reserved {
		return fmt.Errorf("rnet: %d bytes to commit, more than Reserve gave out", n)
	}
	c.endReserve()
	_, err := c.write(out.mr.Bytes()[:n], out.mr)
	c.s.txMu.Lock()
	out.until = c.s.sqPosted
	c.s.txMu.Unlock()
	return err
}

func (s *session) makeOut() (*outBuffer, error) {
	s.sweepOuts()
	if err := s.useDomain(); err != nil {
		return nil, err
	}
	mr, err := s.pd.AllocMR(MaxReserve, verbs.AccessLocalWrite, verbs.MROptions{})
	if err != nil {
		s.freeDomain()
		return nil, err
	}
	return &outBuffer{mr: mr}, nil
}

// useDomain keeps the session's domain open until freeDomain, and makes what
// frames from registered memory need.
func (s *session) useDomain() (err error) {
	s.txMu.Lock()
	defer s.txMu.Unlock()
	if s.txDead {
		return syscall.ECONNRESET
	}
	if s.heads == nil {
		if s.heads, err = s.pd.AllocMR(s.sqLen*frameHeaderLen, verbs.AccessLocalWrite, verbs.MROptions{}); err != nil {
			return err
		}
	}
	s.domainUsers.Add(1)
	return nil
}

// endReserve ends what the last Reserve gave out. writeMu is held.
func (c *Conn) endReserve() {
	if out := c.out.Load(); out != nil {
		out.reserved = 0
	}
}

// unlockOut gives up writeMu, and the memory of Reserve if the Conn was closed
// meanwhile.
func (c *Conn) unlockOut() {
	if c.closed.Load() {
		c.dropOut()
	}
	c.writeMu.Unlock()
}

// dropOut gives up the memory of Reserve, if the application does not have it:
// at once, or when the device has sent what it holds. writeMu is held.
func (c *Conn) dropOut() {
	out := c.out.Load()
	if out == nil || out.reserved > 0 {
		return
	}
	c.out.Store(nil)
	out.unreachable.Stop()
	c.s.giveUp(out)
}

// dropUnreachable gives up memory of Reserve whose Conn is garbage. It is a
// cleanup, and must not wait.
func (s *session) dropUnreachable(out *outBuffer) { go s.giveUp(out) }

// giveUp frees memory that no Conn uses any more, at once or when the device has
// read it.
func (s *session) giveUp(out *outBuffer) {
	s.txMu.Lock()
	s.outs = append(s.outs, out)
	s.txMu.Unlock()
	s.sweepOuts()
}

// sweepOuts frees the memory that Conns gave up and the device has read. That a
// session sends nothing any more does not mean that: only without a QP no WR is
// left.
func (s *session) sweepOuts() {
	var free []*outBuffer
	s.txMu.Lock()
	done := s.sqDone.Load()
	s.outs = slices.DeleteFunc(s.outs, func(out *outBuffer) bool {
		if !s.qpClosed && done < out.until {
			return false
		}
		free = append(free, out)
		return true
	})
	s.txMu.Unlock()
	for _, out := range free {
		out.mr.Close()
		s.freeDomain()
	}
}

// gather makes s.wr send the header and the piece of registered memory from
// where they lie, with a completion that tells when they were read. A header
// has its place until the SQ has gone round.
func (s *session) gather(payload []byte, from source) {
	at := int(s.sqPosted%uint64(s.sqLen)) * frameHeaderLen
	copy(s.heads.Bytes()[at:], s.head[:])
	s.sge[0] = s.heads.SGE(at, frameHeaderLen)
	s.sge[1] = from.mr.SGE(from.off, len(payload))
	s.wr[0].Inline, s.wr[0].SGL, s.wr[0].Flags = nil, s.sge[:], verbs.SendSignaled
}
