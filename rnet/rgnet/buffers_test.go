package rgnet

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/panjf2000/gnet/v2"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/stretchr/testify/require"
)

// reading is what one method of reading gives, to be compared with what gnet
// gives over TCP.
type reading struct {
	call string
	n    int
	data string
	err  error
}

// readings tries each method of reading on a connection that has "abcdefghij"
// to read, of which the first four bytes came before the rest.
func readings(c gnet.Conn) (list []reading) {
	add := func(call string, p []byte, n int, err error) {
		list = append(list, reading{call, n, string(p), err})
	}
	p, err := c.Peek(3)
	add("Peek(3)", p, len(p), err)
	p, err = c.Peek(6) // across the two
	add("Peek(6)", p, len(p), err)
	p, err = c.Peek(11)
	add("Peek(11)", p, 0, err)
	p, err = c.Next(11)
	add("Next(11)", p, 0, err)
	add("InboundBuffered", nil, c.InboundBuffered(), nil)
	p, err = c.Next(2)
	add("Next(2)", bytes.Clone(p), len(p), err)
	n, err := c.Discard(1)
	add("Discard(1)", nil, n, err)
	buf := make([]byte, 2)
	n, err = c.Read(buf)
	add("Read(2)", buf[:n], n, err)
	p, err = c.Peek(-1)
	add("Peek(-1)", p, len(p), err)
	p, err = c.Next(1)
	add("Next(1)", bytes.Clone(p), len(p), err)
	var rest bytes.Buffer
	m, err := c.WriteTo(&rest)
	add("WriteTo", rest.Bytes(), int(m), err)
	n, err = c.Read(buf)
	add("Read of nothing", buf[:n], n, err)
	n, err = c.Read(nil)
	add("Read into nothing", nil, n, err)
	p, err = c.Next(0)
	add("Next of nothing", p, len(p), err)
	n, err = c.Discard(5)
	add("Discard of nothing", nil, n, err)
	return list
}

func TestReadingIsAsInGnet(t *testing.T) {
	want := []reading{
		{"Peek(3)", 3, "abc", nil},
		{"Peek(6)", 6, "abcdef", nil},
		{"Peek(11)", 0, "", io.ErrShortBuffer},
		{"Next(11)", 0, "", io.ErrShortBuffer},
		{"InboundBuffered", 10, "", nil},
		{"Next(2)", 2, "ab", nil},
		{"Discard(1)", 1, "", nil},
		{"Read(2)", 2, "de", nil},
		{"Peek(-1)", 5, "fghij", nil},
		{"Next(1)", 1, "f", nil},
		{"WriteTo", 4, "ghij", nil},
		{"Read of nothing", 0, "", io.ErrShortBuffer},
		{"Read into nothing", 0, "", nil},
		{"Next of nothing", 0, "", nil},
		{"Discard of nothing", 0, "", nil},
	}
	over(t, func(t *testing.T, k carrier) {
		got := make(chan []reading, 1)
		s := k.serve(t, &script{traffic: func(c gnet.Conn) gnet.Action {
			switch c.InboundBuffered() {
			case 4:
				c.Write([]byte{1})
			case 10:
				got <- readings(c)
			}
			return gnet.None
		}})
		c := k.dial(t, s.address)
		_, err := c.Write([]byte("abcd"))
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1)) // these came alone
		require.NoError(t, err)
		_, err = c.Write([]byte("efghij"))
		require.NoError(t, err)
		require.Equal(t, want, hang.Receive(t, got, "the handler is done"))
	})
}

func noise(n int) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(p)
	return p
}

// exchange sends p and reads as many bytes.
func exchange(t testing.TB, c io.ReadWriter, p []byte) []byte {
	t.Helper()
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(p)
		sent <- err
	}()
	got := make([]byte, len(p))
	_, err := io.ReadFull(c, got)
	require.NoError(t, err)
	require.NoError(t, hang.Receive(t, sent, "the write returns"))
	return got
}

func TestEightMebibytesComeBackIntact(t *testing.T) {
	handlers := map[string]func(c gnet.Conn) gnet.Action{
		"piece by piece": new(echo).OnTraffic,
		"as a whole": func(c gnet.Conn) gnet.Action { // more than ring and window hold
			if c.InboundBuffered() < 8<<20 {
				return gnet.None
			}
			p, _ := c.Next(8 << 20)
			c.Write(p)
			return gnet.None
		},
		"half of what is there": func(c gnet.Conn) gnet.Action {
			p, _ := c.Next((c.InboundBuffered() + 1) / 2)
			c.Write(p)
			if c.InboundBuffered() > 0 {
				c.Wake(nil)
			}
			return gnet.None
		},
	}
	over(t, func(t *testing.T, k carrier) {
		for name, traffic := range handlers {
			t.Run(name, func(t *testing.T) {
				s := k.serve(t, &script{traffic: traffic})
				p := noise(8 << 20)
				got := exchange(t, k.dial(t, s.address), p)
				require.Equal(t, sha256.Sum256(p), sha256.Sum256(got))
			})
		}
	})
}

// What does not fit waits in the outbound buffer, other connections go on
// meanwhile, and all of it arrives when the peer reads.
func TestAWriteNeverWaits(t *testing.T) {
	const size = 32 << 20
	over(t, func(t *testing.T, k carrier) {
		waiting := make(chan int, 1)
		s := k.serve(t, &script{traffic: func(c gnet.Conn) gnet.Action {
			p, _ := c.Next(-1)
			if p[0] != 'w' {
				c.Write(p)
				return gnet.None
			}
			n, err := c.Write(noise(size))
			if n != size || err != nil {
				t.Errorf("wrote %d: %v", n, err)
			}
			c.Write([]byte("end"))
			waiting <- c.OutboundBuffered()
			return gnet.None
		}})
		slow, other := k.dial(t, s.address), k.dial(t, s.address)
		_, err := slow.Write([]byte("w"))
		require.NoError(t, err)
		require.Positive(t, hang.Receive(t, waiting, "the handler has written"))
		echoes(t, other, 100, 1000)
		got := make([]byte, size+3)
		_, err = io.ReadFull(slow, got)
		require.NoError(t, err)
		require.Equal(t, sha256.Sum256(append(noise(size), "end"...)), sha256.Sum256(got))
	})
}

// A handler may close right after a large write: over a stream the peer gets
// all of it.
func TestWhatWasWrittenBeforeCloseArrives(t *testing.T) {
	const size = 16 << 20
	for _, k := range streamCarriers {
		t.Run(k.name, func(t *testing.T) {
			s := k.serve(t, &script{traffic: func(c gnet.Conn) gnet.Action {
				c.Discard(-1)
				c.SetLinger(int(hang.Time.Seconds()))
				c.Write(noise(size))
				return gnet.Close
			}})
			c := k.dial(t, s.address)
			_, err := c.Write([]byte("x"))
			require.NoError(t, err)
			got, err := io.ReadAll(c)
			require.NoError(t, err)
			require.Equal(t, sha256.Sum256(noise(size)), sha256.Sum256(got))
		})
	}
}

// A peer that never reads does not keep the engine from ending, and learns that
// it did not get everything.
func TestTheEngineEndsAlthoughAPeerDoesNotRead(t *testing.T) {
	for _, k := range streamCarriers {
		t.Run(k.name, func(t *testing.T) {
			written := make(chan struct{})
			s := k.serve(t, &script{traffic: func(c gnet.Conn) gnet.Action {
				c.Discard(-1)
				c.Write(noise(16 << 20))
				close(written)
				return gnet.None
			}})
			c := k.dial(t, s.address)
			_, err := c.Write([]byte("x"))
			require.NoError(t, err)
			hang.Receive(t, written, "the handler has written")
			s.stop(t)
			_, err = io.Copy(io.Discard, c)
			require.Error(t, err)
			require.False(t, errors.Is(err, io.EOF))
		})
	}
}

func TestWritingToAPeerThatIsGoneClosesTheConnection(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		closed := make(chan struct{}, 1)
		h := &script{
			traffic: func(c gnet.Conn) gnet.Action {
				c.Discard(-1)
				var again func()
				again = func() {
					c.AsyncWrite(make([]byte, 64<<10), func(_ gnet.Conn, err error) error {
						if err == nil {
							go again()
						}
						return nil
					})
				}
				again()
				return gnet.None
			},
		}
		h.close = func(c gnet.Conn, err error) gnet.Action {
			if err != nil && !errors.Is(err, io.EOF) {
				closed <- struct{}{}
			}
			return gnet.None
		}
		s := k.serve(t, h)
		c := k.dial(t, s.address)
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
		_, err = io.ReadFull(c, make([]byte, 64<<10))
		require.NoError(t, err)
		c.(interface{ SetLinger(int) error }).SetLinger(0)
		c.Close()
		hang.Receive(t, closed, "OnClose is called")
	})
}
