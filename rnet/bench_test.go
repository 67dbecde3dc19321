package rnet

import (
	"io"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/race"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/stretchr/testify/require"
)

// benchCarriers are those whose figures are worth a comparison.
var benchCarriers = []carrier{
	overTCP,
	overSoft,
	{name: "soft-latency", transport: Soft, profile: Latency},
	{name: "soft-efficient", transport: Soft, profile: Efficient},
}

// benchOver runs f for each carrier with an address that behaves as a
// connection's first byte says: in this process, and in another one.
func benchOver(b *testing.B, f func(b *testing.B, dial func() net.Conn)) {
	for _, k := range benchCarriers {
		for _, place := range []string{"one process", "two processes"} {
			b.Run(k.name+"/"+place, func(b *testing.B) {
				var address string
				if place == "two processes" {
					address = roles.Start(b, "target", k.name).Line(b)
				} else {
					ln := k.listen(b)
					go traffic.Serve(ln)
					address = ln.Addr().String()
				}
				b.ReportAllocs()
				f(b, func() net.Conn {
					c, err := k.dialer().Dial("tcp", address)
					require.NoError(b, err)
					b.Cleanup(func() { c.Close() })
					return c
				})
			})
		}
	}
}

func tell(b *testing.B, c net.Conn, mode byte) {
	_, err := c.Write([]byte{mode})
	require.NoError(b, err)
}

func BenchmarkPingPong64(b *testing.B) {
	benchOver(b, func(b *testing.B, dial func() net.Conn) {
		c := dial()
		tell(b, c, traffic.Echo)
		buf := make([]byte, 64)
		b.ResetTimer()
		for range b.N {
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(c, buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func benchWrites(b *testing.B, size int) {
	benchOver(b, func(b *testing.B, dial func() net.Conn) {
		c := dial()
		tell(b, c, traffic.Count)
		buf := make([]byte, size)
		b.SetBytes(int64(size))
		b.ResetTimer()
		for range b.N {
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
		}
		// All of it has been read when the answer comes.
		if err := c.(halfCloser).CloseWrite(); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, buf[:1]); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkOneWay64(b *testing.B)  { benchWrites(b, 64) }
func BenchmarkWrite1MiB(b *testing.B) { benchWrites(b, 1<<20) }

// BenchmarkOpenClose opens a stream, has a byte echoed, and closes it.
func BenchmarkOpenClose(b *testing.B) {
	for _, k := range benchCarriers {
		b.Run(k.name, func(b *testing.B) {
			ln := k.listen(b)
			go func() {
				for {
					s, err := ln.Accept()
					if err != nil {
						return
					}
					s.Close()
				}
			}()
			d := k.dialer()
			address := ln.Addr().String()
			b.ReportAllocs()
			for b.Loop() {
				c, err := d.Dial("tcp", address)
				if err != nil {
					b.Fatal(err)
				}
				c.Close()
			}
		})
	}
}

// BenchmarkFirstDial dials another process, has a byte echoed and hangs up, with a session for each
// connection: so it costs what the first dial of a process does.
func BenchmarkFirstDial(b *testing.B) {
	for _, k := range []carrier{overTCP, {name: "soft-dedicated", transport: Soft, dedicated: true}} {
		b.Run(k.name, func(b *testing.B) {
			address := roles.Start(b, "target", k.name).Line(b)
			d, buf := k.dialer(), make([]byte, 1)
			for b.Loop() {
				c, err := d.Dial("tcp", address)
				require.NoError(b, err)
				_, err = c.Write([]byte{traffic.Echo, 0})
				require.NoError(b, err)
				_, err = io.ReadFull(c, buf)
				require.NoError(b, err)
				require.NoError(b, c.Close())
			}
		})
	}
}

// BenchmarkRequests has 1000 streams in a request-response loop each.
func BenchmarkRequests1000Streams(b *testing.B) {
	const streams = 1000
	benchOver(b, func(b *testing.B, dial func() net.Conn) {
		conns := make([]net.Conn, streams)
		for i := range conns {
			conns[i] = dial()
			tell(b, conns[i], traffic.Echo)
		}
		b.ResetTimer()
		var work sync.WaitGroup
		for i, c := range conns {
			n := b.N / streams
			if i < b.N%streams {
				n++
			}
			work.Go(func() {
				buf := make([]byte, 64)
				for range n {
					if _, err := c.Write(buf); err != nil {
						b.Error(err)
						return
					}
					if _, err := io.ReadFull(c, buf); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		work.Wait()
	})
}

// BenchmarkMessageAmongStreams has a message of 64 B through each of so many open
// streams of one session in turn, by one goroutine, at most 256 under way: what a
// message costs where nothing but the number of streams differs.
func BenchmarkMessageAmongStreams(b *testing.B) {
	for _, streams := range []int{1, 1000, 10_000, 100_000} {
		b.Run(strconv.Itoa(streams), func(b *testing.B) {
			ln := overSoft.listen(b)
			near, far := make([]net.Conn, streams), make([]net.Conn, streams)
			for i := range near {
				near[i], far[i] = overSoft.connect(b, ln)
			}
			require.Len(b, ReadStats().Sessions, 2, "one session, both ends of it")
			buf := make([]byte, 64)
			b.ReportAllocs()
			b.ResetTimer()
			for done := 0; done < b.N; {
				n := min(256, b.N-done)
				for i := done; i < done+n; i++ {
					if _, err := near[i%streams].Write(buf); err != nil {
						b.Fatal(err)
					}
				}
				for i := done; i < done+n; i++ {
					if _, err := io.ReadFull(far[i%streams], buf); err != nil {
						b.Fatal(err)
					}
				}
				done += n
			}
		})
	}
}

// TestHotPathsAllocateNothing counts what both ends of a connection allocate,
// after they have warmed up.
func TestHotPathsAllocateNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector sync.Pool drops things at random, which are allocated anew")
	}
	over(t, softCarriers, func(t *testing.T, k carrier) {
		for _, size := range []int{1, 64, 1 << 10, 4 << 10, 16 << 10, 256 << 10} {
			ln := k.listen(t)
			c, s := k.connect(t, ln)
			require.NoError(t, ln.Close()) // one over a device looks for new addresses each second
			window := int(s.(*Conn).s.mux.Config().Window)
			out := make([]byte, min(size, window))
			in := make([]byte, min(len(out), 3000)) // large pieces wait in the ring
			work := func() {
				if _, err := c.Write(out); err != nil {
					t.Error(err)
				}
				for left := len(out); left > 0; {
					n, err := s.Read(in[:min(left, len(in))])
					if err != nil {
						t.Error(err)
						return
					}
					left -= n
				}
			}
			rounds := 2000
			if k.transport == RDMA {
				rounds = 300 // a virtual machine is slow
			}
			for range rounds {
				work()
			}
			if n := testing.AllocsPerRun(rounds, work); n >= 1 {
				t.Errorf("%d bytes: %v allocations for a Write and its Reads", size, n)
			}
			c.Close() // the rings of all would be more than RLIMIT_MEMLOCK allows
			s.Close()
			awaitNoSessions(t)
		}
	})
}
