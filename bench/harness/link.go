package harness

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// link is a client's end of one connection. Everything its loops need is
// there before they start; they allocate nothing.
type link struct {
	conn    net.Conn // nil if call does the round trips
	call    func(out, in []byte) error
	think   time.Duration // to compute after each answer
	out, in []byte        // one message each way
	next    uint64        // number of the next message
	ops     int64         // messages answered, or sent one way, so far
	latency *recorder
	last    time.Duration // since the epoch: the latest answer of an open loop
}

func newLink(conn net.Conn, id, size int, latency *recorder) *link {
	return &link{
		conn:    conn,
		out:     make([]byte, size),
		in:      make([]byte, size),
		next:    firstNumber(id),
		latency: latency,
	}
}

// exchange sends one message and waits for its answer. The clock is read just
// before the write and just after the whole answer is there; stamping and
// checking are outside.
func (l *link) exchange(epoch time.Time) (sent, answered time.Duration, err error) {
	stamp(l.out, l.next, 0)
	sent = time.Since(epoch)
	if l.call != nil {
		err = l.call(l.out, l.in)
	} else {
		err = l.writeAndRead()
	}
	if err != nil {
		return 0, 0, err
	}
	answered = time.Since(epoch)
	if err := check(l.in, l.next); err != nil {
		return 0, 0, err
	}
	l.next++
	return sent, answered, nil
}

func (l *link) writeAndRead() error {
	if _, err := l.conn.Write(l.out); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if _, err := io.ReadFull(l.conn, l.in); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	return nil
}

// roundTrips sends messages one after the other, each when the one before has
// been answered, until the first answer at or after until.
func (l *link) roundTrips(epoch time.Time, until time.Duration) error {
	for {
		sent, answered, err := l.exchange(epoch)
		if err != nil {
			return err
		}
		l.latency.record(answered - sent)
		l.ops++
		if answered >= until {
			return nil
		}
		if l.think > 0 {
			compute(l.think)
		}
	}
}

// burst writes one message after the other until stop is set, then a last
// one, and waits for the server's word that it has had them all. One Write is
// one message; what the transport makes of them on the way is its affair.
func (l *link) burst(stop *atomic.Bool) error {
	sent := uint64(0)
	for flags := uint64(0); flags == 0; sent++ {
		if stop.Load() {
			flags = lastMessage
		}
		stamp(l.out, l.next, flags)
		if _, err := l.conn.Write(l.out); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		l.next++
	}
	answer := l.in[:8]
	if _, err := io.ReadFull(l.conn, answer); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if got := binary.LittleEndian.Uint64(answer); got != sent {
		return fmt.Errorf("the server counts %d messages of %d", got, sent)
	}
	l.ops += int64(sent)
	return nil
}
