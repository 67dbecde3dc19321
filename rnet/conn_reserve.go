package rnet

import (
	"fmt"
	"net"
	"syscall"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// outBuffer is the registered memory that a Conn's Reserve gives out.
type outBuffer struct {
	mr       *verbs.MR
	reserved int    // bytes given out and not committed
	until    uint64 // the device may read it until so many WRs are done
}

// MaxReserve is the largest n of Reserve, in bytes.
const MaxReserve = 256 << 10

// Reserve returns n bytes of registered memory, at most MaxReserve, to be
// filled and then sent by Commit, without a copy of ours: the device sends
// them from where they lie. It waits until the device has done so with what
// was committed before. The memory stays the connection's: it must not be
// used after Commit or Close. One goroutine at a time may use the two.
func (c *Conn) Reserve(n int) ([]byte, error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
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
	if c.out == nil {
		out, err := c.s.makeOut()
		if err != nil {
			return nil, err
		}
		c.out = out
	}
	if err := c.awaitSent(c.out.until); err != nil {
		return nil, err
	}
	c.out.reserved = n
	return c.out.mr.Bytes()[:n:n], nil
}

// awaitSent waits until the device has done so many WRs.
func (c *Conn) awaitSent(until uint64) error {
	for c.s.sqDone.Load() < until {
		c.sendWait.begin()
		if err := c.writable(); err != nil {
			return err
		}
		if c.s.failed.Load() {
			return syscall.ECONNRESET
		}
		if !c.s.lineUp(c, until) {
			continue
		}
		c.s.wait(&c.sendWait) // ended by a completion, deadline, close, peer death
		c.s.leaveLine(c)
	}
	return c.writable()
}

// lineUp puts c among those that the leader wakes when completions come. It
// returns false if there is nothing to wait for.
func (s *session) lineUp(c *Conn, until uint64) bool {
	s.txMu.Lock()
	defer s.txMu.Unlock()
	s.txWait.push(c, txLink)
	s.txBlocked.Store(true)
	if s.sqDone.Load() >= until || s.txDead { // see txBlocked
		s.txWait.remove(c, txLink)
		return false
	}
	return true
}

// Commit sends the first n bytes of what Reserve returned. It blocks as Write
// does.
func (c *Conn) Commit(n int) error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if err := c.commit(n); err != nil {
		return c.opError("write", err)
	}
	return nil
}

func (c *Conn) commit(n int) error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	if c.out == nil || n < 0 || n > c.out.reserved {
		return fmt.Errorf("rnet: %d bytes to commit, more than Reserve gave out", n)
	}
	out := c.out
	out.reserved = 0
	_, err := c.write(out.mr.Bytes()[:n], out.mr)
	c.s.txMu.Lock()
	out.until = c.s.sqPosted
	c.s.txMu.Unlock()
	return err
}

func (s *session) makeOut() (*outBuffer, error) {
	mr, err := s.pd.AllocMR(MaxReserve, verbs.AccessLocalWrite, verbs.MROptions{})
	if err != nil {
		return nil, err
	}
	out := &outBuffer{mr: mr}
	s.txMu.Lock()
	defer s.txMu.Unlock()
	if s.txDead {
		mr.Close()
		return nil, syscall.ECONNRESET
	}
	if s.outs == nil {
		s.outs = make(map[*outBuffer]struct{})
	}
	s.outs[out] = struct{}{}
	return out, nil
}

// dropOut frees the memory of Reserve, unless the device may still read it or
// a Commit is at it: then it goes with the session.
func (c *Conn) dropOut() {
	if !c.writeMu.TryLock() {
		return
	}
	defer c.writeMu.Unlock()
	out := c.out
	if out == nil || c.s.sqDone.Load() < out.until {
		return
	}
	c.out = nil
	c.s.txMu.Lock()
	_, live := c.s.outs[out]
	delete(c.s.outs, out)
	c.s.txMu.Unlock()
	if live {
		out.mr.Close()
	}
}

// gather makes s.wr send the header and the piece of registered memory from
// where they lie, with a completion that tells when they were read. A header
// has its place until the SQ has gone round.
func (s *session) gather(payload []byte, from source) (err error) {
	if s.heads == nil {
		if s.heads, err = s.pd.AllocMR(sendQueueLen*frameHeaderLen, verbs.AccessLocalWrite, verbs.MROptions{}); err != nil {
			return err
		}
	}
	at := int(s.sqPosted%sendQueueLen) * frameHeaderLen
	copy(s.heads.Bytes()[at:], s.head[:])
	s.sge[0] = s.heads.SGE(at, frameHeaderLen)
	s.sge[1] = from.mr.SGE(from.off, len(payload))
	s.wr[0].Inline, s.wr[0].SGL, s.wr[0].Flags = nil, s.sge[:], verbs.SendSignaled
	return nil
}
