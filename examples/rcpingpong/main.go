// Rcpingpong sends a message to and fro between two RC queue pairs, as
// ibv_rc_pingpong does, and says how long a round trip takes.
//
//	go run ./examples/rcpingpong
//	go run ./examples/rcpingpong -device rxe0 -n 100
//
// starts both ends. They can be started apart with -listen and -dial, which name the
// TCP address over which they tell each other where their queue pairs are.
package main

import (
	"fmt"
	"io"
	"net"
	"time"

	"github.com/seed-b9b531af/ramjet/examples/internal/endpoint"
	"github.com/seed-b9b531af/ramjet/verbs"
)

const size = 64 // of the message

var program = endpoint.Program{Name: "rcpingpong", Serve: serve, Client: call}

func main() { program.Main() }

// pong is a connected QP with memory for one message in and one out.
type pong struct {
	e    *endpoint.Endpoint
	peer net.Conn
	qp   *verbs.QP
	mr   *verbs.MR
}

func newPong(e *endpoint.Endpoint, conn net.Conn) (_ *pong, err error) {
	p := &pong{e: e, peer: conn}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.qp, err = e.NewQP(verbs.QPTypeRC, nil, 4); err != nil {
		return nil, err
	}
	if p.mr, err = e.PD.AllocMR(2*size, verbs.AccessLocalWrite, verbs.MROptions{}); err != nil {
		return nil, err
	}
	peer, err := endpoint.Exchange(conn, e.AddressOf(p.qp, nil))
	if err != nil {
		return nil, err
	}
	if err := e.ConnectRC(p.qp, peer, 0); err != nil {
		return nil, err
	}
	return p, p.receive() // before the other end sends
}

func (p *pong) receive() error {
	_, err := p.qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{p.mr.SGE(size, size)}}})
	return err
}

func (p *pong) send() error {
	_, err := p.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{p.mr.SGE(0, size)}}})
	return err
}

// next waits until the message is here, and the one before is gone.
func (p *pong) next(completions int) error {
	for range completions {
		// ends with the message, or with the other end
		if _, err := p.e.WaitFor(p.peer); err != nil {
			return err
		}
	}
	return nil
}

func (p *pong) close() {
	if p.qp != nil {
		p.qp.Close()
	}
	if p.mr != nil {
		p.mr.Close()
	}
}

// serve answers count messages, which the client says over TCP.
func serve(e *endpoint.Endpoint, peer net.Conn) error {
	p, err := newPong(e, peer)
	if err != nil {
		return err
	}
	defer p.close()
	var count int
	if err := endpoint.Meet(peer); err != nil {
		return err
	}
	if _, err := fmt.Fscanln(peer, &count); err != nil {
		return err
	}
	expected := 1 // completions: the message, and later the answer before it
	for range count {
		if err := p.next(expected); err != nil {
			return err
		}
		expected = 2
		copy(p.mr.Bytes()[:size], p.mr.Bytes()[size:])
		if err := p.receive(); err != nil {
			return err
		}
		if err := p.send(); err != nil {
			return err
		}
	}
	return p.next(1)
}

func call(e *endpoint.Endpoint, server net.Conn, count int, out io.Writer) error {
	p, err := newPong(e, server)
	if err != nil {
		return err
	}
	defer p.close()
	if err := endpoint.Meet(server); err != nil {
		return err
	}
	fmt.Fprintln(server, count)
	begin := time.Now()
	for i := range count {
		p.mr.Bytes()[0] = byte(i)
		if err := p.send(); err != nil {
			return err
		}
		if err := p.next(2); err != nil {
			return err
		}
		if got := p.mr.Bytes()[size]; got != byte(i) {
			return fmt.Errorf("message %d came back as %d", byte(i), got)
		}
		if err := p.receive(); err != nil {
			return err
		}
	}
	took := time.Since(begin)
	fmt.Fprintf(out, "%d round trips of %d bytes over %s, %.2f us each\nA round trip: a SEND and a SEND back, one after the other. Each end sleeps until it has a completion.\n",
		count, size, e.Name(), float64(took.Microseconds())/float64(count))
	return nil
}
