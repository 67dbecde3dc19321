package rgnet

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/panjf2000/gnet/v2"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

// benchCarriers are those whose figures are worth a comparison. gnet's own
// figures are those over TCP, which it serves by itself.
var benchCarriers = []carrier{
	overTCP,
	{name: "soft", cfg: Config{Transport: rnet.Soft}},
	{name: "soft-latency", cfg: Config{Transport: rnet.Soft, Profile: rnet.Latency}},
	{name: "soft-efficient", cfg: Config{Transport: rnet.Soft, Profile: rnet.Efficient}},
}

func carrierNamed(name string) (carrier, error) {
	for _, k := range append(benchCarriers, streamCarriers...) {
		if k.name == name {
			return k, nil
		}
	}
	return carrier{}, fmt.Errorf("no carrier %q", name)
}

// The role "echo" serves an echo until it is killed.
func init() {
	roles.Add("echo", func(args []string) error {
		k, err := carrierNamed(args[0])
		if err != nil {
			return err
		}
		return k.cfg.Run(new(echo), "tcp://"+args[1], gnet.WithLogger(quiet{}))
	})
}

func benchOver(b *testing.B, f func(b *testing.B, k carrier, address string)) {
	for _, k := range benchCarriers {
		b.Run(k.name, func(b *testing.B) {
			address := k.freeAddress(b)
			roles.Start(b, "echo", k.name, address)
			k.awaitListener(b, address)
			b.ReportAllocs()
			f(b, k, address)
		})
	}
}

// BenchmarkRoundTrip has one blocking client wait for each echo of 64 bytes.
func BenchmarkRoundTrip(b *testing.B) {
	benchOver(b, func(b *testing.B, k carrier, address string) {
		c := k.dial(b, address)
		buf := make([]byte, 64)
		for b.Loop() {
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(c, buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// requester sends the next request when the answer to the last has come, on
// each of its connections, until so many were sent.
type requester struct {
	gnet.BuiltinEventEngine
	left atomic.Int64
	done chan struct{}
	live atomic.Int64
}

var request [64]byte

func (r *requester) OnTraffic(c gnet.Conn) gnet.Action {
	if c.InboundBuffered() < len(request) {
		return gnet.None
	}
	c.Discard(len(request))
	if r.left.Add(-1) >= 0 {
		c.Write(request[:])
	} else if r.live.Add(-1) == 0 {
		close(r.done)
	}
	return gnet.None
}

func (r *requester) run(conns []gnet.Conn, requests int) {
	r.left.Store(int64(requests))
	r.live.Store(int64(len(conns)))
	r.done = make(chan struct{})
	for _, c := range conns {
		c.AsyncWrite(request[:], nil)
	}
	<-r.done // ended by the last answer
}

// BenchmarkRequests has a request-response loop on each connection of a client
// of event handlers.
func BenchmarkRequests(b *testing.B) {
	for _, conns := range []int{1, 1000} {
		b.Run(fmt.Sprintf("conns=%d", conns), func(b *testing.B) {
			benchOver(b, func(b *testing.B, k carrier, address string) {
				r := new(requester)
				client, err := k.cfg.NewClient(r, gnet.WithLogger(quiet{}))
				require.NoError(b, err)
				require.NoError(b, client.Start())
				defer client.Stop()
				list := make([]gnet.Conn, conns)
				for i := range list {
					list[i], err = client.Dial("tcp", address)
					require.NoError(b, err)
				}
				b.ResetTimer()
				r.run(list, b.N)
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
			})
		})
	}
}

// BenchmarkRequestsOfGoroutines is the same with a goroutine for each
// connection on the client's side.
func BenchmarkRequestsOfGoroutines(b *testing.B) {
	const conns = 1000
	benchOver(b, func(b *testing.B, k carrier, address string) {
		list := make([]net.Conn, conns)
		for i := range list {
			list[i] = k.dial(b, address)
		}
		var left atomic.Int64
		left.Store(int64(b.N))
		b.ResetTimer()
		var work sync.WaitGroup
		for _, c := range list {
			work.Go(func() {
				buf := make([]byte, 64)
				for left.Add(-1) >= 0 {
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
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
	})
}
