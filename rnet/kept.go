package rnet

import "github.com/seed-b9b531af/ramjet/ring"

// keptRing holds the chunks that lie in the receive ring, by the sequence
// number of their token. It is guarded by the session's rxMu, and so is the
// conn field of a chunk as long as it is in here.
type keptRing struct {
	chunks []*chunk // at sequence number modulo length, a power of two; nil: freed
	head   uint64   // sequence number of the oldest
	tail   uint64   // sequence number of the next
	count  int
}

const minKept = 16

// at returns the place of a sequence number from head to tail.
func (q *keptRing) at(seq uint64) **chunk { return &q.chunks[seq&uint64(len(q.chunks)-1)] }

func (q *keptRing) add(k *chunk) {
	if q.head == q.tail {
		q.head = k.token.Seq()
		q.tail = q.head
	}
	if q.tail-q.head == uint64(len(q.chunks)) {
		q.grow()
	}
	*q.at(q.tail) = k
	q.tail++
	q.count++
}

// get returns the chunk of a token, nil if it was freed.
func (q *keptRing) get(t ring.Token) *chunk {
	if t.Seq()-q.head >= q.tail-q.head {
		return nil
	}
	return *q.at(t.Seq())
}

func (q *keptRing) grow() {
	old := *q
	q.chunks = make([]*chunk, max(minKept, 2*len(old.chunks)))
	for seq := q.head; seq != q.tail; seq++ {
		*q.at(seq) = *old.at(seq)
	}
}

func (q *keptRing) remove(t ring.Token) {
	*q.at(t.Seq()) = nil
	q.count--
	for q.head != q.tail && *q.at(q.head) == nil {
		q.head++
	}
}

// keep leaves payload, part of the message placed last, in the ring. rxMu is
// held (deliver runs in poll).
func (s *session) keep(c *Conn, payload []byte) *chunk {
	k := ringChunks.Get().(*chunk)
	k.buf, k.conn, k.inRing = payload, c, true
	k.token = s.rx.Retain()
	s.kept.add(k)
	return k
}

// unkeep frees the ring space of a chunk that its reader is done with. No
// lock is held.
func (s *session) unkeep(t ring.Token) {
	s.rxMu.Lock()
	s.rx.Free(t)
	s.kept.remove(t)
	last := s.gone && s.kept.count == 0
	due := !s.gone && s.releaseLocked()
	s.rxMu.Unlock()
	if last {
		s.closeRing()
	} else if due {
		s.sendCredit()
	}
}

// forsake lets go of the stream of a chunk with which it was closed, unless the
// chunk was given back meanwhile: the application may look at it for as long as
// it has the stream. No lock is held.
func (s *session) forsake(t ring.Token) {
	s.rxMu.Lock()
	if k := s.kept.get(t); k != nil {
		k.conn = nil
	}
	s.rxMu.Unlock()
}

// spill moves the oldest chunks out of the ring until no more than limit
// bytes are held up. A chunk that is being read stays. rxMu is held.
func (s *session) spill(limit int) {
	for seq := s.kept.head; seq < s.kept.tail && s.rx.Retained() > limit; seq++ {
		if seq < s.kept.head { // freed with an older one
			continue
		}
		if k := *s.kept.at(seq); k != nil && s.moveOut(k) {
			s.stats.spills.Add(1)
		}
	}
}

// moveOut copies a chunk to ordinary memory, unless its reader is at it. rxMu
// is held.
func (s *session) moveOut(k *chunk) bool {
	c := k.conn
	if c == nil { // forsaken
		return false
	}
	c.recvMu.Lock()
	defer c.recvMu.Unlock()
	if !k.inRing || k.busy {
		return false
	}
	other := newChunk(len(k.buf)) // its memory comes from a pool
	k.buf, k.class = append(other.buf, k.buf...), other.class
	other.buf, other.class = nil, -1
	ringChunks.Put(other)
	k.inRing = false
	s.rx.Free(k.token)
	s.kept.remove(k.token)
	return true
}

// releaseRing ends the receive ring: what can be moved out is, and the ring
// is closed now or with the last chunk that a reader is at.
func (s *session) releaseRing() {
	s.rxMu.Lock()
	s.spill(-1)
	s.gone = true
	last := s.kept.count == 0
	s.rxMu.Unlock()
	if last {
		s.closeRing()
	}
}

func (s *session) closeRing() {
	s.rxMR.Close()
	s.freeDomain()
}
