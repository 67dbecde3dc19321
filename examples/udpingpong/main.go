// Udpingpong sends datagrams to and fro between two UD queue pairs, as
// ibv_ud_pingpong does. A datagram may be lost: then it is sent again.
//
//	go run ./examples/udpingpong -device rxe0 -n 100
//
// starts both ends; -listen and -dial start them apart, as in rcpingpong.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/seed-b9b531af/ramjet/examples/internal/endpoint"
	"github.com/seed-b9b531af/ramjet/verbs"
)

const (
	size  = 64
	grh   = 40 // bytes in front of what a UD QP receives
	qkey  = 0x11111111
	depth = 16
	again = 200 * time.Millisecond // until a datagram is taken to be lost
)

var program = endpoint.Program{Name: "udpingpong", Serve: serve, Client: call}

func main() { program.Main() }

// pong is a UD QP, memory for depth messages in and one out, and the way to the peer.
type pong struct {
	e    *endpoint.Endpoint
	qp   *verbs.QP
	mr   *verbs.MR
	ah   *verbs.AH
	peer endpoint.Address
}

func newPong(e *endpoint.Endpoint, conn net.Conn) (_ *pong, err error) {
	p := &pong{e: e}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.qp, err = e.NewQP(verbs.QPTypeUD, nil, depth); err != nil {
		return nil, err
	}
	if err := endpoint.ReadyUD(p.qp, qkey); err != nil {
		return nil, err
	}
	if p.mr, err = e.PD.AllocMR(depth*(grh+size)+size, verbs.AccessLocalWrite, verbs.MROptions{}); err != nil {
		return nil, err
	}
	for id := range uint64(depth) {
		if err := p.receive(id); err != nil {
			return nil, err
		}
	}
	if p.peer, err = endpoint.Exchange(conn, e.AddressOf(p.qp, nil)); err != nil {
		return nil, err
	}
	p.ah, err = e.PD.CreateAH(e.Vector(p.peer))
	return p, err
}

func (p *pong) receive(id uint64) error {
	_, err := p.qp.PostRecv([]verbs.RecvWR{{ID: id, SGL: []verbs.SGE{p.mr.SGE(int(id)*(grh+size), grh+size)}}})
	return err
}

// out is the memory of what is sent.
func (p *pong) out() []byte { return p.mr.Bytes()[depth*(grh+size):] }

func (p *pong) send(number uint64) error {
	binary.LittleEndian.PutUint64(p.out(), number)
	_, err := p.qp.PostSend([]verbs.SendWR{{
		Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{p.mr.SGE(depth*(grh+size), size)},
		Datagram: &verbs.Datagram{AH: p.ah, QPN: p.peer.QPN, QKey: qkey},
	}})
	return err
}

// next waits for a datagram and returns its number.
func (p *pong) next(deadline time.Time) (uint64, error) {
	for {
		wc, err := p.e.Wait(deadline) // ends with a completion, or at the deadline
		if err != nil {
			return 0, err
		}
		if wc.Opcode == verbs.WCRecv {
			number := binary.LittleEndian.Uint64(p.mr.Bytes()[int(wc.ID)*(grh+size)+grh:])
			return number, p.receive(wc.ID)
		}
	}
}

func (p *pong) close() {
	if p.ah != nil {
		p.ah.Close()
	}
	if p.qp != nil {
		p.qp.Close()
	}
	if p.mr != nil {
		p.mr.Close()
	}
}

func serve(e *endpoint.Endpoint, peer net.Conn) error {
	p, err := newPong(e, peer)
	if err != nil {
		return err
	}
	defer p.close()
	for {
		number, err := p.next(time.Now().Add(again))
		switch {
		case err == nil:
			err = p.send(number)
		case errors.Is(err, os.ErrDeadlineExceeded) && endpoint.HungUp(peer):
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			err = nil
		}
		if err != nil {
			return err
		}
	}
}

func call(e *endpoint.Endpoint, server net.Conn, count int, out io.Writer) error {
	p, err := newPong(e, server)
	if err != nil {
		return err
	}
	defer p.close()
	lost, begin := 0, time.Now()
	for number := range uint64(count) {
		for got := ^number; got != number; {
			if err := p.send(number); err != nil {
				return err
			}
			// An answer that came late is that to an earlier one.
			got, err = p.next(time.Now().Add(again))
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded) && endpoint.HungUp(server):
				return errors.New("the server has hung up")
			case errors.Is(err, os.ErrDeadlineExceeded):
				lost++
			case err != nil:
				return err
			}
		}
	}
	fmt.Fprintf(out, "%d round trips of %d bytes over %s, %.2f us each, %d sent again\nA round trip: a datagram and its answer, one after the other; one that is lost takes 200 ms more.\n",
		count, size, e.Name(), float64(time.Since(begin).Microseconds())/float64(count), lost)
	return nil
}
