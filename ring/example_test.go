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
