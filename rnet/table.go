package rnet

import (
	"sync"
	"sync/atomic"
)

// A stream id is a slot of the session's table in its low slotBits and the
// slot's generation above, so that a late frame of a former stream is told
// from one of the present. The dialing side hands out ids.
const (
	slotBits   = 20
	slotMask   = 1<<slotBits - 1
	maxStreams = 1 << slotBits

	tablePageBits = 9
	tablePageLen  = 1 << tablePageBits
)

type tablePage [tablePageLen]atomic.Pointer[Conn]

// table finds streams by id. Look-ups take no lock; changes take mu.
type table struct {
	pages atomic.Pointer[[]*tablePage]

	mu    sync.Mutex
	gens  []uint16 // generation of each slot given out so far; dialing side only
	free  []uint32 // slots to use again; dialing side only
	count int      // streams in the table
	total uint64   // streams that ever were in it
	limit int      // how many there may be
	shut  bool     // no stream may be added any more
}

// get returns the stream called id, nil if there is none.
func (t *table) get(id uint32) *Conn {
	pages := t.pages.Load()
	if pages == nil {
		return nil
	}
	slot := id & slotMask
	if int(slot>>tablePageBits) >= len(*pages) {
		return nil
	}
	c := (*pages)[slot>>tablePageBits][slot&(tablePageLen-1)].Load()
	if c == nil || c.id != id {
		return nil
	}
	return c
}

// cell returns the place of a slot, making the page if needed. mu is held.
func (t *table) cell(slot uint32) *atomic.Pointer[Conn] {
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

// add gives c an id and enters it. It returns false if the session is
// closing or full.
func (t *table) add(c *Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shut || t.count >= t.limit {
		return false
	}
	var slot uint32
	if n := len(t.free); n > 0 {
		slot = t.free[n-1]
		t.free = t.free[:n-1]
		t.gens[slot]++
	} else {
		slot = uint32(len(t.gens))
		t.gens = append(t.gens, 0)
	}
	c.id = slot | uint32(t.gens[slot])<<slotBits
	t.count++
	t.total++
	t.cell(slot).Store(c)
	return true
}

// insert enters c under the id that the peer gave it. It returns false if the
// id is in use, the table is full, or the session is closing.
func (t *table) insert(c *Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	slot := c.id & slotMask
	// A slot beyond the limit is a lie that would only cost us memory.
	if t.shut || t.count >= t.limit || int(slot) >= t.limit {
		return false
	}
	cell := t.cell(slot)
	if cell.Load() != nil {
		return false
	}
	t.count++
	t.total++
	cell.Store(c)
	return true
}

// remove takes c out and returns how many streams are left.
func (t *table) remove(c *Conn, dialed bool) (left int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.get(c.id) == c { // a refused one never was in
		slot := c.id & slotMask
		t.cell(slot).Store(nil)
		t.count--
		if dialed {
			t.free = append(t.free, slot)
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
	return true
}

// shutNow forbids new streams and returns those that exist.
func (t *table) shutNow() []*Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shut = true
	return t.listLocked()
}

// list returns the streams.
func (t *table) list() []*Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.listLocked()
}

func (t *table) listLocked() []*Conn {
	conns := make([]*Conn, 0, t.count)
	if pages := t.pages.Load(); pages != nil {
		for _, page := range *pages {
			for i := range page {
				if c := page[i].Load(); c != nil {
					conns = append(conns, c)
				}
			}
		}
	}
	return conns
}

// some returns up to most streams, in the order of their slots. It takes no
// lock: streams that come and go meanwhile may be in it or not.
func (t *table) some(most int) (conns []*Conn) {
	pages := t.pages.Load()
	if pages == nil {
		return nil
	}
	for _, page := range *pages {
		for i := range page {
			if len(conns) >= most {
				return conns
			}
			if c := page[i].Load(); c != nil {
				conns = append(conns, c)
			}
		}
	}
	return conns
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
