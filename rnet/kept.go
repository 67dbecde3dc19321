package rnet

import "github.com/seed-b9b531af/ramjet/ring"

// keptRing holds the chunks that lie in the receive ring, by the sequence
// number of their token. It is guarded by the session's rxMu, and so is the
// conn field of a chunk as long as it is in here.
type keptRing struct {
	chunks []*chunk // nil: freed
	base   uint64   // sequence number of chunks[0]
	count  int
}

func (q *keptRing) add(k *chunk) {
	if len(q.chunks) == 0 {
		q.base = k.token.Seq()
	}
	q.chunks = append(q.chunks, k)
	q.count++
}

func (q *keptRing) remove(t ring.Token) {
	q.chunks[t.Seq()-q.base] = nil
	q.count--
	for len(q.chunks) > 0 && q.chunks[0] == nil {
		q.chunks = q.chunks[1:]
		q.base++
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

// spill moves the oldest chunks out of the ring until no more than limit
// bytes are held up. A chunk that is being read stays. rxMu is held.
func (s *session) spill(limit int) {
	for i := 0; i < len(s.kept.chunks) && s.rx.Retained() > limit; {
		before := s.kept.base
		if k := s.kept.chunks[i]; k != nil && s.moveOut(k) {
			s.stats.spills.Add(1)
		}
		i += 1 - int(s.kept.base-before)
		i = max(i, 0)
	}
}

// moveOut copies a chunk to ordinary memory, unless its reader is at it. rxMu
// is held.
func (s *session) moveOut(k *chunk) bool {
	c := k.conn
	c.recvMu.Lock()
	defer c.recvMu.Unlock()
	if !k.inRing || k.busy {
		return false
	}
	k.buf = append([]byte(nil), k.buf...)
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
