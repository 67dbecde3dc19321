//go:build amd64 || arm64

package mlx5

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

func (d *driver) mapClock(index uint64, length uint64, protection, flags int) unix.Errno {
	return d.context.Map(frame.Mapping{Offset: (mmapCoreClock<<8 | index) * pageSize, Length: length, Protection: protection, Flags: flags})
}

// shown is what the page of the clock shows, as a program reads it.
func (d *driver) shown() uint64 {
	page := d.context.pages[mmapCoreClock<<8*pageSize:][:pageSize]
	describes := d.context.describe()
	require.NotZero(d.t, le.Uint32(describes[36:])&1, "there is an offset")
	return be.Uint64(page[le.Uint64(describes[48:]):])
}

func TestTheClockIsMappedAsTheKernelAllows(t *testing.T) {
	d := newDriver(t, fabric.New(), Config{})
	for _, test := range []struct {
		name              string
		index, length     uint64
		protection, flags int
		errno             unix.Errno
	}{
		{"two pages", 0, 2 * pageSize, unix.PROT_READ, unix.MAP_SHARED, unix.EINVAL},
		{"to be written", 0, pageSize, unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED, unix.EPERM},
		{"a copy", 0, pageSize, unix.PROT_READ, unix.MAP_PRIVATE, unix.EINVAL},
		{"a copy, to be written", 0, pageSize, unix.PROT_WRITE, unix.MAP_PRIVATE, unix.EPERM},
		{"another page", 1, pageSize, unix.PROT_READ, unix.MAP_SHARED, unix.EINVAL},
	} {
		require.Equal(t, test.errno, d.mapClock(test.index, test.length, test.protection, test.flags), test.name)
		require.Zero(t, d.shown(), test.name)
	}
	before := clock()
	require.Zero(t, d.mapClock(0, pageSize, unix.PROT_READ, unix.MAP_SHARED))
	require.GreaterOrEqual(t, d.shown(), before)
	require.LessOrEqual(t, d.shown(), clock())
}

// A program that has a completion sees its time in the page, or a later one.
func TestTheClockIsThatOfCompletions(t *testing.T) {
	f, a, b := newPair(t, fabric.AccessRemoteWrite, 0)
	for _, e := range []*endpoint{a, b} {
		require.Zero(t, e.mapClock(0, pageSize, unix.PROT_READ, unix.MAP_SHARED))
	}
	now := time.Now()
	for range 3 {
		before := a.shown()
		require.NotZero(t, before)
		a.post(a.wqe(opSend, dataSegment(addressOf(a.data), 7, a.lkey)))
		b.receive(dataSegment(addressOf(b.data), 7, b.lkey))
		for len(a.completions()) == 0 {
			f.Step(now)
			now = now.Add(time.Microsecond)
		}
		at := be.Uint64(a.cqes[(a.seen-1)%cqSize*cqeSize+48:])
		require.LessOrEqual(t, before, at)
		require.LessOrEqual(t, at, a.shown())
	}
	before := b.shown()
	time.Sleep(time.Millisecond)
	f.Step(now)
	require.Greater(t, b.shown(), before, "it goes on without completions")

	b.device.Remove()
	require.Zero(t, b.shown())
	f.Step(now)
	require.Zero(t, b.shown())
	require.NotZero(t, a.shown(), "the other device is there")
	require.Equal(t, unix.EIO, b.mapClock(0, pageSize, unix.PROT_READ, unix.MAP_SHARED))
	require.Empty(t, f.Violations())
}
