package rnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// firstSlots is how many slots get addresses when a session begins, if there
// are plenty. Then there are twice as many whenever half of them are in use: a
// dial that opens one stream after the other does not find them used up, and a
// slot that is free is not used again at once.
const firstSlots = 512

// The part of a client's free ports that a session gets, at most, when it
// begins, and later.
const (
	firstShare = 64
	laterShare = 4
)

// told reports whether the listening side has said which slots may be used.
func (a *addrs) told() bool { return a.list.Load() != nil }

// giveAddrs gives addresses to more slots, if half of those that have one are
// in use. The owner of the listening side's poll lock calls it, or who starts the session.
func (s *session) giveAddrs() {
	if s.space == nil {
		return
	}
	slots := int(s.addrs.slots.Load())
	if slots >= s.streams.limit || s.streams.len()*2 < slots {
		return
	}
	want, share := slots, laterShare
	if slots == 0 {
		want, share = firstSlots, firstShare
	}
	want = min(want, s.streams.limit-slots)
	var addr netip.AddrPort
	got := 0
	if !s.addrs.full() {
		addr, got = s.space.take(s.remoteAddr.Addr(), s.transport == fallback.Soft, want, share)
	}
	if got == 0 && s.noAddrs {
		return // the peer knows
	}
	s.noAddrs = got == 0
	r := slotAddrs{slot: uint32(slots), count: uint32(got), addr: addr}
	s.addrs.add(r)
	s.streams.allow(slots + got)
	s.txMu.Lock()
	s.ctlAddrs = append(s.ctlAddrs, r)
	s.flushControl()
	s.txMu.Unlock()
}

// postAddrs tells the peer of a range of slots. txMu is held.
func (s *session) postAddrs() error {
	s.ctlAddrs[0].put(&s.addrsFrame)
	s.ctlAddrs = s.ctlAddrs[1:]
	return s.link.Send(link.Header{Kind: frameAddrs}, s.addrsFrame[:])
}

// addrsCame takes in what the listening side has said. The owner of the poll lock calls it.
func (s *session) addrsCame(payload []byte) error {
	if !s.dialed {
		return fmt.Errorf("%w: ADDRS of a side that has none to give", errProtocol)
	}
	slots := s.addrs.slots.Load()
	r, err := parseAddrs(payload, slots, uint32(s.streams.limit))
	if err != nil {
		return err
	}
	if r.count > 0 && s.addrs.full() {
		return fmt.Errorf("%w: addresses in more than %d pieces", errProtocol, maxRanges)
	}
	s.addrs.add(r)
	if r.count == 0 {
		s.streams.forbid()
		return nil
	}
	s.streams.allow(int(slots + r.count))
	return nil
}

// returnAddrs gives back the addresses of a session that has ended.
func (s *session) returnAddrs() {
	if list := s.addrs.list.Load(); s.space != nil && list != nil {
		s.space.give(s.remoteAddr.Addr(), *list)
	}
}

// errNoSlot: the peer has not yet said what another stream would be called.
var errNoSlot = errors.New("rnet: no address for another stream yet")

// openWhenTold is open, but waits where the listening side has to give an
// address first.
func (s *session) openWhenTold(ctx context.Context, w wish) (*Conn, error) {
	open := s.open
	if w.open != nil {
		open = func() (*Conn, error) { return w.open(s) }
	}
	c, err := open()
	if !errors.Is(err, errNoSlot) {
		return c, err
	}
	var over <-chan time.Time
	if w.hs != nil {
		over = w.hs.Over()
	}
	for {
		freed := s.streams.awaitSlot()
		if c, err = open(); !errors.Is(err, errNoSlot) {
			return c, err
		}
		select {
		case <-freed: // ended by the owner of the poll lock: addresses, or the end of a stream; or the end of the session
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", err, ctx.Err())
		case <-over:
			if !w.hs.GoOn(true) { // the listener lives
				return nil, fallback.Because(fallback.Admission, fmt.Errorf("%w: %w", w.hs.Err(), err))
			}
		}
	}
}
