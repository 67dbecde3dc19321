package soft_test

import (
	"errors"
	"fmt"
	"log"
	"os"
	"syscall"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
)

// A program that imports this package opens its device by name. It says what it can do as every
// device does; package verbs has an example with two queue pairs.
func Example() {
	ctx, err := verbs.Open("soft0")
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	caps := ctx.Attr().Caps
	fmt.Println(ctx.Attr().Transport)
	fmt.Println("atomics:", caps.Has(verbs.CapAtomics))
	fmt.Println("XRC:", caps.Has(verbs.CapXRC))
	// Output:
	// soft
	// atomics: true
	// XRC: false
}

// A server of one user that lets processes of another one pair with its QPs. Both sides have
// to allow it.
func ExampleSetPeerPolicy() {
	const other = 1001
	soft.SetPeerPolicy(func(p soft.Peer) bool { return p.UID == other || p.UID == uint32(os.Geteuid()) })
	defer soft.SetPeerPolicy(nil) // our own user alone again
}

// A test of what a program does when memory is short: the second registration fails.
func ExampleInjectFaults() {
	ctx, err := verbs.Open("soft0")
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	pd, err := ctx.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	soft.InjectFaults(ctx, &soft.Faults{FailAllocMR: soft.FailCall{At: 2, Err: syscall.ENOMEM}})
	for range 3 {
		mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite, verbs.MROptions{})
		fmt.Println(errors.Is(err, syscall.ENOMEM))
		if err == nil {
			mr.Close()
		}
	}
	// Output:
	// false
	// true
	// false
}
