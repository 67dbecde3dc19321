package ring

import (
	"fmt"
	"slices"
)

// What the steps of the model's ends do; model_test.go has the story.

// outputs offers every choice of what e sends now: each length of data on each
// stream that has some, a window update or a credit message that is due; if
// there is nothing, it goes on.
func (w *world) outputs(e *end, take taker) bool {
	choices := 0
	out := func(m message) bool {
		choices++
		name := fmt.Sprintf("output %s of %d on stream %d", [...]string{"data", "update", "credit"}[m.kind], m.n, m.stream)
		return take(name, func(w *world, e, peer *end) error { return w.output(e, peer, m) })
	}
	room := e.room()
	for s := range modelStreams {
		if room == 0 {
			break
		}
		if e.recv[s].UpdateDue() && !out(message{kind: update, stream: uint8(s), n: Align}) {
			return false
		}
		limit := min(room, e.send[s].Avail())
		if e.toSend[s] == 0 || limit == 0 {
			continue
		}
		for i, n := range w.p.sizes {
			if n > limit && (i > 0 || w.p.wholeMessages) {
				continue // shortened, it would be one of the others
			}
			if !out(message{kind: data, stream: uint8(s), n: uint8(min(n, limit))}) {
				return false
			}
		}
	}
	if choices == 0 && (e.rx.CreditDue() || e.ours.CreditDue()) {
		return out(message{kind: creditOnly})
	}
	if choices > 0 {
		return true
	}
	return take("nothing to send", func(_ *world, e, _ *end) error {
		e.polling = true
		return nil
	})
}

// room is the longest message that e can send now.
func (e *end) room() int {
	if e.theirs.Avail() == 0 {
		return 0
	}
	return e.tx.Room()
}

// output claims the room for m, stamps it, and writes it into the peer's ring.
func (w *world) output(e, peer *end, m message) error {
	var off uint32
	if m.kind != creditOnly {
		var ok bool
		if off, ok = e.tx.Reserve(int(m.n)); !ok {
			return fmt.Errorf("room was promised and refused: %+v", m)
		}
		e.theirs.Take()
	}
	if peer.receives--; peer.receives < 0 {
		return errNoReceive
	}
	switch m.kind {
	case data:
		e.send[m.stream].Take(int(m.n))
		e.toSend[m.stream]--
	case update:
		m.limit = uint16(e.recv[m.stream].TakeUpdate())
	}
	m.stamp = w.stamp(e)
	e.seq = e.seq%seqCount + 1
	m.seq = e.seq
	for b := off / Align; b < (off+uint32(m.n))/Align; b++ {
		if peer.mem[b] != 0 {
			return fmt.Errorf("%w: block %d", errOverwritten, b)
		}
		peer.mem[b] = m.seq
	}
	peer.inbox.push(m)
	e.polling = false
	return nil
}

func (w *world) stamp(e *end) credit {
	c := credit{released: uint32(e.rx.TakeCredit()), posted: uint16(e.ours.TakeCredit())}
	switch {
	case w.p.countedRelease:
		c.released = uint32(e.freed)
	case w.p.relativeCredits:
		c.released = uint32(e.rx.told - e.toldFreed)
		e.toldFreed = e.rx.told
	}
	return c
}

// polls offers the ways in which end i can take a message: with its stamp or
// without, read at once or not.
func (w *world) polls(i int, take taker) bool {
	e := &w.ends[i]
	if len(e.inbox) == 0 {
		if e.lost {
			return take("repeat the credit", (*world).repeatCredit)
		}
		return true // ended by the peer's next message
	}
	m := e.inbox[0]
	reader := w.p.readers[i][m.stream]
	mayRead := m.kind != data || reader != never && len(e.unread[m.stream]) == 0
	mayKeep := m.kind == data && reader != atOnce
	for _, lose := range []bool{false, true} {
		for _, keep := range []bool{false, true} {
			if lose && w.losses == 0 || keep && !mayKeep || !keep && !mayRead {
				continue
			}
			name := fmt.Sprintf("poll: %+v, stamp lost %v, kept %v", m, lose, keep)
			dispatch := func(w *world, e, peer *end) error { return w.dispatch(e, peer, lose, keep) }
			if !take(name, dispatch) {
				return false
			}
		}
	}
	return true
}

func (w *world) dispatch(e, peer *end, lose, keep bool) error {
	m := e.inbox.pop()
	var f frame
	if m.n > 0 {
		off, err := e.rx.Place(int(m.n))
		if err != nil {
			return fmt.Errorf("%w: %w", errRefused, err)
		}
		f = frame{off: uint8(off / Align), n: m.n / Align, seq: m.seq}
		if err := e.check(f); err != nil {
			return err
		}
	}
	w.repost(e, m)
	if lose {
		w.losses--
		peer.lost = true
	} else if err := w.apply(e, m.stamp); err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	if m.kind == data {
		if err := e.recv[m.stream].Arrive(int(m.n)); err != nil {
			return fmt.Errorf("%w: %w", errRefused, err)
		}
	}
	switch {
	case m.kind == data && keep:
		f.token = e.rx.Retain()
		e.unread[m.stream].push(f)
	case m.kind == data:
		e.recv[m.stream].Consume(int(m.n))
		e.release(f)
	case m.kind == update:
		if err := e.send[m.stream].Grant(uint64(m.limit)); err != nil {
			return fmt.Errorf("%w: %w", errRefused, err)
		}
		e.release(f)
	default:
		e.release(f)
	}
	w.spill(e)
	e.polling = false
	return nil
}

// repost posts receives again, in batches as rnet does.
func (w *world) repost(e *end, m message) {
	e.used++
	if m.kind != creditOnly {
		e.usedData++
	}
	if e.used >= w.p.repost || e.used-e.usedData >= max(1, w.p.aside/2) {
		e.receives += e.used
		e.ours.Post(e.usedData)
		e.used, e.usedData = 0, 0
	}
}

func (w *world) apply(e *end, c credit) error {
	if w.p.relativeCredits {
		if err := e.tx.Credit(e.tx.acked + uint64(c.released)); err != nil {
			return err
		}
		c.released = uint32(e.tx.acked)
	}
	if err := e.tx.Credit32(c.released); err != nil {
		return err
	}
	return e.theirs.Credit16(c.posted)
}

// spill moves retained data to ordinary memory while too much is retained.
func (w *world) spill(e *end) {
	for e.rx.SpillDue() && !w.p.noSpill {
		oldest, _ := e.rx.Oldest()
		for s := range modelStreams {
			e.unread[s] = slices.Clone(e.unread[s])
			for i := range e.unread[s] {
				if f := &e.unread[s][i]; !f.spilled && f.token == oldest {
					e.release(*f)
					e.rx.Free(oldest)
					f.spilled, f.token = true, Token{}
					f.off, f.seq = 0, 0
				}
			}
		}
	}
}

// read lets the application read the oldest data of stream s.
func (w *world) read(e *end, s int) error {
	f := e.unread[s].pop()
	if !f.spilled {
		if err := e.check(f); err != nil {
			return err
		}
		e.release(f)
		e.rx.Free(f.token)
	}
	e.recv[s].Consume(int(f.n) * Align)
	e.polling = false
	return nil
}

// write lets the application write to stream s.
func (e *end) write(s int) {
	e.toWrite[s]--
	e.toSend[s]++
	e.polling = false
}

// check compares what is in the ring with what was sent.
func (e *end) check(f frame) error {
	for b := f.off; b < f.off+f.n; b++ {
		if e.mem[b] != f.seq {
			return fmt.Errorf("%w: block %d holds message %d instead of %d", errOverwritten, b, e.mem[b], f.seq)
		}
	}
	return nil
}

// release marks the blocks of f as no longer needed.
func (e *end) release(f frame) {
	for b := f.off; b < f.off+f.n; b++ {
		e.mem[b] = 0
	}
	e.freed += uint64(f.n) * Align
}

// repeatCredit sends the credit again that was lost, as a keepalive does.
func (w *world) repeatCredit(e, peer *end) error {
	e.lost = false
	return w.output(e, peer, message{kind: creditOnly})
}
