package mux

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// tableOf returns a table for limit streams, all slots of which may be used.
func tableOf(limit int) *table {
	t := &table{limit: limit}
	t.allow(limit)
	return t
}

func TestTableFindsWhatWasAdded(t *testing.T) {
	tab := tableOf(3 * tablePageLen)
	var conns []*Stream
	for range tab.limit {
		c := new(Stream)
		require.NoError(t, tab.add(c))
		conns = append(conns, c)
	}
	require.ErrorIs(t, tab.add(new(Stream)), syscall.EAGAIN)
	for i, c := range conns {
		require.EqualValues(t, i, c.id&slotMask, "slots are given out lowest first")
		require.Same(t, c, tab.get(c.id))
	}
	require.Nil(t, tab.get(uint32(tab.limit)))
	require.Nil(t, tab.get(slotMask))
	require.Len(t, tab.list(), tab.limit)
	for left := tab.limit - 1; left >= 0; left-- {
		require.Equal(t, left, tab.remove(conns[left], true))
	}
}

func TestUsedSlotHasANewGeneration(t *testing.T) {
	tab := tableOf(1)
	seen := make(map[uint32]bool)
	for range 1 << (32 - slotBits) {
		c := new(Stream)
		require.NoError(t, tab.add(c))
		require.Zero(t, c.id&slotMask)
		require.False(t, seen[c.id], "%#x", c.id)
		seen[c.id] = true
		tab.remove(c, true)
		require.Nil(t, tab.get(c.id))
	}
	c := new(Stream)
	require.NoError(t, tab.add(c))
	require.True(t, seen[c.id], "generations start again")
}

func TestFrameOfAFormerStreamMeetsNobody(t *testing.T) {
	tab := tableOf(1)
	former := new(Stream)
	tab.add(former)
	tab.remove(former, true)
	present := new(Stream)
	tab.add(present)
	require.Nil(t, tab.get(former.id))
	require.Same(t, present, tab.get(present.id))
	require.Equal(t, 1, tab.remove(former, true), "removed already: nothing changes")
	require.Same(t, present, tab.get(present.id))
}

func TestSlotThatIsFreeIsUsedAgainAfterAllOthers(t *testing.T) {
	tab := table{limit: 100}
	require.ErrorIs(t, tab.add(new(Stream)), ErrNoSlot)
	vacant := tab.awaitSlot()
	tab.allow(4)
	<-vacant
	held := new(Stream)
	require.NoError(t, tab.add(held))
	for round := range 12 {
		c := new(Stream)
		require.NoError(t, tab.add(c))
		require.EqualValues(t, 1+round%3, c.id&slotMask)
		tab.remove(c, true)
	}
	for range 3 {
		require.NoError(t, tab.add(new(Stream)))
	}
	require.ErrorIs(t, tab.add(new(Stream)), ErrNoSlot)
	tab.forbid()
	require.ErrorIs(t, tab.add(new(Stream)), syscall.EAGAIN)
	vacant = tab.awaitSlot()
	tab.remove(held, true)
	<-vacant
	require.NoError(t, tab.add(new(Stream)))
}

func TestListeningSideTakesThePeersIDs(t *testing.T) {
	const slot = tablePageLen + tablePageLen/2 // on the second page
	tab := tableOf(2 * tablePageLen)
	c := &Stream{id: 5<<slotBits | slot}
	require.True(t, tab.insert(c))
	require.Same(t, c, tab.get(c.id))
	require.False(t, tab.insert(&Stream{id: c.id}), "the id is in use")
	require.False(t, tab.insert(&Stream{id: 6<<slotBits | slot}), "the slot is in use")
	require.False(t, tab.insert(&Stream{id: uint32(tab.limit)}), "beyond the limit")
	require.Equal(t, 0, tab.remove(c, false))
	require.True(t, tab.insert(&Stream{id: 6<<slotBits | slot}))
}

func TestStreamThatWasRefusedCostsNoMemory(t *testing.T) {
	tab := tableOf(4)
	far := &Stream{id: slotMask}
	require.False(t, tab.insert(far))
	tab.remove(far, false)
	require.True(t, tab.pages.Load() == nil, "pages for an id that was never in the table")
}

func TestShutTableTakesNothing(t *testing.T) {
	tab := tableOf(4)
	c := new(Stream)
	tab.add(c)
	require.False(t, tab.shutIfEmpty())
	require.Equal(t, []*Stream{c}, tab.shutNow())
	require.ErrorIs(t, tab.add(new(Stream)), net.ErrClosed)
	require.False(t, tab.insert(&Stream{id: 2}))
	tab.remove(c, true)
	require.True(t, tab.shutIfEmpty())
	require.Zero(t, tab.len())
}

func TestAFrameBeforeTheOpenIsToldFromALateOne(t *testing.T) {
	tab := tableOf(8)
	id := func(slot, gen uint32) uint32 { return slot | gen<<slotBits }
	open := func(id uint32) { tab.insert(&Stream{id: id}) }
	require.False(t, tab.wasOpened(id(5, 0)))
	open(id(5, 0))
	require.True(t, tab.wasOpened(id(5, 0)))
	require.False(t, tab.wasOpened(id(4, 0)), "a slot that is used out of turn")
	require.False(t, tab.wasOpened(id(5, 1)), "the next one in this slot")
	open(id(9, 0))
	require.False(t, tab.wasOpened(id(9, 0)), "a slot that was not given")
	const last = 1<<(32-slotBits) - 1
	open(id(5, last))
	require.True(t, tab.wasOpened(id(5, last-1)), "late")
	require.False(t, tab.wasOpened(id(5, 0)), "generations start again")
}

func TestARefusedOpenCountsAsOpened(t *testing.T) {
	tab := tableOf(1)
	tab.allow(4)
	require.True(t, tab.insert(&Stream{id: 0}))
	require.False(t, tab.insert(&Stream{id: 1}), "full")
	require.True(t, tab.wasOpened(1))
	tab.shutNow()
	require.False(t, tab.insert(&Stream{id: 2}), "shut")
	require.True(t, tab.wasOpened(2))
}
