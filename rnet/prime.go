package rnet

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
)

// primeCheck is how often prime looks whether the peer has hung up, which
// need not show in the CQ of a QP that never worked.
const primeCheck = 10 * time.Millisecond

// prime sends the session's first messages, which tell the peer nothing new,
// and returns when the device has done so; on the dialing side, when those of
// the peer have come too. What a device puts off until the first use of the
// peer's memory has happened then on both sides. So a dial can still take
// another way if it fails, and on the software HCA what is written from now on
// is in the peer's memory when Write returns, where it outlives us.
func (s *session) prime(ctx context.Context) error {
	defer context.AfterFunc(ctx, s.link.Channel().Wake)()
	if err := s.awaitTurn(ctx); err != nil {
		return fmt.Errorf("rnet: peer's first message: %w", err)
	}
	s.giveAddrs()
	s.txMu.Lock()
	mark, err := s.link.Greet(link.Header{Kind: framePing})
	s.txMu.Unlock()
	if err == nil {
		err = s.pollUntil(ctx, func() bool { return s.link.Reached(mark) && (!s.dialed || s.link.Heard() >= 2 && s.addrs.told()) })
	}
	if err != nil {
		return fmt.Errorf("rnet: first message: %w", err)
	}
	return nil
}

// awaitTurn waits until this side may send. On iWARP, whose devices have no
// immediates, the side that listens must not be the first (RFC 5044, section
// 7.1: the other one might still take its message for a part of the MPA
// handshake). That siw hears the first message is up to package rcm
// (kernel_siw_linux.go).
func (s *session) awaitTurn(ctx context.Context) error {
	if s.link.Immediates() || s.dialed {
		return nil
	}
	return s.pollUntil(ctx, func() bool { return s.link.Heard() >= 1 })
}

// pollUntil polls until done reports true. The session that is not started yet
// owns its poll lock.
func (s *session) pollUntil(ctx context.Context, done func() bool) error {
	for {
		n := s.poll()
		switch {
		case s.failed.Load():
			return s.cause
		case done():
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case s.conn.Err() != nil:
			return s.conn.Err()
		case n > 0:
			continue
		}
		if err := s.link.Arm(); err != nil {
			return err
		}
		if s.poll() == 0 {
			// Ended by: our completion or the peer's message, a failure of
			// the QP, ctx, the time to look at conn.
			s.link.Channel().Wait(time.Now().Add(primeCheck))
		}
	}
}
