package link

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
)

// Where there are no immediates a message that fits into a receive takes
// nothing of the ring, and what comes before and after it stays in order.
func TestShortMessagesGoPastTheRing(t *testing.T) {
	from, to := pair(t, soft.TestNoImmName, MinRing)
	const longest = shortMessage - HeaderLen
	for i, size := range []int{1, longest, longest + 1, 1, 3 * shortMessage, longest - 1, 20 << 10, 2} {
		before := from.link.tx.Sent()
		require.True(t, from.trySend(Header{Stream: uint32(i)}, payloadOf(i, size)))
		require.Equal(t, size <= longest, from.link.tx.Sent() == before, "%d bytes", size)
		to.until("the frame", func() bool { return len(to.got) == i+1 })
		require.True(t, bytes.Equal(payloadOf(i, size), to.got[i].payload))
	}
}

// Behind a SEND that is no message nobody knows where the next one lies.
func TestNothingIsDeliveredBehindASendThatIsNoMessage(t *testing.T) {
	over(t, func(t *testing.T, device string) {
		from, to := pair(t, device, MinRing)
		_, err := from.link.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}})
		require.NoError(t, err)
		require.True(t, from.trySend(Header{}, payloadOf(0, 1)))
		require.True(t, from.trySend(Header{}, payloadOf(1, 3*shortMessage)))
		before := to.link.receives.used
		var broken error
		from.until("the two behind it", func() bool {
			if b := to.link.Poll(); b.Err != nil {
				broken = b.Err
			}
			return to.link.receives.used == before+2
		})
		require.ErrorIs(t, broken, ErrProtocol)
		require.Empty(t, to.got)
	})
}
