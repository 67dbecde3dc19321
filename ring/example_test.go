package ring_test

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/ring"
)

// A message is reserved, announced, retained, and its space given back.
func Example() {
	var tx ring.Tx // of the sender
	var rx ring.Rx // of the receiver
	for _, err := range []error{tx.Init(4096), rx.Init(4096)} {
		if err != nil {
			fmt.Println(err)
		}
	}

	off, _ := tx.Reserve(1000) // write 1000 bytes there, announce the length
	at, _ := rx.Place(1000)
	fmt.Println("written at", off, "found at", at)

	token := rx.Retain() // nobody reads it yet
	fmt.Println("released", rx.Released(), "room", tx.Room())

	rx.Free(token)
	if err := tx.Credit(rx.TakeCredit()); err != nil {
		fmt.Println(err)
	}
	fmt.Println("released", rx.Released(), "room", tx.Room(), "before the end", tx.Tail())
	// Output:
	// written at 0 found at 0
	// released 0 room 3088
	// released 1008 room 3088 before the end 3088
}

// A stream of a connection has a window of its own, so that one which is not
// read does not fill the ring for the others.
func ExampleRecvWindow() {
	var send ring.SendWindow // of the sender
	var recv ring.RecvWindow // of the receiver
	for _, err := range []error{send.Init(1000), recv.Init(1000)} {
		if err != nil {
			fmt.Println(err)
		}
	}

	n := min(1500, send.Avail()) // of 1500 bytes that are to be sent
	send.Take(n)
	if err := recv.Arrive(n); err != nil {
		fmt.Println(err)
	}
	fmt.Println("sent", n, "may send", send.Avail())

	recv.Consume(400) // the application reads
	fmt.Println("update due:", recv.UpdateDue())
	if err := send.Grant(recv.TakeUpdate()); err != nil {
		fmt.Println(err)
	}
	fmt.Println("may send", send.Avail())
	// Output:
	// sent 1000 may send 0
	// update due: true
	// may send 400
}
