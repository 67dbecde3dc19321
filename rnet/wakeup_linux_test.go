package rnet

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/seed-b9b531af/ramjet/rnet/internal/wait"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each exchange begins after a pause that may fall into any state of the
// session: polled, left to the sweep, asleep on a thread or at the completion
// channel, armed. A wake-up that is lost shows as a read that hangs.
func TestNoWakeUpIsLost(t *testing.T) {
	leak.Check(t)
	places := orKernel(append([]carrier{overNarrow, overBounceBuffer, overEmulation}, benchCarriers[1:]...)...)
	over(t, places, func(t *testing.T, k carrier) {
		for name, address := range map[string]string{
			"one process":   serveHere(t, k),
			"two processes": roles.Start(t, "target", k.name).Line(t),
		} {
			t.Run(name, func(t *testing.T) {
				for _, streams := range []int{1, 2, 3, 16} {
					var work sync.WaitGroup
					for i := range streams {
						c, err := k.dialer().Dial("tcp", address)
						require.NoError(t, err)
						defer c.Close()
						work.Go(func() { exchangeWithPauses(t, c, uint64(i), orRaced(times(100, 3000), 30)) })
					}
					work.Wait()
				}
			})
		}
	})
}

// serveHere listens in this process and does as its peers say.
func serveHere(t testing.TB, k carrier) string {
	ln := k.listen(t)
	go traffic.Serve(ln)
	return ln.Addr().String()
}

func exchangeWithPauses(t *testing.T, c net.Conn, seed uint64, rounds int) {
	rnd := traffic.NewRand(seed)
	_, err := c.Write([]byte{traffic.Echo})
	if !assert.NoError(t, err) {
		return
	}
	var out, in [8]byte
	for i := range rounds {
		switch rnd.IntN(4) {
		case 0: // on and on, as long as somebody spins
		case 1:
			time.Sleep(time.Duration(rnd.IntN(200)) * time.Microsecond)
		case 2: // around the shortest periods of the sweep
			time.Sleep(time.Duration(rnd.IntN(int(wait.SweepTime / 4))))
		case 3:
			for end := time.Now().Add(time.Duration(rnd.IntN(50)) * time.Microsecond); time.Now().Before(end); {
			}
		}
		binary.LittleEndian.PutUint64(out[:], uint64(i))
		_, err := c.Write(out[:])
		if !assert.NoError(t, err) {
			return
		}
		if i%8 == 0 { // moving a deadline must not take another's wake-up away
			c.SetReadDeadline(time.Now().Add(hang.Time))
		}
		_, err = io.ReadFull(c, in[:])
		if !assert.NoError(t, err, "round %d", i) || !assert.Equal(t, out, in) {
			return
		}
	}
}

// Readers that wait for nothing sleep; only a profile that is told to spins,
// and not for long.
func TestWaitingCostsNoCPUTime(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		ln := k.listen(t)
		var waiting sync.WaitGroup
		var conns []net.Conn
		for range 20 {
			c, s := k.connect(t, ln)
			conns = append(conns, c, s)
			for _, end := range []net.Conn{c, s} {
				waiting.Go(func() { end.Read(make([]byte, 1)) })
			}
		}
		hang.Eventually(t, "all sleep", func() bool {
			const wall = 200 * time.Millisecond
			before := cpuTime(t)
			time.Sleep(wall)
			used := cpuTime(t) - before
			t.Logf("%v of CPU time in %v", used, wall)
			return used < wall/4
		})
		for _, c := range conns {
			c.Close()
		}
		hang.Start(t, waiting.Wait)()
	})
}

// cpuTime is what this process has used so far.
func cpuTime(t testing.TB) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
