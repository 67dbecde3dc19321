//go:build amd64 || arm64

package mlx5

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// mapping is memory that notes what was mapped of it.
type mapping struct {
	hostMemory
	offset uint64
	pages  []byte
	may    driver.Protection
}

func (m *mapping) Map(offset uint64, size int, may driver.Protection) ([]byte, error) {
	pages, err := m.hostMemory.Map(offset, size, may)
	m.offset, m.pages, m.may = offset, pages, may
	return pages, err
}

// allocDM makes memory that the kernel says is at begin of a page with a number.
func allocDM(t testing.TB, length int, begin uint64, page uint16) (driver.DM, *mapping, error) {
	t.Helper()
	mem := new(mapping)
	ctx, err := Driver{}.Open(mem, kernelThatSays(512, 16))
	require.NoError(t, err)
	mem.used = 0
	dm, err := ctx.(driver.MemoryContext).AllocDM(length, func(attrs []driver.Attr) error {
		require.Len(t, attrs, 2)
		require.EqualValues(t, 0x1000, attrs[0].ID)
		require.Len(t, attrs[0].Out, 8)
		*abi.ViewAt[uint64](attrs[0].Out, 0) = begin
		require.EqualValues(t, 0x1001, attrs[1].ID)
		require.Len(t, attrs[1].Out, 2)
		*abi.ViewAt[uint16](attrs[1].Out, 0) = page
		return nil
	})
	return dm, mem, err
}

func TestMemoryOfADeviceIsWhereTheKernelSays(t *testing.T) {
	for _, c := range []struct {
		length int
		begin  uint64
		page   uint16
		offset uint64 // in pages
		size   int
	}{
		{64, 0, 0, 0x800, 4096},
		{64, 4096 - 64, 5, 0x805, 4096},
		{100, 4096 - 128, 255, 0x8ff, 4096},
		{4097, 4096 - 64, 256, 0x1_0800, 8192}, // the upper byte is beyond the command
		{8192, 0, 0xabcd, 0xab_08cd, 8192},
	} {
		dm, mem, err := allocDM(t, c.length, c.begin, c.page)
		require.NoError(t, err)
		require.Equal(t, c.offset*4096, mem.offset)
		require.Len(t, mem.pages, c.size)
		require.Equal(t, driver.MayRead|driver.MayWrite, mem.may)
		require.NoError(t, dm.Write([]byte("to the device"[:12]), 8))
		require.Equal(t, "to the devic", string(mem.pages[c.begin+8:][:12]))
		last := c.length &^ 3
		copy(mem.pages[int(c.begin)+last-4:], "LAST")
		got := make([]byte, 9)
		require.NoError(t, dm.Read(got[1:5], last-4))
		require.Equal(t, "\x00LAST\x00\x00\x00\x00", string(got))
		require.NoError(t, dm.Read(got[1:5], 12), "and not more than that")
		require.Equal(t, "\x00he d\x00\x00\x00\x00", string(got))
		dm.Unmap()
		require.Zero(t, mem.used)
	}
}

func TestMemoryOfADeviceTakesWords(t *testing.T) {
	dm, mem, err := allocDM(t, 64, 128, 0)
	require.NoError(t, err)
	before := string(mem.pages)
	for _, at := range []struct{ offset, length int }{{1, 4}, {2, 4}, {0, 1}, {0, 6}, {4, 63 - 4}} {
		require.ErrorIs(t, dm.Write(make([]byte, at.length), at.offset), verbs.ErrInvalid)
		require.ErrorIs(t, dm.Read(make([]byte, at.length), at.offset), verbs.ErrInvalid)
	}
	require.Equal(t, before, string(mem.pages))
}

func TestMemoryThatTheKernelCannotMeanIsNotMapped(t *testing.T) {
	for _, c := range []struct {
		length int
		begin  uint64
	}{{64, 4096 - 63}, {64, 4096}, {64, 1 << 63}, {64, ^uint64(0)}, {4096, 64}, {64, 2}} {
		_, mem, err := allocDM(t, c.length, c.begin, 0)
		require.ErrorIs(t, err, verbs.ErrInvalid, c)
		require.Zero(t, mem.used)
	}
	ctx, mem := newContext(t)
	pages, refusal := mem.used, errors.New("the kernel refuses")
	_, err := ctx.AllocDM(64, func([]driver.Attr) error { return refusal })
	require.ErrorIs(t, err, refusal)
	require.Equal(t, pages, mem.used)
}
