package fallback

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const headStart = 10 * time.Millisecond

var errFast = errors.New("the fast way is closed")

// contestant is a dial with a known course. It makes pipes, and counts those
// that are open.
type contestant struct {
	name     string
	takes    time.Duration
	err      error // what it fails with
	stubborn bool  // goes on although its context ends
	open     *atomic.Int32
	started  atomic.Bool
}

type racingConn struct {
	net.Conn
	from   *contestant
	closed atomic.Bool
}

func (c *racingConn) Close() error {
	if !c.closed.Swap(true) {
		c.from.open.Add(-1)
	}
	return nil
}

func (c *contestant) dial(ctx context.Context) (net.Conn, error) {
	c.started.Store(true)
	timer := time.NewTimer(c.takes)
	defer timer.Stop()
	done := ctx.Done()
	if c.stubborn {
		done = nil
	}
	select { // ended by the timer, or by the end of ctx
	case <-timer.C:
	case <-done:
		return nil, fmt.Errorf("%s: %w", c.name, ctx.Err())
	}
	if c.err != nil {
		return nil, c.err
	}
	c.open.Add(1)
	return &racingConn{from: c}, nil
}

// courses are all ways in which a dial can go.
func courses(name string, open *atomic.Int32, err error) (list []*contestant) {
	for _, takes := range []time.Duration{0, headStart / 2, headStart - 1, headStart + 1, 2 * headStart, 7 * headStart} {
		for _, err := range []error{nil, err} {
			for _, stubborn := range []bool{false, true} {
				list = append(list, &contestant{name: name, takes: takes, err: err, stubborn: stubborn, open: open})
			}
		}
	}
	return list
}

// forEachRace runs check for every pair of courses, each in a bubble of its
// own, and sees to it that no goroutine and no connection stays behind.
func forEachRace(t *testing.T, check func(t *testing.T, fast, tcp *contestant)) {
	var open atomic.Int32
	races := len(courses("", &open, nil))
	for f := range races {
		for c := range races {
			fast := courses("fast", &open, errFast)[f]
			tcp := courses("tcp", &open, syscall.ECONNREFUSED)[c]
			synctest.Test(t, func(t *testing.T) { // fails if a goroutine is left
				check(t, fast, tcp)
				time.Sleep(time.Minute) // for those that are stubborn
			})
			require.Zero(t, open.Load(), "left open: fast %v %v, tcp %v %v", fast.takes, fast.err, tcp.takes, tcp.err)
		}
	}
}

func TestRaceGivesWhatEitherWouldHaveMade(t *testing.T) {
	forEachRace(t, func(t *testing.T, fast, tcp *contestant) {
		begin := time.Now()
		conn, fastErr, err := Race(t.Context(), headStart, fast.dial, tcp.dial)
		took := time.Since(begin)
		t.Logf("fast %v %v, tcp %v %v: %v, %v after %v", fast.takes, fast.err, tcp.takes, tcp.err, fastErr, err, took)

		if fast.err != nil && tcp.err != nil {
			require.Nil(t, conn)
			require.Equal(t, tcp.err, err, "what plain TCP would have failed with")
			require.Equal(t, errFast, fastErr)
			return
		}
		require.NoError(t, err)
		winner := conn.(*racingConn).from
		require.Equal(t, winner == fast, fastErr == nil)
		require.NoError(t, winner.err)
		require.Equal(t, fast.takes > headStart || fast.err != nil, tcp.started.Load(), "TCP starts when it is needed and not before")

		tcpTakes := min(fast.takes, headStart) + tcp.takes
		if fast.takes > headStart || fast.err == nil {
			tcpTakes = headStart + tcp.takes
		}
		switch {
		case winner == fast:
			require.Equal(t, fast.takes, took)
			require.True(t, tcp.err != nil || fast.takes <= tcpTakes)
		case fast.stubborn && fast.takes > headStart:
			require.Equal(t, max(fast.takes, tcpTakes), took, "a dial that ignores its context holds up the race")
		case fast.err != nil:
			require.LessOrEqual(t, took, headStart+tcp.takes)
		default:
			require.Equal(t, tcpTakes, took)
		}
		if winner == tcp && fast.err == nil {
			require.ErrorIs(t, fastErr, ErrTooSlow)
			require.Equal(t, HandshakeTimeout, Classify(fastErr))
		}
		conn.Close()
	})
}

func TestRaceEndsWithItsContext(t *testing.T) {
	for _, after := range []time.Duration{0, headStart / 2, headStart, headStart + headStart/2, 3 * headStart} {
		forEachRace(t, func(t *testing.T, fast, tcp *contestant) {
			if fast.stubborn || tcp.stubborn {
				return // nothing is promised for them but that nothing leaks
			}
			ctx, cancel := context.WithTimeout(t.Context(), after)
			defer cancel()
			begin := time.Now()
			conn, _, err := Race(ctx, headStart, fast.dial, tcp.dial)
			require.LessOrEqual(t, time.Since(begin), after)
			if err != nil {
				require.Nil(t, conn)
				require.True(t, errors.Is(err, context.DeadlineExceeded) || err == tcp.err, "%v", err)
				return
			}
			conn.Close()
		})
	}
}

func TestRaceLeaksNothingThatIsStubborn(t *testing.T) {
	forEachRace(t, func(t *testing.T, fast, tcp *contestant) {
		ctx, cancel := context.WithTimeout(t.Context(), headStart+headStart/2)
		defer cancel()
		conn, _, err := Race(ctx, headStart, fast.dial, tcp.dial)
		if err == nil {
			conn.Close()
		}
	})
}

func TestRaceWithoutHeadStartStartsBothAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Int32
		fast := &contestant{takes: 20 * time.Millisecond, open: &open}
		tcp := &contestant{takes: 10 * time.Millisecond, open: &open}
		begin := time.Now()
		conn, fastErr, err := Race(t.Context(), 0, fast.dial, tcp.dial)
		require.NoError(t, err)
		require.ErrorIs(t, fastErr, ErrTooSlow)
		require.Equal(t, tcp.takes, time.Since(begin))
		conn.Close()
	})
}

func TestRaceClosesTCPWhenFastPanics(t *testing.T) {
	for _, takes := range []time.Duration{0, 2 * headStart} {
		var open atomic.Int32
		tcp := &contestant{takes: 2 * headStart, stubborn: true, open: &open}
		synctest.Test(t, func(t *testing.T) {
			require.Panics(t, func() {
				_, _, _ = Race(t.Context(), headStart, func(context.Context) (net.Conn, error) {
					time.Sleep(takes)
					panic("a bug in the fast dial")
				}, tcp.dial)
			})
			time.Sleep(time.Minute)
		})
		require.Zero(t, open.Load())
		require.Equal(t, takes > headStart, tcp.started.Load())
	}
}

func BenchmarkRaceThatFastWinsAtOnce(b *testing.B) {
	conn := &racingConn{}
	fast := func(context.Context) (net.Conn, error) { return conn, nil }
	tcp := func(context.Context) (net.Conn, error) { return nil, errFast }
	b.ReportAllocs()
	for b.Loop() {
		_, _, _ = Race(b.Context(), time.Second, fast, tcp)
	}
}
