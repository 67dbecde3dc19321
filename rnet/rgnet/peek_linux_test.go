package rgnet

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/panjf2000/gnet/v2"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/stretchr/testify/require"
)

// A handler that takes small messages off a long queue, and looks at all of it
// each time, is given the queue itself.
func TestPeekDoesNotCopyTheQueueAgainAndAgain(t *testing.T) {
	const size, message = 2 << 20, 1 << 10
	data := noise(size)
	for _, k := range streamCarriers {
		t.Run(k.name, func(t *testing.T) {
			allocated := make(chan uint64, 1)
			s := k.serve(t, &script{traffic: func(c gnet.Conn) gnet.Action {
				if c.InboundBuffered() < size {
					return gnet.None
				}
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				for at := 0; at < size; at += message {
					p, err := c.Peek(-1)
					if err != nil || len(p) != size-at || !bytes.Equal(p[:message], data[at:at+message]) {
						t.Errorf("at %d: %d bytes, %v", at, len(p), err)
						break
					}
					c.Discard(message)
				}
				runtime.ReadMemStats(&after)
				allocated <- after.TotalAlloc - before.TotalAlloc
				return gnet.None
			}})
			c := k.dial(t, s.address)
			_, err := c.Write(data)
			require.NoError(t, err)
			require.Less(t, hang.Receive(t, allocated, "the handler is done"), uint64(16<<20))
		})
	}
}

// What Next gives is the handler's until it returns, whatever it calls then; what
// Peek gives, until Discard.
func TestWhatNextAndPeekGiveStaysAsItIs(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		c := &conn{l: &eventLoop{}, state: connOpen}
		data := noise(20_000)
		first, second := random.IntN(8000), random.IntN(8000)
		c.inbound.Write(make([]byte, first))
		c.inbound.Write(data[:first])
		c.inbound.Discard(first) // so that what follows may wrap around
		c.inbound.Write(data[first : first+second])
		c.fresh = bytes.Clone(data[first+second:])
		var given, want [][]byte
		var peeked, saw [][]byte
		check := func() {
			for i := range peeked {
				require.Equal(t, saw[i], peeked[i])
			}
			peeked, saw = nil, nil
		}
		for len(data) > 0 {
			n := 1 + random.IntN(min(len(data), 4000))
			switch random.IntN(3) {
			case 0:
				p, err := c.Next(n)
				require.NoError(t, err)
				given, want = append(given, p), append(want, data[:n])
				data = data[n:]
			case 1:
				p, err := c.Peek(n)
				require.NoError(t, err)
				peeked, saw = append(peeked, p), append(saw, data[:n])
			case 2:
				check()
				c.Discard(n)
				data = data[n:]
			}
			require.Equal(t, len(data), c.InboundBuffered())
		}
		check()
		for i := range given {
			require.Equal(t, want[i], given[i])
		}
	}
}

// A message that Next takes apart leaves nothing behind in the connection.
func TestAConnectionForgetsWhatNextGave(t *testing.T) {
	c := &conn{l: &eventLoop{}, state: connOpen}
	c.inbound.Write(noise(64 << 10))
	for c.InboundBuffered() > 0 {
		c.Next(16)
	}
	c.settle()
	require.LessOrEqual(t, cap(c.lent), keptLent)
}
