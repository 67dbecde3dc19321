package uverbs

import "github.com/seed-b9b531af/ramjet/verbs"

// driver is what differs between the kernel's drivers: what they say of
// themselves, the bytes that they add to the commands, and the queues that
// they share with this process. Everything else (handles, states, locks,
// events, doorbells) is the core's, and the same for all of them.
type driver interface {
	// describe fills in what the kernel's answer to QUERY_DEVICE leaves
	// open: Caps, MaxInline, and limits that the driver's queues set.
	// attr.KernelCaps and the kernel's limits are there already.
	describe(attr *verbs.DeviceAttr)
	// extra returns the driver's part of a command: the bytes that go to the
	// kernel and the length of the answer. Most commands have none.
	extra(cmd command) (in []byte, out int)
	// openCQ, openQP and openSRQ map the queues of an object that the kernel
	// has just made. If they fail they have unmapped everything, and the
	// core destroys the object.
	openCQ(mem mapper, made madeCQ) (cqQueue, error)
	openQP(mem mapper, made madeQP) (qpQueue, error)
	openSRQ(mem mapper, made madeSRQ) (srqQueue, error)
	// ahNumber reads what work requests call an address handle from the
	// driver's answer to CREATE_AH. 0 means that there is no such number.
	ahNumber(extra []byte) uint32
}

// mapper maps the queues of a device. Tests give drivers memory of their own.
type mapper interface {
	// mmap maps size bytes that the driver calls offset, shared, for reading
	// and writing. The slice has length and capacity size.
	mmap(offset uint64, size int) ([]byte, error)
	munmap(mem []byte)
}

// madeCQ is a CQ that the kernel made.
type madeCQ struct {
	cqe   int    // entries, as the kernel reports them
	extra []byte // the driver's part of the answer
}

// madeQP is a QP that the kernel made.
type madeQP struct {
	num       uint32
	typ       verbs.QPType
	cap       verbs.QPCap // as the kernel reports it
	signalAll bool
	srq       bool // receives come from an SRQ: there is no receive queue
	extra     []byte
}

// madeSRQ is an SRQ that the kernel made.
type madeSRQ struct {
	attr  verbs.SRQAttr // as the kernel reports it
	extra []byte
}

// cqQueue is the mapped memory of a CQ. The core calls its methods under the
// lock of the CQ, never after unmap. The memory is hostile: whatever it holds,
// the methods return.
type cqQueue interface {
	// poll moves up to len(wcs) completions into wcs. Each names its QP, by
	// which the core drops those of QPs that are gone. An error means that
	// the memory cannot be a completion queue.
	poll(wcs []verbs.WC) (int, error)
	// arm asks for an event, or returns false if that takes a command
	// (REQ_NOTIFY_CQ), which the core then makes.
	arm(solicited bool) bool
	// remap goes over to the memory that the kernel's answer to RESIZE_CQ
	// names and returns the entries that it can hold.
	remap(mem mapper, made madeCQ) error
	unmap(mem mapper)
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
	unmap(mem mapper)
}

// srqQueue is the mapped memory of an SRQ, used under its lock.
type srqQueue interface {
	capacity() int
	postRecv(wrs []verbs.RecvWR) (int, error)
	unmap(mem mapper)
}

// A srqRemapper is a srqQueue that can change its size. The kernel writes
// the driver's answer to MODIFY_SRQ, out bytes as extra said, to the address
// that the core puts into the command.
type srqRemapper interface {
	remap(mem mapper, made madeSRQ) error
}

// boundWindow is a memory window of the core. Its key changes with each bind.
type boundWindow interface {
	key() uint32
	setKey(key uint32)
}

// numberedAH is an address handle of the core, with the number that the
// driver's requests call it by.
type numberedAH interface {
	number() uint32
}

// ahNumber is the number of an address handle, 0 if it is not ours.
func ahNumber(ah *verbs.AH) uint32 {
	if a, ok := ah.Driver().(numberedAH); ok {
		return a.number()
	}
	return 0
}
