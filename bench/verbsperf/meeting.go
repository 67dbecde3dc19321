package verbsperf

import (
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
}

const mostSaid = 1 << 20 // without the times of round trips

func newControl(conn net.Conn) *control {
	c := &control{conn: conn, most: mostSaid, left: io.LimitedReader{R: conn}, out: json.NewEncoder(conn)}
	c.in = json.NewDecoder(&c.left)
	return c
}

func (c *control) receive(to any) error {
	c.left.N = c.most
	return c.in.Decode(to)
}

// swap tells the other end something and returns what it tells. It ends at a deadline
// that no measurement reaches.
func swap[T any](c *control, mine T) (theirs T, err error) {
	if err := c.conn.SetDeadline(time.Now().Add(10 * time.Minute)); err != nil {
		return theirs, err
	}
	defer c.conn.SetDeadline(time.Time{})
	if err := c.out.Encode(mine); err != nil {
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
}

// ask has the server do a measurement with us.
func (m *meeting) ask(sp spec) (result, error) {
	if err := m.control.out.Encode(sp); err != nil {
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
	m.control.most = mostSaid + int64(sp.Iterations)*int64(len("1000000000,"))
	s, err := newSide(m.dev, m.place, sp)
	if s != nil {
		defer s.close()
	}
	if err := m.agree(err); err != nil {
		return nil, nil, err
	}
	if err := m.connect(s); err != nil {
		return nil, nil, err
	}
	mine, err = s.measure(m.server)
	if err != nil { // so that the other end, which may be waiting, learns of it
		for _, qp := range s.qps {
			_ = qp.Fail()
		}
	}
	other, swapped := swap(m.control, outcomeOf(mine, err))
	if err != nil {
		return nil, nil, err
	}
	return mine, other.Times, errors.Join(swapped, other.err())
}
