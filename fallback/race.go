package fallback

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// DialFunc makes a connection. It returns soon after its context ends, and the
// connection does not depend on the context once it is returned.
type DialFunc func(ctx context.Context) (net.Conn, error)

// ErrTooSlow is what fastErr of Race wraps when TCP connected first.
var ErrTooSlow = errors.New("fallback: TCP connected first")

// Race dials with fast, which has a head start, and with tcp. fast runs on the
// calling goroutine; if it has neither connected nor failed when headStart is
// over, tcp starts beside it; if it fails, tcp starts at once. The first to
// connect wins; the other's context is cancelled, and a connection that it
// makes all the same is closed. Nothing fails that tcp alone would have made.
//
// fastErr says why conn is not fast's: what fast failed with, or ErrTooSlow
// with reason HandshakeTimeout. If neither connects, conn is nil and err is
// what tcp failed with. When Race returns, a slow loser may still be on its way
// to notice that its context has ended.
func Race(ctx context.Context, headStart time.Duration, fast, tcp DialFunc) (conn net.Conn, fastErr, err error) {
	fastCtx, stopFast := context.WithCancel(ctx)
	defer stopFast()
	tcpCtx, stopTCP := context.WithCancel(ctx)
	defer stopTCP()

	beside := &contender{done: make(chan struct{}), won: stopFast}
	timer := time.AfterFunc(headStart, func() { beside.run(tcpCtx, tcp) })
	// Whatever happens, also a panic of fast: tcp does not start any more, and
	// what it connects later is closed.
	defer timer.Stop()
	defer beside.giveUp()

	conn, fastErr = fast(fastCtx)
	if timer.Stop() {
		if fastErr == nil {
			return conn, nil, nil
		}
		conn, err = tcp(ctx)
		return conn, fastErr, err
	}

	if fastErr == nil && beside.giveUp() {
		return conn, nil, nil
	}
	<-beside.done // ended by tcp's return; its context ends with ours
	if fastErr == nil {
		conn.Close() // too late, tcp has won
	}
	if fastErr == nil || beside.err == nil && errors.Is(fastErr, context.Canceled) {
		fastErr = Because(HandshakeTimeout, fmt.Errorf("%w, after a head start of %v", ErrTooSlow, headStart))
	}
	return beside.conn, fastErr, beside.err
}

// contender is the dial that runs beside the caller's. Its result counts once
// done is closed, unless the caller gave it up before.
type contender struct {
	done chan struct{}
	won  func() // tells the other to stop

	mu      sync.Mutex
	conn    net.Conn // guarded by mu until done is closed, then constant
	err     error    // written before done is closed, read after
	givenUp bool     // guarded by mu
}

func (c *contender) run(ctx context.Context, dial DialFunc) {
	defer close(c.done)
	conn, err := dial(ctx)
	if c.err = err; err != nil {
		return
	}
	c.mu.Lock()
	givenUp := c.givenUp
	if !givenUp {
		c.conn = conn
	}
	c.mu.Unlock()
	if givenUp {
		conn.Close()
		return
	}
	c.won()
}

// giveUp makes sure that no connection of this contender stays open, unless it
// has won already: then it reports false, and conn is the caller's.
func (c *contender) giveUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.givenUp = c.conn == nil
	return c.givenUp
}
