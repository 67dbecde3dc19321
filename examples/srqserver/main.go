// Srqserver answers many clients from one shared receive queue: the receives that
// are posted are as many as are needed for all of them, not for each.
//
//	go run ./examples/srqserver
//	go run ./examples/srqserver -device rxe0 -n 100
//
// starts both ends; -n is how many messages each of 8 QPs sends. They can be started
// apart with -listen and -dial, which name the TCP address over which they tell each other
// where their queue pairs are.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/seed-b9b531af/ramjet/examples/internal/endpoint"
	"github.com/seed-b9b531af/ramjet/verbs"
)

const (
	clients  = 8
	size     = 64
	receives = 16 // for all clients together
)

var program = endpoint.Program{Name: "srqserver", Serve: serve, Client: call}

func main() { program.Main() }

// connect makes the QPs of one end and connects them to those of the other. ready is
// called before the other end sends.
func connect(e *endpoint.Endpoint, conn net.Conn, srq *verbs.SRQ, ready func() error) (qps []*verbs.QP, err error) {
	for range clients {
		qp, err := e.NewQP(verbs.QPTypeRC, srq, receives)
		if err != nil {
			return qps, err
		}
		qps = append(qps, qp)
		peer, err := endpoint.Exchange(conn, e.AddressOf(qp, nil))
		if err == nil {
			err = e.ConnectRC(qp, peer, 0)
		}
		if err != nil {
			return qps, err
		}
	}
	return qps, errors.Join(ready(), endpoint.Meet(conn))
}

func closeAll(qps []*verbs.QP) {
	for _, qp := range qps {
		qp.Close()
	}
}

// serve sends each message back to the QP that it came from, until count have come from
// each, which the client says over TCP.
func serve(e *endpoint.Endpoint, peer net.Conn) error {
	mr, err := e.PD.AllocMR(receives*size, verbs.AccessLocalWrite, verbs.MROptions{})
	if err != nil {
		return err
	}
	defer mr.Close()
	srq, err := e.PD.CreateSRQ(verbs.SRQAttr{MaxWR: receives, MaxSGE: 1})
	if err != nil {
		return err
	}
	defer srq.Close()
	slot := func(id uint64) []verbs.SGE { return []verbs.SGE{mr.SGE(int(id)*size, size)} }
	post := func(id uint64) error {
		_, err := srq.PostRecv([]verbs.RecvWR{{ID: id, SGL: slot(id)}})
		return err
	}
	qps, err := connect(e, peer, srq, func() error {
		for id := range uint64(receives) {
			if err := post(id); err != nil {
				return err
			}
		}
		return nil
	})
	defer closeAll(qps)
	if err != nil {
		return err
	}
	byNumber := make(map[uint32]*verbs.QP)
	for _, qp := range qps {
		byNumber[qp.Num()] = qp
	}
	var count int
	if _, err := fmt.Fscanln(peer, &count); err != nil {
		return err
	}
	for answered := 0; answered < count*clients; {
		wc, err := e.WaitFor(peer) // ends with a message, or with the other end
		if err != nil {
			return err
		}
		if wc.Opcode != verbs.WCRecv { // an answer is out: its memory can take the next message
			answered++
			err = post(wc.ID)
		} else {
			_, err = byNumber[wc.QPN].PostSend([]verbs.SendWR{{ID: wc.ID, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: slot(wc.ID)}})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// call has one message of each QP under way.
func call(e *endpoint.Endpoint, server net.Conn, count int, out io.Writer) error {
	mr, err := e.PD.AllocMR((clients+clients*receives)*size, verbs.AccessLocalWrite, verbs.MROptions{})
	if err != nil {
		return err
	}
	defer mr.Close()
	qps, err := connect(e, server, nil, func() error { return nil })
	defer closeAll(qps)
	if err != nil {
		return err
	}
	fmt.Fprintln(server, count)
	begin := time.Now()
	for range count {
		for i, qp := range qps {
			if _, err := qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{mr.SGE((clients+i)*size, size)}}}); err != nil {
				return err
			}
			if _, err := qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{mr.SGE(i*size, size)}}}); err != nil {
				return err
			}
		}
		for range 2 * clients { // each message, and its answer
			if _, err := e.WaitFor(server); err != nil { // ends with a completion, or with the other end
				return err
			}
		}
	}
	fmt.Fprintf(out, "%d messages of %d QPs answered from %d receives over %s in %v\nEach QP sends a message, and the next when all QPs have their answers.\n",
		count*clients, clients, receives, e.Name(), time.Since(begin).Round(time.Millisecond))
	return nil
}
