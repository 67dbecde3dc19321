package link

import (
	"slices"
	"syscall"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// Buffer is registered memory from which frames are sent without a copy. It outlives
// the link, and keeps the device open until Discard.
type Buffer struct {
	link *Link
	mr   *verbs.MR
	sent Mark // when it is reached the device reads nothing any more
}

// NewBuffer makes a buffer. No lock is held.
func (l *Link) NewBuffer(size int) (*Buffer, error) {
	l.freeBuffers()
	if err := l.useMemory(); err != nil {
		return nil, err
	}
	mr, err := l.memory.pd.AllocMR(size, verbs.AccessLocalWrite, verbs.MROptions{})
	if err != nil {
		l.memory.free()
		return nil, err
	}
	return &Buffer{link: l, mr: mr}, nil
}

// useMemory keeps the memory's domain open until memory.free, and makes what frames from
// registered memory need.
func (l *Link) useMemory() (err error) {
	l.sendMu.Lock()
	defer l.sendMu.Unlock()
	if l.stopped {
		return syscall.ECONNRESET
	}
	if l.heads == nil {
		if l.heads, err = l.memory.pd.AllocMR(l.has.sqLen*HeaderLen, verbs.AccessLocalWrite, verbs.MROptions{}); err != nil {
			return err
		}
	}
	l.memory.users.Add(1)
	return nil
}

// Bytes returns the memory.
func (b *Buffer) Bytes() []byte { return b.mr.Bytes() }

// Sent returns what has to be reached before the memory may be written to again.
func (b *Buffer) Sent() Mark { return b.sent }

// Discard frees the memory when the device has read what was sent of it, at a later call of the link if that
// is not yet so: Tidy at the latest. No lock is held.
func (b *Buffer) Discard() {
	l := b.link
	l.sendMu.Lock()
	l.buffers = append(l.buffers, b)
	l.sendMu.Unlock()
	l.freeBuffers()
}

// freeBuffers frees the discarded memory that the device has read. That a link sends
// nothing any more does not mean that: only without a QP no request is left.
func (l *Link) freeBuffers() {
	var free []*Buffer
	l.sendMu.Lock()
	l.buffers = slices.DeleteFunc(l.buffers, func(b *Buffer) bool {
		if !l.qpClosed && !l.Reached(b.sent) {
			return false
		}
		free = append(free, b)
		return true
	})
	l.sendMu.Unlock()
	for _, b := range free {
		b.mr.Close()
		l.memory.free()
	}
}

// SendFrom is Send for n bytes of a buffer from off on, which the device sends from where
// they lie.
func (l *Link) SendFrom(h Header, b *Buffer, off, n int) error {
	err := l.send(h, b.mr.Bytes()[off:off+n], piece{b.mr, off})
	b.sent = l.Mark()
	return err
}

// gather makes l.wr send the header and the piece of registered memory from
// where they lie, with a completion that tells when they were read. A header
// has its place until the SQ has gone round.
func (l *Link) gather(payload []byte, from piece) {
	at := int(l.requests%uint64(l.has.sqLen)) * HeaderLen
	copy(l.heads.Bytes()[at:], l.head[:])
	l.sge[0] = l.heads.SGE(at, HeaderLen)
	l.sge[1] = from.mr.SGE(from.off, len(payload))
	l.wr[0].Inline, l.wr[0].SGL, l.wr[0].Flags = nil, l.sge[:], verbs.SendSignaled
}
