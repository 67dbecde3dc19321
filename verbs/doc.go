// Package verbs is the RDMA verbs in Go: devices, protection domains, memory
// regions, completion queues, queue pairs, shared receive queues, work requests
// and completions. It needs no cgo, and is the same for every kind of device.
//
// Programs that want connections need package rnet, not this one.
//
// Devices come from providers. A program links in those that it wants:
//
//	import _ "github.com/seed-b9b531af/ramjet/verbs/soft"    // the software HCA, "soft0"
//	import _ "github.com/seed-b9b531af/ramjet/verbs/uverbs"  // devices of the kernel: rxe, siw
//	import _ "github.com/seed-b9b531af/ramjet/verbs/ibverbs" // by rdma-core's C library
//
// (The last one is a module of its own.)
//
// # From a device to a completion
//
//   - [Open] opens a device by its name and gives a [Context]; [Devices] lists
//     what is there. [Context.Attr] tells what a device can do: look at its
//     capability bits ([Cap]) first.
//   - [Context.AllocPD] makes a [PD], the protection domain to which memory and
//     queue pairs belong.
//   - [PD.AllocMR] makes an [MR], memory that the device reads and writes. Its key
//     is what a peer needs to reach it.
//   - [Context.CreateCQ] makes a [CQ], on which completions arrive. A
//     [CompChannel] lets a goroutine sleep until there is one.
//   - [PD.CreateQP] makes a [QP], one end of a connection. Package rcm connects
//     two of them; by hand it takes three calls of [QP.Modify].
//   - [QP.PostSend] and [QP.PostRecv] take work requests, [SendWR] and [RecvWR].
//     [QP.NewSendBatch] builds several to be posted at once. [CQ.Poll] returns
//     each as a [WC]; [WC.Err] says how it went.
//
// In Go, with errors left out:
//
//	dev, err := verbs.Open("soft0")
//	pd, err := dev.AllocPD()
//	mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite, verbs.MROptions{})
//	cq, err := dev.CreateCQ(verbs.CQAttr{CQE: 16}, nil)
//	attr := verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: cq, RecvCQ: cq, Cap: sizes}
//	qp, err := pd.CreateQP(attr)
//
// The example of the package is a whole program. [SRQ], [MW] and [AH] are there
// for devices that have them.
//
// # Rules
//
// Once an object is closed, alone or with its Context, its methods that return
// an error return one that wraps [ErrClosed], whichever device it is of; only
// Close returns nil, and does nothing. Close of what others still use returns an
// error that wraps [ErrBusy]; but a Context takes all that was made of it with it, and
// a CompChannel ends its waits. If Close fails, the object is still open, as it was, and may be
// closed again; a Context is closed.
//
// Every method may be called from any goroutine, at any time, unless the program promises
// otherwise (SingleThreaded of [QPInitAttr] and [CQAttr]). PostSend, PostRecv and Poll
// allocate nothing. Errors wrap those of this package, such as
// [ErrUnsupported] for what a device cannot do. Registered memory counts against a
// limit of the process, [SetPinLimit].
//
// Names are those of the InfiniBand Architecture Specification, and values have
// the numbers that the kernel gives them (rdma/ib_user_verbs.h).
//
// The interfaces whose names end in Driver, [Provider] and [Register] are for
// those who write a provider; package verbstest tests one.
package verbs
