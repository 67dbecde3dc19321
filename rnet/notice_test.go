package rnet

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// sentToRing is how many bytes of the peer's ring c's session has taken so far.
func sentToRing(c *Conn) uint64 {
	c.s.txMu.Lock()
	defer c.s.txMu.Unlock()
	return c.s.tx.Sent()
}

// Where there are no immediates a message that fits into a receive takes
// nothing of the ring, and what comes before and after it stays in order.
func TestShortMessagesGoPastTheRing(t *testing.T) {
	for _, k := range orKernel(overNotices) {
		t.Run(k.name, func(t *testing.T) {
			dialed, accepted := k.streams(t)
			if dialed.s.notices == nil {
				t.Skip("the device has immediates")
			}
			const longest = shortMessage - frameHeaderLen
			for _, size := range []int{1, longest, longest + 1, 1, 3 * shortMessage, longest - 1, 20 << 10, 2} {
				sent := randomBytes(uint64(size), size)
				before := sentToRing(dialed)
				_, err := dialed.Write(sent)
				require.NoError(t, err)
				require.Equal(t, size <= longest, sentToRing(dialed) == before, "%d bytes", size)
				got := make([]byte, size)
				_, err = io.ReadFull(accepted, got)
				require.NoError(t, err)
				require.Equal(t, sent, got)
			}
		})
	}
}
