package uverbs

import "github.com/seed-b9b531af/ramjet/verbs"

// driver is what differs between the kernel's drivers: what they say of
// themselves, the bytes that they add to the commands, and the queues that
// they share with this process. Everything else (handles, states, locks,
// events, the commands themselves) is the core's, and the same for all of them.
type driver interface {
	// open makes the driver's side of a context. getContext opens the kernel's
	// side, and is called once.
	open(mem memory, getContext func(extra) error) (driverContext, error)
}

// extra is the driver's part of a command: what goes to the kernel behind the
// command, and room for what the kernel puts behind the answer. Most commands
// have none.
type extra struct {
	in, out []byte
}

// memory is memory that a driver shares with its counterpart in the kernel.
// Tests give drivers memory of their own.
type memory interface {
	// mmap maps size bytes that the kernel's driver calls offset, shared. The
	// slice has length and capacity size.
	mmap(offset uint64, size int, may protection) ([]byte, error)
	// alloc returns zeros that have an address for as long as they are not
	// unmapped, and begin at a page's.
	alloc(size int) ([]byte, error)
	unmap(mem []byte)
}

// protection is what may be done with mapped memory.
type protection int

// The bits of protection.
const (
	mayRead protection = 1 << iota
	mayWrite
)

// driverContext is what a driver keeps of an open device. Objects are made in
// one call each, with a function that gives the command to the kernel: what the
// kernel has to be told of memory is made before it, what it answers is mapped
// after it. Who calls that function calls it once. If it fails, or what follows
// does, nothing is left mapped, and the core destroys what the kernel has made.
type driverContext interface {
	// describe fills in what the kernel's answer to QUERY_DEVICE leaves
	// open: Caps, MaxInline, and limits that the driver's queues set.
	// attr.KernelCaps and the kernel's limits are there already.
	describe(attr *verbs.DeviceAttr)
	// extra is the driver's part of commands by which no queue is made:
	// ALLOC_PD, REG_MR, ALLOC_MW.
	extra(cmd command) extra
	createCQ(create func(extra) error) (cqQueue, error)
	createQP(attr *qpAttr, create func(extra) (madeQP, error)) (qpQueue, error)
	createSRQ(create func(extra) (verbs.SRQAttr, error)) (srqQueue, error)
	// createAH returns what requests call an address handle. The driver
	// finds it there by addressHandle.
	createAH(av *verbs.AddressVector, create func(extra) error) (any, error)
	// close is called when all objects are gone.
	close()
}

// qpAttr is what a QP is to be.
type qpAttr struct {
	typ       verbs.QPType
	cap       verbs.QPCap // what was asked of the kernel
	signalAll bool
	srq       srqQueue // nil: it has a receive queue
}

// madeQP is a QP that the kernel made.
type madeQP struct {
	num uint32
	cap verbs.QPCap // as the kernel reports it
}

// cqQueue is the mapped memory of a CQ. The core calls its methods under the
// lock of the CQ, never after unmap. The memory is hostile: whatever it holds,
// the methods return.
type cqQueue interface {
	// poll moves up to len(wcs) completions into wcs. Each names its QP, by
	// which the core drops those of QPs that are gone. Where a completion has
	// a place in the QP's queue instead of an id, qps finds the queue. An error
	// means that the memory cannot be a completion queue.
	poll(wcs []verbs.WC, qps qpTable) (int, error)
	// arm asks for an event, or returns false if that takes a command
	// (REQ_NOTIFY_CQ), which the core then makes.
	arm(solicited bool) bool
	// resize goes over to a queue of at least cqe entries. If it fails though
	// the command has not, the CQ is of no use any more.
	resize(cqe int, resize func(extra) error) error
	unmap()
}

// qpTable finds the QPs that report to a CQ.
type qpTable interface {
	// find returns the queues of a QP, nil if it is gone. They may be unmapped
	// already.
	find(num uint32) qpQueue
}

// qpQueue is the mapped memory of a QP. The core calls postSend under the
// QP's send lock, postRecv under its receive lock, reset and unmap under both.
// The core has checked states, opcodes, numbers of SGEs and inline lengths
// against the device's capabilities and the QP's sizes.
type qpQueue interface {
	// capacity is how many requests fit into the queues (0 receives with an
	// SRQ).
	capacity() (send, recv int)
	// postSend puts requests into the send queue and returns how many; with
	// an error (verbs.ErrQueueFull), it is about the next one. bell says that
	// the kernel has to be told, which the core does once for all.
	postSend(wrs []verbs.SendWR) (n int, bell bool, err error)
	postRecv(wrs []verbs.RecvWR) (int, error)
	// reset empties the queues: the QP has gone to RESET.
	reset()
	unmap()
}

// unflushedQueue is a qpQueue whose kernel flushes what it finds in the queues
// at the moment when the QP fails, and never looks at them again. Requests that
// are posted a moment later, or later still, would never complete. So once the
// QP is in ERR for certain, which MODIFY_QP makes sure of, the core takes them
// back and completes them itself.
type unflushedQueue interface {
	qpQueue
	// takeBack empties the queues and returns the ids of the requests that
	// were in them, oldest first. The kernel does not use the queues any more.
	takeBack() (sends, recvs []uint64)
	// refused says what it means that the kernel has refused the doorbell. If
	// it is no error, either the QP is about to fail, or stuck: the kernel
	// cannot execute a request, and the QP has failed.
	refused(err error) (stuck bool, _ error)
}

// nudgingQueue is a qpQueue whose peer does not always look at what came before
// it was ready.
type nudgingQueue interface {
	qpQueue
	// nudge posts, under the send lock, a request with that id of which the
	// peer's program sees nothing but that its kernel looks. It posts none if
	// the kernel has to come to one before. bell is postSend's.
	nudge(id uint64) (bell bool)
}

// srqQueue is the mapped memory of an SRQ, used under its lock.
type srqQueue interface {
	capacity() int
	postRecv(wrs []verbs.RecvWR) (int, error)
	// modify gives MODIFY_SRQ with what it adds to it. With SRQAttrMaxWR in
	// mask it goes over to a queue of that size. If it fails though the
	// command has not, the kernel reads another queue than this.
	modify(attr verbs.SRQAttr, mask verbs.SRQAttrMask, modify func(in []byte) error) error
	unmap()
}

// boundWindow is a memory window of the core. Its key changes with each bind.
type boundWindow interface {
	key() uint32
	setKey(key uint32)
}

// madeAH is an address handle of the core, with what createAH has returned.
type madeAH interface {
	made() any
}

// addressHandle is what createAH has returned for ah, nil if ah is not the
// core's.
func addressHandle(ah *verbs.AH) any {
	if a, ok := ah.Driver().(madeAH); ok {
		return a.made()
	}
	return nil
}
