// Kvread is a table of numbers in the memory of a server that clients read and
// change without the server: with READ, FETCH_AND_ADD and CMP_AND_SWP. Where the
// device has no atomics they only read.
//
//	go run ./examples/kvread
//	go run ./examples/kvread -device rxe0 -n 100
//
// starts both ends. They can be started apart with -listen and -dial, which name the
// TCP address over which they tell each other where the table is.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/seed-b9b531af/ramjet/examples/internal/endpoint"
	"github.com/seed-b9b531af/ramjet/verbs"
)

const slots = 1024 // of 8 bytes; slot i begins with the value i * i

var program = endpoint.Program{Name: "kvread", Serve: serve, Client: read}

func main() { program.Main() }

// serve lends the table to a client until that hangs up. It does no work meanwhile.
func serve(e *endpoint.Endpoint, peer net.Conn) error {
	access := verbs.AccessRemoteRead
	if e.Attr().Caps.Has(verbs.CapAtomics) {
		access |= verbs.AccessLocalWrite | verbs.AccessRemoteAtomic
	}
	table, err := e.PD.AllocMR(8*slots, access, verbs.MROptions{})
	if err != nil {
		return err
	}
	defer table.Close()
	for i := range uint64(slots) {
		binary.NativeEndian.PutUint64(table.Bytes()[8*i:], i*i)
	}
	qp, err := e.NewQP(verbs.QPTypeRC, nil, 1)
	if err != nil {
		return err
	}
	defer qp.Close()
	at, err := endpoint.Exchange(peer, e.AddressOf(qp, table))
	if err != nil {
		return err
	}
	if err := e.ConnectRC(qp, at, access&^verbs.AccessLocalWrite); err != nil {
		return err
	}
	if err := endpoint.Meet(peer); err != nil {
		return err
	}
	if _, err := peer.Read(make([]byte, 1)); err != io.EOF { // ends when the client hangs up
		return errors.Join(errors.New("the client has said something"), err)
	}
	return nil
}

// client reads slots of the table at the other end.
type client struct {
	e     *endpoint.Endpoint
	qp    *verbs.QP
	mr    *verbs.MR // 8 bytes, for the answer
	table endpoint.Address
}

// do posts one request about a slot, and returns the value that was there.
func (c *client) do(wr verbs.SendWR, slot int) (uint64, error) {
	wr.Flags, wr.SGL = verbs.SendSignaled, []verbs.SGE{c.mr.SGE(0, 8)}
	wr.RemoteAddr, wr.RKey = c.table.Addr+uint64(8*slot), c.table.RKey
	if _, err := c.qp.PostSend([]verbs.SendWR{wr}); err != nil {
		return 0, err
	}
	_, err := c.e.Wait(time.Time{}) // ends with the answer, or with the connection
	return binary.NativeEndian.Uint64(c.mr.Bytes()), err
}

func read(e *endpoint.Endpoint, server net.Conn, count int, out io.Writer) error {
	c := &client{e: e}
	var err error
	if c.mr, err = e.PD.AllocMR(8, verbs.AccessLocalWrite, verbs.MROptions{}); err != nil {
		return err
	}
	defer c.mr.Close()
	if c.qp, err = e.NewQP(verbs.QPTypeRC, nil, 1); err != nil {
		return err
	}
	defer c.qp.Close()
	if c.table, err = endpoint.Exchange(server, e.AddressOf(c.qp, nil)); err != nil {
		return err
	}
	if err := e.ConnectRC(c.qp, c.table, 0); err != nil {
		return err
	}
	if err := endpoint.Meet(server); err != nil {
		return err
	}
	begin := time.Now()
	for i := range count {
		slot := i % slots
		got, err := c.do(verbs.SendWR{Opcode: verbs.OpRead}, slot)
		if err != nil {
			return err
		}
		if want := uint64(slot * slot); got != want {
			return fmt.Errorf("slot %d has %d, not %d", slot, got, want)
		}
	}
	took := time.Since(begin)
	fmt.Fprintf(out, "%d values read over %s, %.2f us each\nOne READ after the other: posted, waited for, checked. The server does nothing meanwhile.\n",
		count, e.Name(), float64(took.Microseconds())/float64(max(count, 1)))
	if !e.Attr().Caps.Has(verbs.CapAtomics) {
		return nil
	}
	before, err := c.do(verbs.SendWR{Opcode: verbs.OpFetchAdd, CompareAdd: 5}, 3)
	if err != nil {
		return err
	}
	// Nobody else writes there, so the swap finds what the addition has left.
	after, err := c.do(verbs.SendWR{Opcode: verbs.OpCompareSwap, CompareAdd: before + 5, Swap: before}, 3)
	fmt.Fprintf(out, "slot 3: %d, and 5 more are %d\n", before, after)
	return err
}
