package rnet

import (
	"bufio"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
)

// greet tells each of a number of connections whom it has reached, and who it is there.
func greet(t *testing.T, ln net.Listener, connections int) (await func()) {
	return hang.Start(t, func() {
		for range connections {
			s, err := ln.Accept()
			if !assert.NoError(t, err) {
				return
			}
			_, err = fmt.Fprintln(s, ln.Addr(), s.RemoteAddr())
			assert.NoError(t, err)
			assert.NoError(t, s.Close())
		}
	})
}

// greeted dials as a program does that sets nothing about time, and reports whether it
// got a stream.
func greeted(t *testing.T, d *Dialer, ln net.Listener) bool {
	c, err := d.Dial("tcp", ln.Addr().String())
	if !assert.NoError(t, err) {
		return false
	}
	defer c.Close()
	said, err := bufio.NewReader(c).ReadString('\n')
	assert.NoError(t, err)
	assert.Equal(t, fmt.Sprintln(ln.Addr(), c.LocalAddr()), said)
	_, stream := c.(*Conn)
	return stream
}

// However busy the machine is, a dial with the head start that dials have comes to its
// server once, and nothing but the end of that head start lets it go over TCP.
func TestDialsWithTheUsualHeadStartReachTheirServerOnce(t *testing.T) {
	leak.Check(t)
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer plain.Close()
	for _, d := range []*Dialer{{}, {Dedicated: true}} { // one session for all, and one for each
		for _, atOnce := range []int{1, 20} {
			const dials = 200
			ln, begun := carrier{}.listen(t), time.Now()
			address, plainAddress := ln.Addr().String(), plain.Addr().String()
			negatives.Forget(address) // another test may have had the port
			negatives.Forget(plainAddress)
			served, servedPlain := greet(t, ln, dials), greet(t, plain, dials)
			var left, streams, plainStreams atomic.Int32
			left.Store(dials)
			var work sync.WaitGroup
			for range atOnce {
				work.Go(func() {
					for left.Add(-1) >= 0 {
						if greeted(t, d, ln) {
							streams.Add(1)
						}
						if greeted(t, d, plain) {
							plainStreams.Add(1)
						}
					}
				})
			}
			work.Wait()
			served()
			servedPlain()
			nobodyElse(t, ln)
			nobodyElse(t, plain)
			t.Logf("dedicated %t, %d at once: %d of %d dials got streams", d.Dedicated, atOnce, streams.Load(), dials)
			require.Zero(t, plainStreams.Load())
			for _, told := range Explain(address) {
				if told.Reason != fallback.None.String() && told.Time.After(begun) {
					require.ErrorIs(t, told.Err, fallback.ErrTooSlow, "%+v", told)
				}
			}
			for _, told := range Explain(plainAddress) {
				if told.Time.After(begun) {
					require.Equal(t, fallback.NoListener.String(), told.Reason, "%+v", told)
				}
			}
			require.NoError(t, ln.Close())
		}
	}
}
