package link

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
)

// Frames of all lengths arrive whole and in order, many times around the ring, whether
// they are kept for a while or not.
func TestFramesArriveInOrder(t *testing.T) {
	over(t, func(t *testing.T, device string) {
		from, to := pair(t, device, MinRing)
		rnd := rand.New(rand.NewPCG(1, 0))
		to.keep = func(Header, []byte) bool { return rnd.IntN(3) == 0 }
		const frames = 3000
		sent, taken := 0, 0
		lengths := make([]int, frames)
		for i := range lengths {
			lengths[i] = []int{0, 1, 100, 112, 113, 700, 2000, MinPiece}[rnd.IntN(8)]
		}
		from.until("all frames", func() bool {
			for sent < frames && from.trySend(Header{Stream: uint32(sent), Kind: 3, Flags: uint8(sent)}, payloadOf(sent, lengths[sent])) {
				sent++
			}
			require.NoError(t, to.link.Poll().Err)
			for len(to.got) > 3 || sent == frames && len(to.got) > 0 { // some are held for a while
				a := &to.got[0]
				require.Equal(t, Header{Stream: uint32(taken), Kind: 3, Flags: uint8(taken)}, a.Header)
				require.True(t, bytes.Equal(payloadOf(taken, lengths[taken]), a.bytes()), "frame %d", taken)
				to.free(a)
				to.got = to.got[1:]
				taken++
			}
			return taken == frames
		})
		require.NoError(t, from.brokenBy())
		require.Zero(t, to.link.Stats().Held)
	})
}

// A peer that polls nothing stops us at what its ring and its slots hold; when it polls we
// are told that there is room.
func TestRoomEndsAndComesBack(t *testing.T) {
	over(t, func(t *testing.T, device string) {
		from, to := pair(t, device, MinRing)
		for _, size := range []int{8, MinPiece} {
			sent := 0
			for from.trySend(Header{}, payloadOf(sent, size)) {
				sent++
				require.Less(t, sent, 100_000)
				if from.link.OnWire() {
					// completions of what the device has sent
					require.NoError(t, from.link.Poll().Err)
				}
			}
			messages, bytes := from.link.Unused()
			require.True(t, messages == 0 || bytes < 2*(size+HeaderLen), "%d messages, %d bytes are left", messages, bytes)
			to.until("what was sent", func() bool { return len(to.got) == sent })
			to.got = nil
			told := false
			for !told {
				b := from.link.Poll()
				require.NoError(t, b.Err)
				told = b.Credit
			}
			from.until("room", func() bool { return from.trySend(Header{}, payloadOf(0, size)) })
			to.until("the last", func() bool { return len(to.got) == 1 })
			to.got = nil
		}
	})
}

// What is kept stays as it is, and is moved out when it holds up more than half of the
// ring; a piece that somebody reads is not.
func TestKeptPiecesAreMovedOutBeforeTheyHoldUpTheRing(t *testing.T) {
	from, to := pair(t, soft.DeviceName, MinRing)
	to.keep = func(Header, []byte) bool { return true }
	const frames, size = 80, MinPiece
	sent := 0
	from.until("all frames", func() bool {
		if sent < frames && from.trySend(Header{Stream: uint32(sent)}, payloadOf(sent, size)) {
			sent++
		}
		require.NoError(t, to.link.Poll().Err)
		return len(to.got) == frames
	})
	moved := 0
	for i := range to.got {
		require.True(t, bytes.Equal(payloadOf(i, size), to.got[i].bytes()), "frame %d", i)
		if to.got[i].kept.moved {
			moved++
		}
	}
	st := to.link.Stats()
	require.EqualValues(t, moved, st.MovedOut)
	require.LessOrEqual(t, st.Held, MinRing/2)
	require.Greater(t, moved, 0)

	last := to.got[frames-1].kept
	require.False(t, last.moved)
	last.stays = true
	to.link.Fail()
	for to.link.Poll().Completions > 0 {
	}
	require.False(t, to.link.in.end())
	require.False(t, last.moved, "somebody is at it")
	require.True(t, to.got[frames-2].kept.moved, "all others leave a ring that ends")
	to.link.in.mu.Lock()
	to.link.in.over = false // the end of the test closes the link
	to.link.in.mu.Unlock()
	to.link.Free(last.token)
}

// What was collected stays where it is until Release, and only then has the peer room.
func TestCollectedFramesStayUntilRelease(t *testing.T) {
	over(t, func(t *testing.T, device string) {
		from, to := pair(t, device, MinRing)
		sent := 0
		for from.trySend(Header{Stream: uint32(sent)}, payloadOf(sent, MinPiece)) {
			sent++
			if from.link.OnWire() {
				require.NoError(t, from.link.Poll().Err)
			}
		}
		for len(to.got) < sent {
			b := to.link.Collect(5)
			require.NoError(t, b.Err)
			require.LessOrEqual(t, b.Completions, 5)
		}
		require.NoError(t, from.link.Poll().Err)
		require.False(t, from.trySend(Header{}, payloadOf(0, MinPiece)))
		require.NoError(t, to.link.Release())
		from.until("room", func() bool { return from.trySend(Header{}, payloadOf(0, MinPiece)) })
	})
}

// Gathered frames go as one message, before what is sent after them.
func TestGatheredFramesAreOneMessage(t *testing.T) {
	over(t, func(t *testing.T, device string) {
		from, to := pair(t, device, MinRing)
		from.send.Lock()
		before := from.link.Mark().Requests
		const frames = 10
		for i := range frames {
			require.True(t, from.link.Gathers(i))
			from.link.Gather(Header{Stream: uint32(i)}, payloadOf(i, i))
		}
		require.False(t, from.link.Gathers(gatherPayload+1))
		require.Equal(t, before, from.link.Mark().Requests)
		require.NotZero(t, from.link.Gathered())
		from.send.Unlock()
		require.True(t, from.trySend(Header{Stream: frames}, payloadOf(frames, 300)))
		require.LessOrEqual(t, from.link.Mark().Requests-before, uint64(2*from.link.has.requestsPerMessage()))
		require.Zero(t, from.link.Gathered())
		to.until("all frames", func() bool { return len(to.got) == frames+1 })
		for i, a := range to.got[:frames] {
			require.EqualValues(t, i, a.Stream)
			require.Equal(t, payloadOf(i, i), append([]byte{}, a.payload...))
		}
	})
}

// Frames from registered memory are sent from where they lie, and the link says when it
// may be written to again.
func TestBuffersAreSentFromWhereTheyLie(t *testing.T) {
	over(t, func(t *testing.T, device string) {
		from, to := pair(t, device, MinRing)
		before := verbs.PinnedBytes()
		b, err := from.link.NewBuffer(32 << 10)
		require.NoError(t, err)
		const size = MinPiece
		for i := range 50 {
			from.until("the buffer is sent", func() bool { return from.link.Reached(b.Sent()) })
			copy(b.Bytes()[i:], payloadOf(i, size))
			from.until("room", func() bool {
				require.NoError(t, to.link.Poll().Err)
				from.send.Lock()
				defer from.send.Unlock()
				if from.link.Room(size) < size {
					return false
				}
				require.NoError(t, from.link.SendFrom(Header{Stream: uint32(i)}, b, i, size))
				return true
			})
		}
		to.until("all frames", func() bool { return len(to.got) == 50 })
		for i, a := range to.got {
			require.True(t, bytes.Equal(payloadOf(i, size), a.payload), "frame %d", i)
		}
		from.until("the buffer is sent", func() bool { return from.link.Reached(b.Sent()) })
		b.Discard()
		require.EqualValues(t, len(from.link.heads.Bytes()), verbs.PinnedBytes()-before, "heads of frames are left")
	})
}

// A peer that gives credit which it cannot have is found out.
func TestCreditThatCannotBeBreaksTheLink(t *testing.T) {
	from, _ := pair(t, soft.DeviceName, MinRing)
	from.link.peerReleased.Store(1 << 30)
	from.send.Lock()
	require.False(t, from.link.takeCredit())
	from.send.Unlock()
	from.until("the link is broken", func() bool { return from.brokenBy() != nil })
}

// After Fail what had arrived is delivered.
func TestWhatArrivedBeforeAFailureIsDelivered(t *testing.T) {
	over(t, func(t *testing.T, device string) {
		from, to := pair(t, device, MinRing)
		for i := range 5 {
			require.True(t, from.trySend(Header{Stream: uint32(i)}, payloadOf(i, 100)))
		}
		to.link.Fail()
		for {
			b := to.link.Poll()
			require.NoError(t, b.Err)
			if b.Completions == 0 {
				break
			}
		}
		require.Len(t, to.got, 5)
	})
}

// The receives that credit messages use up must be posted again before those
// that the peer counts on for data are touched.
func TestCreditMessagesDoNotEatTheSlotsOfData(t *testing.T) {
	from, to := pair(t, soft.DeviceName, MinRing)
	for i := range 50 * MinRing / MinPiece {
		from.until("room", func() bool { return from.trySend(Header{}, payloadOf(i, MinPiece-HeaderLen)) })
		require.NoError(t, to.link.Poll().Err)
		require.Less(t, from.link.receives.used-from.link.receives.usedData, controlUnposted)
	}
	require.Greater(t, to.link.Stats().CreditsSent, uint64(controlSlots))
}

// Of a long payload as much goes as there is room for, if that is worth a frame.
func TestRoomOffersAPartOfALongPayload(t *testing.T) {
	over(t, func(t *testing.T, device string) {
		from, _ := pair(t, device, MinRing)
		want := from.link.MaxPayload()
		sendSome := func() int {
			from.send.Lock()
			defer from.send.Unlock()
			n := from.link.Room(want)
			if n > 0 {
				require.NoError(t, from.link.Send(Header{}, make([]byte, n)))
			}
			return n
		}
		for {
			n := sendSome()
			if n < 0 {
				break
			}
			require.GreaterOrEqual(t, n, MinPiece)
			require.LessOrEqual(t, n, want)
		}
		_, bytes := from.link.Unused()
		require.Less(t, bytes, MinRing/2)
	})
}

// Credit counts as soon as its message was looked at, before the receive of that is posted again. Even
// so there is a receive for each message that the peer sends.
func TestCreditMessagesFindAReceiveInTheMiddleOfABatch(t *testing.T) {
	from, to := pair(t, soft.DeviceName, MinRing)
	from.link.wcs = make([]verbs.WC, PollBatch)
	used := &from.link.receives
	send := func(size int) bool {
		sent := from.trySend(Header{}, payloadOf(0, size))
		assert.NoError(t, to.link.Poll().Err)
		return sent
	}
	useUp := func() { // the ring by long messages, but for what short ones take that use up the slots
		for _, free := from.link.Unused(); free > MinRing/6 && send(MinPiece); _, free = from.link.Unused() {
		}
		for send(1) {
		}
	}
	for used.used-used.usedData < controlUnposted-1 { // as many as are not posted again yet
		send(1)
		require.NoError(t, from.link.Poll().Err)
	}
	useUp()
	needed := 0
	from.keep = func(Header, []byte) bool {
		from.keep = nil
		before := to.link.Mark().Requests
		useUp()
		for to.trySend(Header{}, nil) {
		}
		needed = used.used + int(to.link.Mark().Requests-before)
		return false
	}
	require.True(t, to.trySend(Header{}, nil))
	require.NoError(t, from.link.Poll().Err)
	require.Positive(t, needed)
	receives, _ := from.link.has.queues()
	require.LessOrEqual(t, needed, receives)
}
