package rnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
)

// packetEnd is an end of a connection of messages.
type packetEnd interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
	SetReadBuffer(int) error
	SetWriteBuffer(int) error
}

// packetCalls makes calls, and notes what they return.
type packetCalls struct {
	ends [2]packetEnd
	seen []string
}

func (p *packetCalls) note(what string, n int, err error, got []byte) {
	text := "nil"
	var op *net.OpError
	switch {
	case errors.As(err, &op):
		text = fmt.Sprintf("%v %v %v %v: %v, timeout %v", op.Op, op.Net, op.Source, op.Addr, op.Err, op.Timeout())
	case err != nil:
		text = err.Error()
	}
	p.seen = append(p.seen, fmt.Sprintf("%s: %d %s %x", what, n, text, got))
}

func (p *packetCalls) write(at int, b []byte) {
	n, err := p.ends[at].Write(b)
	p.note(fmt.Sprintf("%d writes %d", at, len(b)), n, err, nil)
}

func (p *packetCalls) read(at, size int) {
	b := make([]byte, size)
	n, err := p.ends[at].Read(b)
	if n > 16 { // the start and the sum say enough
		p.note(fmt.Sprintf("%d reads %d", at, size), n, err, append(b[:8:8], digest(b[:n])...))
		return
	}
	p.note(fmt.Sprintf("%d reads %d", at, size), n, err, b[:n])
}

func digest(b []byte) []byte {
	var sum uint64
	for _, x := range b {
		sum = sum*31 + uint64(x)
	}
	return binary.LittleEndian.AppendUint64(nil, sum)
}

func (p *packetCalls) do(what string, at int, call func() error) {
	p.note(fmt.Sprintf("%d %s", at, what), 0, call(), nil)
}

// random makes calls of which none waits: what is written is read when it is not, after an end
// or a deadline that has passed, an error. Where a socket and a stream differ by design
// it does not go.
func (p *packetCalls) random(rnd *rand.Rand) {
	var queued [2][]int // messages on their way to each end
	ended := false
	for range 40 {
		at := rnd.IntN(2)
		c := p.ends[at]
		switch rnd.IntN(10) {
		case 0, 1, 2:
			size := []int{0, 1, 7, 100, 4000, 20_000, 212_960, 212_961, 1 << 20}[rnd.IntN(9)]
			total := size
			for _, n := range queued[1-at] {
				total += n + 2000
			}
			if total > 200_000 && size <= 212_960 && len(queued[1-at]) > 0 || len(queued[1-at]) > 20 {
				continue // a socket has no room for it
			}
			p.write(at, traffic.Bytes(rnd.Uint64(), size))
			if size <= 212_960 {
				queued[1-at] = append(queued[1-at], size)
			}
		case 3, 4, 5, 6:
			size := []int{0, 1, 50, 5000, 300_000}[rnd.IntN(5)]
			if len(queued[at]) == 0 && size > 0 && !ended {
				continue // it would wait
			}
			p.read(at, size)
			if size > 0 && len(queued[at]) > 0 {
				queued[at] = queued[at][1:]
			}
		case 7:
			past := time.Unix(1, 0)
			p.do("has a deadline", at, func() error { return c.SetDeadline(past) })
			p.write(at, []byte("late"))
			p.write(at, nil)
			p.write(at, make([]byte, 1<<20))
			p.read(at, 10)
			p.read(at, 0)
			p.do("has none", at, func() error { return c.SetDeadline(time.Time{}) })
		case 8:
			p.do("has a buffer", at, func() error { return c.SetWriteBuffer(100_000) })
			p.do("has a buffer", at, func() error { return c.SetReadBuffer(100_000) })
			p.write(at, make([]byte, 200_001))
			p.do("has a buffer", at, func() error { return c.SetWriteBuffer(212_992 / 2) })
		}
	}
	for at := range 2 { // nothing is left unread, which would be a reset
		for range queued[at] {
			p.read(at, 300_000)
		}
	}
	if rnd.IntN(2) == 0 {
		c := p.ends[0]
		p.write(0, []byte("last"))
		p.do("ends", 0, c.CloseWrite)
		p.write(0, []byte("after it"))
		p.write(0, nil)
		p.write(0, make([]byte, 1<<20))
		p.read(1, 2)
		p.read(1, 2)
		p.read(1, 0)
		p.read(1, 2)
		p.write(1, []byte("back"))
		p.read(0, 100)
	} else {
		p.write(0, []byte("last"))
		p.write(0, nil)
	}
	p.do("closes", 0, p.ends[0].Close)
	p.write(0, nil)
	p.write(0, make([]byte, 1<<20))
	p.read(0, 0)
	p.read(0, 1)
	p.do("closes", 0, p.ends[0].Close)
	p.do("ends", 0, p.ends[0].CloseWrite)
	p.do("ends", 0, p.ends[0].CloseRead)
	p.do("has a deadline", 0, func() error { return p.ends[0].SetDeadline(time.Time{}) })
	p.do("has a buffer", 0, func() error { return p.ends[0].SetWriteBuffer(1000) })
	for range 3 {
		p.read(1, 100)
	}
	p.do("closes", 1, p.ends[1].Close)
}

// The same calls, over a socket and over a stream.
func TestMessageConnsDoAsPackageNet(t *testing.T) {
	limit, err := messageLimit(nil)
	require.NoError(t, err)
	if limit != 212_960 {
		t.Skip("this host's sockets have other buffers than Linux gives them")
	}
	path := unixPath(t)
	ln := listenPackets(t, &ListenConfig{}, path)
	for i := range times(50, 500) {
		seed := uint64(i)
		calls := func(dial func(network, address string) (net.Conn, error)) []string {
			c, err := dial("unixpacket", path)
			require.NoError(t, err)
			s, err := ln.Accept()
			require.NoError(t, err)
			require.IsType(t, c, s)
			p := packetCalls{ends: [2]packetEnd{c.(packetEnd), s.(packetEnd)}}
			p.random(traffic.NewRand(seed))
			return p.seen
		}
		want := calls(net.Dial)
		require.Equal(t, want, calls(patient().Dial), "seed %d", seed)
	}
}
