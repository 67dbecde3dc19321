package link

import (
	"syscall"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/stretchr/testify/require"
)

// pagesGiven notes what a link gives memory to.
type pagesGiven struct {
	remoteMemory
	page  int
	start uint64
	whole map[uint64]bool // pages, by their offset, that a call has covered
}

func (p *pagesGiven) RemotePageSize() int { return p.page }

func (p *pagesGiven) PopulateRemote(rkey uint32, addr uint64, n int) error {
	page := uint64(p.page)
	from, end := addr-p.start, addr-p.start+uint64(n)
	for at := (from + page - 1) / page * page; at+page <= end; at += page {
		p.whole[at] = true
	}
	return p.remoteMemory.PopulateRemote(rkey, addr, n)
}

// A provider gives memory to whole pages. Where these are larger than the steps in which
// the ring is used, none may be left out between two steps.
func TestRingGetsMemoryInWholePages(t *testing.T) {
	for _, page := range []int{4 << 10, 16 << 10, 64 << 10} {
		const ring = 1 << 20
		from, _ := pair(t, soft.DeviceName, ring)
		// the first has it already
		given := &pagesGiven{from.link.remote.pages, page, from.link.peer.RingAddr, map[uint64]bool{0: true}}
		from.link.remote.pages, from.link.remote.page = given, uint32(page)
		payload := make([]byte, 8<<10)
		for from.trySend(Header{Stream: 1, Kind: 9}, payload) {
		}
		require.Greater(t, from.link.tx.Offset(), uint32(ring/2))
		for at := uint64(0); at < uint64(from.link.tx.Offset()); at += uint64(page) {
			require.True(t, given.whole[at], "page of %d bytes at %d", page, at)
		}
	}
}

func TestRingOfThePeerThatCostsTooMuchIsRefused(t *testing.T) {
	dev := openDevice(t, soft.DeviceName)
	for _, own := range []uint32{1 << 20, 2 * MaxChargedRing} {
		u := &user{t: t}
		l, err := New(Config{Device: dev, Release: func() {}, RingSize: own, Slots: 256, Send: &u.send}, u)
		require.NoError(t, err)
		u.link = l
		defer u.end()
		peer := l.Params()
		peer.RingSize = 4 * MaxChargedRing
		require.ErrorIs(t, l.Connect(peer), ErrRing)
		peer.RingSize = max(MaxChargedRing, own)
		require.NoError(t, l.Connect(peer))
	}
}

// noMemory is a provider that has none left for the ring.
type noMemory struct{ remoteMemory }

func (noMemory) PopulateRemote(uint32, uint64, int) error { return syscall.ENOMEM }

// The frame has its place in the ring already: one that followed would lie where the peer does
// not look.
func TestNothingIsSentAfterAFrameWithoutMemory(t *testing.T) {
	from, _ := pair(t, soft.DeviceName, MinRing)
	l := from.link
	l.remote.pages = noMemory{l.remote.pages}
	from.send.Lock()
	defer from.send.Unlock()
	payload := make([]byte, 8<<10)
	require.Equal(t, len(payload), l.Room(len(payload)))
	require.ErrorIs(t, l.Send(Header{Stream: 1, Kind: 9}, payload), syscall.ENOMEM)
	require.ErrorIs(t, l.Send(Header{Stream: 1, Kind: 9}, nil), syscall.ECONNRESET)
}
