package verbsperf

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// control is the TCP connection between the two ends.
type control struct {
	conn net.Conn
	most int64            // bytes that the other end may say at once
	left io.LimitedReader // what it may still say
	in   *json.Decoder
	out  *json.Encoder
	by   time.Time // when the words of both ends must be there
}

const mostSaid = 1 << 20 // without the times of round trips

func newControl(conn net.Conn) *control {
	c := &control{conn: conn, most: mostSaid, left: io.LimitedReader{R: conn}, out: json.NewEncoder(conn)}
	c.in = json.NewDecoder(&c.left)
	return c
}

// How long the ends have. At a server they bound how long a client that does not
// go on holds its place.
const (
	// for a client's wish, from when it came or from the end of its last measurement
	wishLimit    = 20 * time.Second
	setUpLimit   = time.Minute            // for a set-up, at a client once it has a place
	setUpOfQP    = 100 * time.Millisecond // more, for each QP
	measureLimit = 10 * time.Minute       // for a measurement with its set-up
)

// within gives the words that follow so long, all together.
func (c *control) within(limit time.Duration) { c.by = time.Now().Add(limit) }

func (c *control) receive(to any) error {
	if err := c.conn.SetReadDeadline(c.by); err != nil {
		return err
	}
	c.left.N = c.most
	return c.in.Decode(to)
}

func (c *control) send(what any) error {
	if err := c.conn.SetWriteDeadline(c.by); err != nil {
		return err
	}
	return c.out.Encode(what)
}

// swap tells the other end something and returns what it tells.
func swap[T any](c *control, mine T) (theirs T, err error) {
	if err := c.send(mine); err != nil {
		return theirs, err
	}
	return theirs, c.receive(&theirs)
}

// outcome is how far an end has come, with what it has measured.
type outcome struct {
	Failed      string
	Unsupported bool
	Times       []time.Duration
}

func outcomeOf(times []time.Duration, err error) outcome {
	if err == nil {
		return outcome{Times: times}
	}
	return outcome{Failed: err.Error(), Unsupported: errors.Is(err, verbs.ErrUnsupported)}
}

func (o *outcome) err() error {
	switch {
	case o.Unsupported:
		return fmt.Errorf("the other end: %s: %w", o.Failed, verbs.ErrUnsupported)
	case o.Failed != "":
		return fmt.Errorf("the other end: %s", o.Failed)
	}
	return nil
}

// meeting is what one end has for measurements with another one.
type meeting struct {
	ctx     context.Context
	dev     *verbs.Context
	place   place
	control *control
	server  bool
	memory  *budget // a server's for all clients
}

// ask has the server do a measurement with us.
func (m *meeting) ask(sp spec) (result, error) {
	m.control.within(setUpLimit) // also for a place at the server
	if err := m.control.send(sp); err != nil {
		return result{}, err
	}
	mine, theirs, err := m.one(sp)
	switch {
	case err != nil:
		return result{}, err
	case sp.latency():
		return latencies(sp, mine), nil
	}
	return bandwidth(sp, mine, theirs), nil
}

// agree tells the other end whether a step has failed. It fails if it has for one of them.
func (m *meeting) agree(err error) error {
	other, swapped := swap(m.control, outcomeOf(nil, err))
	if err != nil {
		return err
	}
	return errors.Join(swapped, other.err())
}

// one does one measurement. After each step the ends tell each other how it went, so
// that neither waits for one that has failed.
func (m *meeting) one(sp spec) (mine, theirs []time.Duration, err error) {
	if !m.server {
		m.control.most = mostSaid + int64(sp.Iterations)*int64(len("1000000000,"))
	}
	end := time.Now().Add(measureLimit)
	ctx, stop := context.WithDeadline(m.ctx, end)
	defer stop()
	if m.server {
		m.control.within(sp.setUp())
	}
	bytes := sp.memory(m.dev.Attr())
	var s *side
	if err = m.memory.take(bytes); err == nil {
		defer m.memory.give(bytes)
		s, err = newSide(ctx, m.dev, m.place, sp)
	}
	if s != nil {
		defer s.close()
	}
	if err := m.agree(err); err != nil {
		return nil, nil, err
	}
	if !m.server { // which has begun when it had a place for us
		m.control.within(sp.setUp())
	}
	if err := m.connect(s); err != nil {
		return nil, nil, err
	}
	m.control.within(time.Until(end) + patience) // so that the other end learns of one that took too long
	defer context.AfterFunc(ctx, s.fail)()       // ends what waits for completions
	run := func(loop func(server bool) ([]time.Duration, error)) (times []time.Duration, err error) {
		if times, err = loop(m.server); err != nil {
			s.fail() // so that the other end, which may be waiting, learns of it
			err = cmp.Or(context.Cause(ctx), err)
		}
		return times, err
	}
	_, err = run(s.warmUp)
	if err := m.agree(err); err != nil {
		return nil, nil, err
	}
	mine, err = run(s.measure)
	tell := outcomeOf(nil, err)
	if m.server { // the figures are the client's affair
		tell = outcomeOf(mine, err)
	}
	other, swapped := swap(m.control, tell)
	if err != nil {
		return nil, nil, err
	}
	return mine, other.Times, errors.Join(swapped, other.err())
}
