//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"fmt"
	"math/bits"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
	"github.com/stretchr/testify/require"
)

func TestBfregsAreWhereTheirDoorbellsFit(t *testing.T) {
	for _, c := range []struct {
		size, count uint32
		fits        bool
	}{
		{512, 16, true}, {512, 2, true}, {16, 16, true}, {64, 1 << 10, true}, {0, 16, true},
		{1, 16, false}, {8, 16, false}, {24, 16, false}, {500, 16, false}, {1024, 16, false}, {1 << 31, 16, false},
		{512, 0, false}, {512, 1, false}, {512, 1<<10 + 1, false}, {512, 1<<32 - 1, false},
	} {
		for _, of := range []Driver{{}, {BlueFlame: true}} {
			t.Run(fmt.Sprintf("%d of %d bytes, %+v", c.count, c.size, of), func(t *testing.T) {
				mem := new(hostMemory)
				d, err := of.Open(mem, kernelThatSays(c.size, c.count))
				if !c.fits {
					require.ErrorIs(t, err, verbs.ErrUnsupported)
					require.Zero(t, mem.used)
					return
				}
				require.NoError(t, err)
				ctx := d.(*context)
				require.EqualValues(t, c.count/2, mem.used, "a page is mapped once")
				newCQ(t, ctx, 8).Arm(false)
				// the last
				q := newQPAt(t, ctx, 2*c.count-1, driver.QPAttr{Type: verbs.QPTypeRC, Cap: size})
				n, _, err := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpWrite}})
				require.NoError(t, err)
				require.Equal(t, 1, n)
				require.Equal(t, q.send.mem[:8], ctx.uars[c.count/2-1][firstBfreg+3*c.size:][:8])
				require.Equal(t, of.BlueFlame && c.size > 0, ctx.combines)
				var attr verbs.DeviceAttr
				ctx.Describe(&attr)
				require.Equal(t, c.size > 0, attr.Caps.Has(verbs.CapBlueFlame))
			})
		}
	}
}

// Requests that are posted alone go to the halves of the register alternately. The register gets a
// request whole if there is room for it there, it does not go over the end of the queue, and it is
// more than the first segment. Of others it gets the first eight bytes.
func TestBlueFlameHasTheWQEsThatAreInTheQueue(t *testing.T) {
	ctx, mem := newContextOf(t, Driver{BlueFlame: true})
	q := newQP(t, ctx, driver.QPAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 8, MaxSendSGE: 1, MaxInline: 256}})
	register := ctx.uars[1][firstBfreg+2*512:][:512] // that of bfreg 6
	whole, overTheEnd := 0, 0
	for i := range 40 {
		wrs := make([]verbs.SendWR, 1+i%7/6)
		for j := range wrs {
			wrs[j] = verbs.SendWR{Opcode: verbs.OpWrite, Flags: verbs.SendInline, Inline: [][]byte{bytes.Repeat([]byte{byte(i)}, 11*i%256)}}
		}
		if i%10 == 0 {
			wrs[0] = verbs.SendWR{Opcode: verbs.OpSend}
		}
		for k := range register {
			register[k] = 0xee
		}
		n, _, err := q.PostSend(wrs)
		require.NoError(t, err)
		require.Equal(t, len(wrs), n)
		posted := q.send.posted.Load()
		require.EqualValues(t, posted&0xffff, bits.ReverseBytes32(q.record[1]), "before the register is written")
		begin := int(q.send.last&q.send.mask) * blockSize
		size := int(posted-q.send.last) * blockSize
		half, other := register[i%2*256:][:256], register[(i+1)%2*256:][:256]
		written := 8
		if over := begin+size > len(q.send.mem); n == 1 && !over && size <= 256 && i%10 != 0 {
			written = size
			whole++
		} else if over {
			overTheEnd++
		}
		require.Equal(t, q.send.mem[begin:][:written], half[:written])
		require.Equal(t, bytes.Repeat([]byte{0xee}, 256-written), half[written:])
		require.Equal(t, bytes.Repeat([]byte{0xee}, 256), other)
		q.send.done.Store(posted)
	}
	require.Greater(t, whole, 20)
	require.NotZero(t, overTheEnd)
	ctx.Close()
	q.Unmap()
	require.Zero(t, mem.used)
}

func TestBlueFlameLeavesTheFirstRegisterToDoorbells(t *testing.T) {
	ctx, _ := newContextOf(t, Driver{BlueFlame: true})
	q := newQPAt(t, ctx, 0, driver.QPAttr{Type: verbs.QPTypeRC, Cap: size})
	for range 4 {
		register := ctx.uars[0][firstBfreg:][:512]
		clear(register)
		n, _, err := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpWrite}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, q.send.mem[q.send.last*blockSize:][:8], register[:8])
		require.Equal(t, make([]byte, 504), register[8:])
	}
}
