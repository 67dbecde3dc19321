package mux

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// greetCheck is after which time AwaitPeer and Greet look whether the peer has hung up, which
// need not show in the CQ of a QP that never worked. Then they look after twice the time,
// and so on: there may be a thousand of them at once.
const greetCheck = 10 * time.Millisecond

// AwaitPeer waits, on the listening side, for the peer's first message. Ours come after it
// (Greet): so the peer has no session before that, and if we give this one up its
// dial can still take another way. iWARP wants this order too (RFC 5044, section 7.1: the
// dialing side might still take our message for a part of the MPA handshake). That siw
// detects the first message is up to package rcm (rcm/kernelcm/siw_linux.go).
func (m *Mux) AwaitPeer(ctx context.Context, alive func() error) error {
	defer context.AfterFunc(ctx, m.link.Channel().Wake)()
	if err := m.pollUntil(ctx, alive, func() bool { return m.link.Arrived() >= 1 }); err != nil {
		return m.giveUp(fmt.Errorf("rnet: peer's first message: %w", err))
	}
	return nil
}

// Greet sends the session's first messages, which tell the peer nothing new,
// and returns when the device has done so; on the dialing side, when those of
// the peer have come too. What a device puts off until the first use of the
// peer's memory has happened then on both sides. So a dial can still take
// another way if it fails, and on the software HCA what is written from now on
// is in the peer's memory when Write returns, where it outlives us.
func (m *Mux) Greet(ctx context.Context, alive func() error) error {
	err := ctx.Err()
	if err == nil {
		err = m.greet(ctx, alive)
	}
	if err != nil {
		return m.giveUp(fmt.Errorf("rnet: first message: %w", err))
	}
	return nil
}

// giveUp ends a mux that has not started.
func (m *Mux) giveUp(err error) error {
	m.Fail(err)
	m.drain()
	m.shutdown() // the peer may have opened streams already
	return err
}

func (m *Mux) greet(ctx context.Context, alive func() error) error {
	defer context.AfterFunc(ctx, m.link.Channel().Wake)()
	m.giveAddrs()
	m.out.mu.Lock()
	mark, err := m.link.Greet(link.Header{Kind: FramePing})
	m.out.mu.Unlock()
	if err != nil {
		return err
	}
	return m.pollUntil(ctx, alive, func() bool { return m.link.Reached(mark) && (!m.cfg.Dialed || m.link.Arrived() >= 2 && m.addrs.told()) })
}

// pollUntil polls until done reports true. The session that is not started yet
// owns its poll lock.
func (m *Mux) pollUntil(ctx context.Context, alive func() error, done func() bool) error {
	for check := greetCheck; ; {
		n := m.poll()
		switch {
		case m.failed.Load():
			return m.cause
		case done():
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case n > 0:
			continue
		}
		if err := alive(); err != nil {
			return err
		}
		if err := m.link.Arm(); err != nil {
			return err
		}
		if m.poll() == 0 {
			// Ended by: our completion or the peer's message, a failure of
			// the QP, ctx, the time to look at conn.
			if m.link.Channel().Wait(time.Now().Add(check)) != nil {
				check *= 2
			}
		}
	}
}
