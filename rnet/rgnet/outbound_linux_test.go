package rgnet

import (
	"io"
	"runtime"
	"testing"

	"github.com/panjf2000/gnet/v2"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet"
)

// A peer with a small window does not make the loop go through all answers that wait each time it takes some.
func TestManySmallAnswersGoToAPeerWithASmallWindow(t *testing.T) {
	const answers, size = 20_000, 64
	s := soft.serve(t, &script{traffic: func(c gnet.Conn) gnet.Action {
		c.Discard(-1)
		for i := range answers {
			var p [size]byte
			p[0], p[1] = byte(i), byte(i>>8)
			c.Write(p[:])
		}
		return gnet.None
	}})
	narrow := carrier{cfg: Config{Transport: rnet.Soft, Limits: rnet.Limits{Window: 4 << 10}}}
	c := narrow.dial(t, s.address)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := c.Write([]byte("x"))
	require.NoError(t, err)
	got := make([]byte, answers*size)
	_, err = io.ReadFull(c, got)
	require.NoError(t, err)
	runtime.ReadMemStats(&after)
	for i := range answers {
		require.Equal(t, []byte{byte(i), byte(i >> 8)}, got[i*size:][:2])
	}
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20))
}
