package mux

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/seed-b9b531af/ramjet/rnet/internal/wait"
)

// A stream id is a slot of the session's table in its low slotBits and the
// slot's generation above, so that a late frame of a former stream is told
// from one of the present. The dialing side hands out ids.
const (
	slotBits   = 20
	slotMask   = 1<<slotBits - 1
	MaxStreams = 1 << slotBits

	tablePageBits = 7
	tablePageLen  = 1 << tablePageBits
)

type tablePage [tablePageLen]atomic.Pointer[Stream]

// table finds streams by id. Look-ups take no lock; changes take mu.
type table struct {
	pages atomic.Pointer[[]*tablePage]

	mu    sync.Mutex
	gens  []uint16  // generation of each slot given out so far; on the listening side see genOpened
	free  slotQueue // slots to use again; dialing side only
	count int       // streams in the table
	total uint64    // streams that ever were in it
	limit int       // how many there may be
	shut  bool      // no stream may be added any more

	slots     int           // how many may be used, limit at most
	forbidden bool          // the listening side has no address for another slot
	vacancy   chan struct{} // closed when a slot may have become usable, nil if nobody waits for that
}

// slotQueue is a queue of slots, first in first out: one that is free is used
// again after all others that are.
type slotQueue struct {
	list []uint32
	head int
}

func (q *slotQueue) push(slot uint32) { q.list = append(q.list, slot) }

func (q *slotQueue) pop() (uint32, bool) {
	if q.head == len(q.list) {
		return 0, false
	}
	slot := q.list[q.head]
	if q.head++; q.head*2 >= len(q.list) {
		q.list = q.list[:copy(q.list, q.list[q.head:])]
		q.head = 0
	}
	return slot, true
}

// get returns the stream called id, nil if there is none.
func (t *table) get(id uint32) *Stream {
	pages := t.pages.Load()
	if pages == nil {
		return nil
	}
	slot := id & slotMask
	if int(slot>>tablePageBits) >= len(*pages) {
		return nil
	}
	st := (*pages)[slot>>tablePageBits][slot&(tablePageLen-1)].Load()
	if st == nil || st.id != id {
		return nil
	}
	return st
}

// cell returns the place of a slot, making the page if needed. mu is held.
func (t *table) cell(slot uint32) *atomic.Pointer[Stream] {
	var pages []*tablePage
	if p := t.pages.Load(); p != nil {
		pages = *p
	}
	page := int(slot >> tablePageBits)
	if page >= len(pages) {
		grown := make([]*tablePage, page+1)
		copy(grown, pages)
		for i := len(pages); i <= page; i++ {
			grown[i] = new(tablePage)
		}
		t.pages.Store(&grown)
		pages = grown
	}
	return &pages[page][slot&(tablePageLen-1)]
}

// add gives a stream an id and enters it. The error is net.ErrClosed if the session is
// closing, ErrNoSlot if a slot may be had later, EAGAIN if the table is full.
func (t *table) add(st *Stream) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.shut:
		return net.ErrClosed
	case t.count >= t.limit:
		return fmt.Errorf("%w: %d streams on one session", syscall.EAGAIN, t.limit)
	}
	slot, err := t.vacant()
	if err != nil {
		return err
	}
	st.id = slot | uint32(t.gens[slot])<<slotBits
	t.count++
	t.total++
	t.cell(slot).Store(st)
	return nil
}

// vacant takes a slot that was never used, or else the one that was free for
// longest. mu is held.
func (t *table) vacant() (uint32, error) {
	if len(t.gens) < t.slots {
		t.gens = append(t.gens, 0)
		return uint32(len(t.gens) - 1), nil
	}
	if slot, ok := t.free.pop(); ok {
		t.gens[slot]++
		return slot, nil
	}
	if t.forbidden {
		return 0, fmt.Errorf("%w: the listener has no address for more than %d streams of one session", syscall.EAGAIN, t.slots)
	}
	return 0, ErrNoSlot
}

// allow lets the first slots slots be used.
func (t *table) allow(slots int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots, t.forbidden = slots, false
	t.vacated()
}

// forbid says that more slots than now must not be waited for.
func (t *table) forbid() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forbidden = true
	t.vacated()
}

// AwaitSlot returns a channel that is closed when Open may have another answer than
// ErrNoSlot.
func (m *Mux) AwaitSlot() <-chan struct{} {
	freed := m.streams.awaitSlot()
	wait.SweepSoon() // nobody may poll for it
	return freed
}

// awaitSlot returns a channel that is closed when add may have another answer
// than ErrNoSlot.
func (t *table) awaitSlot() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.vacancy == nil {
		t.vacancy = make(chan struct{})
	}
	return t.vacancy
}

// wakeOpeners wakes the goroutines that wait for a slot: there will be none for them.
func (t *table) wakeOpeners() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.vacated()
}

// vacated wakes the goroutines that wait for a slot. mu is held.
func (t *table) vacated() {
	if t.vacancy != nil {
		close(t.vacancy)
		t.vacancy = nil
	}
}

// insert enters a stream under the id that the peer gave it. It returns false if the
// id is in use, the table is full, or the session is closing.
func (t *table) insert(st *Stream) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	slot := st.id & slotMask
	// A slot that the peer was not told of is a lie that would only cost us memory.
	if int(slot) >= t.slots {
		return false
	}
	t.noteOpened(slot, st.id>>slotBits)
	if t.shut || t.count >= t.limit {
		return false
	}
	cell := t.cell(slot)
	if cell.Load() != nil {
		return false
	}
	t.count++
	t.total++
	cell.Store(st)
	return true
}

// On the listening side gens has the generation that was opened last, and this bit, or 0.
const genOpened = 1 << (32 - slotBits)

// noteOpened notes an OPEN, also one that is refused: more of that stream may be under way. mu
// is held.
func (t *table) noteOpened(slot, gen uint32) {
	if n := int(slot) + 1 - len(t.gens); n > 0 {
		t.gens = append(t.gens, make([]uint16, n)...)
	}
	t.gens[slot] = uint16(gen | genOpened)
}

// wasOpened reports whether the peer has opened the stream called id, which may be gone. The
// listening side asks.
func (t *table) wasOpened(id uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	slot := int(id & slotMask)
	if slot >= len(t.gens) || t.gens[slot] == 0 {
		return false
	}
	age := (uint32(t.gens[slot]) - id>>slotBits) % genOpened
	return age < genOpened/2
}

// remove takes a stream out and returns how many streams are left.
func (t *table) remove(st *Stream, dialed bool) (left int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.get(st.id) == st { // a refused one never was in
		slot := st.id & slotMask
		t.cell(slot).Store(nil)
		t.count--
		if dialed {
			t.free.push(slot)
			t.vacated()
		}
	}
	return t.count
}

// shutIfEmpty forbids new streams if there is none now.
func (t *table) shutIfEmpty() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.count > 0 {
		return false
	}
	t.shut = true
	t.vacated()
	return true
}

// shutNow forbids new streams and returns those that exist.
func (t *table) shutNow() []*Stream {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shut = true
	t.vacated()
	return t.listLocked()
}

// clear forgets the streams of a session that is over: some may outlive it by
// what the application has of them.
func (t *table) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pages.Store(nil)
	t.count = 0
}

// list returns the streams.
func (t *table) list() []*Stream {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.listLocked()
}

func (t *table) listLocked() []*Stream {
	list := make([]*Stream, 0, t.count)
	if pages := t.pages.Load(); pages != nil {
		for _, page := range *pages {
			for i := range page {
				if st := page[i].Load(); st != nil {
					list = append(list, st)
				}
			}
		}
	}
	return list
}

// some returns up to most streams, in the order of their slots. It takes no
// lock: streams that come and go meanwhile may be in it or not.
func (t *table) some(most int) (list []*Stream) {
	pages := t.pages.Load()
	if pages == nil {
		return nil
	}
	for _, page := range *pages {
		for i := range page {
			if len(list) >= most {
				return list
			}
			if st := page[i].Load(); st != nil {
				list = append(list, st)
			}
		}
	}
	return list
}

// counts returns how many streams there are, and how many there ever were.
func (t *table) counts() (now int, total uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count, t.total
}

func (t *table) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count
}
