//go:build amd64 || arm64

package mlx5

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

func TestWallTimeIsThatOfTheKernelsPage(t *testing.T) {
	c := &context{clockInfo: make([]byte, pageSize)}
	info := abi.ViewAt[clockInfo](c.clockInfo, 0)
	const mask = 1<<48 - 1
	info.nsec.Store(1_000_000)
	info.mult.Store(64 << 4) // 64 ns a tick
	info.shift.Store(4)
	info.mask.Store(mask)
	for _, test := range []struct{ cycles, ticks, want uint64 }{
		{100, 100, 1_000_000},
		{100, 105, 1_000_000 + 5*64},
		{100, 95, 1_000_000 - 5*64},
		{mask - 1, 3, 1_000_000 + 5*64}, // gone round
		{3, mask - 1, 1_000_000 - 5*64},
		{0, 1 << 46, 1_000_000 + 64<<46}, // more than 64 bits before the shift
	} {
		info.cycles.Store(test.cycles)
		at, err := c.WallTime(test.ticks)
		require.NoError(t, err)
		require.Equal(t, time.Unix(0, int64(test.want)), at, "%+v", test)
	}
	info.sign.Store(3) // being written
	_, err := c.WallTime(0)
	require.ErrorIs(t, err, verbs.ErrBusy)
}

// clockContext is one of a kernel that says where the clock is.
func clockContext(t *testing.T, mem driver.Memory, compMask uint32, offset uint64) *context {
	t.Helper()
	answer := kernelThatSays(512, 16)
	c, err := Driver{}.Open(mem, func(u driver.Udata) error {
		err := answer(u)
		out := abi.ViewAt[contextOut](u.Out, 0)
		out.compMask, out.coreClockOffset = compMask, offset
		return err
	})
	require.NoError(t, err)
	return c.(*context)
}

func TestTheClockIsReadFromItsPage(t *testing.T) {
	for _, offset := range []uint64{0, 0x10, pageSize - 8} {
		mem := new(mapping)
		c := clockContext(t, mem, hasCoreClock, offset)
		attr := verbs.DeviceAttr{Caps: verbs.CapTimestamps}
		c.Describe(&attr)
		require.True(t, attr.Caps.Has(verbs.CapClock))
		used := mem.used
		_, err := c.Clock()
		require.NoError(t, err)
		require.Equal(t, used+1, mem.used)
		require.Equal(t, uint64(0x500*pageSize), mem.offset)
		require.Equal(t, driver.MayRead, mem.may)
		require.Len(t, mem.pages, pageSize)

		binary.BigEndian.PutUint64(mem.pages[offset:], 0x0123456789abcdef)
		ticks, err := c.Clock()
		require.NoError(t, err)
		require.EqualValues(t, 0x0123456789abcdef, ticks)
		require.Equal(t, used+1, mem.used, "it is mapped once")

		c.Close()
		require.Zero(t, mem.used)
		_, err = c.Clock()
		require.ErrorIs(t, err, verbs.ErrClosed)
		require.Zero(t, mem.used)
	}
}

func TestAClockThatIsNowhereIsUnsupported(t *testing.T) {
	for name, c := range map[string]struct {
		compMask uint32
		offset   uint64
	}{
		"no offset":         {hasDumpFillMKey, 0},
		"behind the page":   {hasCoreClock, pageSize},
		"half in the page":  {hasCoreClock, pageSize - 4},
		"not at a word":     {hasCoreClock, 2},
		"more than int has": {hasCoreClock, 1<<64 - 4},
		"an older kernel's": {0, 0},
	} {
		mem := new(hostMemory)
		c := clockContext(t, mem, c.compMask, c.offset)
		used := mem.used
		attr := verbs.DeviceAttr{Caps: verbs.CapTimestamps}
		c.Describe(&attr)
		require.False(t, attr.Caps.Has(verbs.CapClock), name)
		_, err := c.Clock()
		require.ErrorIs(t, err, verbs.ErrUnsupported, name)
		require.Equal(t, used, mem.used, name)
	}
}

// noMemory maps nothing once that is said.
type noMemory struct {
	hostMemory
	err error
}

func (m *noMemory) Map(offset uint64, size int, may driver.Protection) ([]byte, error) {
	if m.err != nil {
		return nil, m.err
	}
	return m.hostMemory.Map(offset, size, may)
}

func TestAClockThatCannotBeMappedIsTriedAgain(t *testing.T) {
	mem := new(noMemory)
	c := clockContext(t, mem, hasCoreClock, 0)
	mem.err = errors.New("no memory")
	_, err := c.Clock()
	require.Equal(t, mem.err, err)
	mem.err = nil
	_, err = c.Clock()
	require.NoError(t, err)
	c.Close()
	require.Zero(t, mem.used)
}

// The halves of a counter are read one after the other, and it goes on meanwhile.
func TestAClockWhoseLowerHalfGoesRoundIsReadAgain(t *testing.T) {
	for _, step := range []uint64{0, 1, 2, 1 << 20, 1 << 31} {
		for _, start := range []uint64{0, 1<<32 - 1, 1<<32 - 2, 1<<32 - 3, 5<<32 - 2, 1<<63 - 1, 1<<64 - 1} {
			now := start
			read := func(shift int) func() uint32 {
				return func() uint32 {
					half := uint32(now >> shift)
					now += step
					return bits.ReverseBytes32(half)
				}
			}
			got := readHalves(read(32), read(0))
			require.LessOrEqual(t, got-start, now-start, "from %#x by %#x", start, step)
		}
	}
}

func TestAClockMayBeReadWhileItsDeviceIsClosed(t *testing.T) {
	for range 100 {
		mem := new(mapping)
		c := clockContext(t, mem, hasCoreClock, 0)
		var readers sync.WaitGroup
		for range 3 {
			readers.Go(func() {
				for {
					if _, err := c.Clock(); err != nil { // ends with Close
						require.ErrorIs(t, err, verbs.ErrClosed)
						return
					}
				}
			})
		}
		c.Close()
		readers.Wait()
		require.Zero(t, mem.used)
	}
}
