// Package driver is the contract between the provider of kernel devices, the core,
// and its drivers, one package each.
//
// What is called a driver here is called a provider in rdma-core. The core's table of them is
// in drivers_linux.go of package uverbs.
//
// The driver implements [Driver], which opens a [Context], and the queues that the context makes:
// [CQ], [QP] and [SRQ]. The core implements [Memory], [QPs], [Window] and [AH], and gives them to
// the driver. Where a device needs more of the core, its context and its queues have further
// methods, which the core finds by type assertion. A device whose transports differ in that (iWARP
// and RoCE of one driver) has a type of QP for each; [Context.Describe] tells the transport.
//
//	interface       implement it if                                         example
//	ErrnoContext    errnos mean other things than with other drivers        rxe
//	WallTimeContext the kernel tells what time the device's clock shows     mlx5
//	ClockContext    the device shows its clock in a page                    mlx5
//	XRCContext      the device has XRC domains                              mlx5
//	NullContext     the device has a key of no memory                       mlx5
//	MemoryContext   the device has memory of its own                        mlx5
//	EventCQ         arming takes the number of events that were read        mlx5
//	ReservingCQ     the driver keeps entries of the CQ for itself           mlx5
//	DoorbellQP      PostSend itself starts sends, by a page of the device   mlx5
//	RefusingQP      the kernel refuses the doorbell where that is no error  siw
//	UnflushedQP     requests posted after a failure never complete          siw
//	ManagedQP       the connection manager moves the QP from state to state siw
//	LengthQP        the driver knows how long requests are in its queue     all
//	EmptyWriteQP    the peer may miss what arrives before it is ready       siw
//
// # The life of a queue
//
// [Driver.Open] and [Context.Describe] are called once, before a program makes an object. In
// between the core tries commands, to see which the kernel's driver has; one of them is
// ALLOC_PD, of a PD that is freed at once, so [Context.Udata] and [ErrnoContext].Errno are
// called before Describe too. What makes objects is called by any number of goroutines at once.
// Of a QP, for example:
//
//  1. The core calls [Context.CreateQP]. The driver gets memory, gives CREATE_QP with its
//     part of the command, maps what the answer names, and returns the queues.
//  2. [QP.PostSend] writes requests, under the send lock, or while the program promises that no
//     other call does (verbs.QPInitAttr.SingleThreaded). Then the core gives the kernel's
//     POST_SEND, once for all of the call. A [DoorbellQP] has no need of that: its PostSend rings,
//     once, before it returns.
//  3. [CQ.Poll] takes completions, under the lock of the CQ, or with the same promise. The driver
//     writes the number of the QP into each, and the id of the request, which it finds in the
//     completion or, through [QPs], in the queue. The core leaves out those of QPs that are gone,
//     and counts the others.
//  4. MODIFY_QP is the core's. It empties the queues by [QP.Reset] when the QP goes to
//     RESET, after it has taken its completions out of both CQs. A QP that has failed it takes to
//     ERR again, for all drivers: when it learns of the failure, and after each PostRecv from then
//     on, for that is when rxe and siw look at the receives to flush them.
//  5. To destroy the QP the core gives the command under both locks, calls [QP.Unmap], and
//     then takes its completions out of the CQs. Until that is over nobody gets its number.
//
// PDs, MRs and memory windows have no object of the driver. A window that a request binds
// is the [Window] that SendWR.Bind.MW.Driver returns.
//
// A DoorbellQP has no doorbell of the kernel, so Refused is never called on it, and its
// PostSend and PostEmptyWrite never ask for that doorbell. Unless the QP is RC, the core assumes
// that a failed request takes it to SQE, as the specification says; rxe takes such QPs to ERR.
//
// # Who sets which capability
//
// Before Describe the core has set RegisterSlice, and what the answer to QUERY_DEVICE shows:
// SRQ, MemWindow, ModerateCQ, Timestamps, OnDemandPaging, RegisterAll, Multicast, Atomics,
// DeviceMemory. By trying commands it has set AdviseMR, Reregister, ResizeCQ and DMABuf. Describe
// clears what the driver has no part for, an SRQ or timestamps in completions for instance, and
// sets the rest: services, operations, inline.
//
// # Rules
//
// A driver makes no system calls but by Memory and by the functions that it is given. It compiles,
// and its tests do, on all systems; where it cannot run (another processor) its Open says so, as in
// mlx5/driver_other.go.
//
// # Limits
//
// The contract is what rxe, siw and mlx5 need. Most cards need more, for which the contract and
// these functions of package uverbs would have to be changed; both are internal, and may be:
//
//	what is missing                              who needs it            where
//	commands of the driver's own, before         irdma: REG_MR for the   CreateCQ, CreateQP,
//	those of the core                            memory of each queue    CreateSRQ
//	the PD, in QPAttr and in CreateSRQ           irdma registers that    the same
//	                                             memory on the program's
//	what a command has answered, and which PD,   bnxt_re: ALLOC_PD says  allocPD, register
//	MR or MW it made                             where the doorbells are
//	the driver's part of MODIFY_QP, also for a   irdma flushes by it     Modify, flushAlive
//	post after a failure, and of the commands
//	that destroy
//	the driver's part of REREG_MR and            none of those           Reregister,
//	REG_DMABUF_MR                                                        registerDMABuf
//	GET_CONTEXT a second time, with other        irdma on older kernels  getContext
//	contents
//	QPs that completions name by a handle of     bnxt_re                 QPs.Find
//	the driver's
//	methods of the ioctl interface that a        bnxt_re: toggle pages;  package abi
//	driver defines itself                        mlx5's objects for UARs
//
// A command and the driver's part of it have 1,536 bytes at most, the two answers 2,048, all in
// multiples of 4 (abi.PageIn, abi.PageOut).
//
// Go's atomic operations do not order stores to memory before stores to a page of the
// device. A driver that rings doorbells itself needs barriers: those of package mlx5 are in
// barrier_amd64.s and barrier_arm64.s.
package driver

import (
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

// Driver is what differs between the kernel's drivers: what they say of
// themselves, the bytes that they add to the commands, and the queues that
// they share with this process. Everything else (handles, states, locks,
// events, the commands themselves) is the core's, and the same for all of them.
type Driver interface {
	// Open makes the driver's side of a context. getContext opens the kernel's
	// side, and is called once. If Open fails, nothing is left mapped.
	Open(mem Memory, getContext func(Udata) error) (Context, error)
}

// Udata is the driver's part of a command, as struct ib_udata of the kernel has it:
// what goes to the kernel behind the command, and room for what the kernel puts
// behind the answer. Most commands have none.
type Udata struct {
	In, Out []byte
}

// Memory is memory that a driver shares with its counterpart in the kernel.
// Tests give drivers memory of their own.
type Memory interface {
	// Map maps size bytes that the kernel's driver calls offset, shared. The
	// slice has length and capacity size.
	Map(offset uint64, size int, may Protection) ([]byte, error)
	// Alloc returns zeros that have an address for as long as they are not
	// unmapped, and begin at a page's. A child process does not inherit them.
	Alloc(size int) ([]byte, error)
	// Unmap takes exactly what Map has returned.
	Unmap(mem []byte)
	// Free takes exactly what Alloc has returned. While the device is closed, the memory goes
	// back when the kernel has destroyed what lies in it.
	Free(mem []byte)
}

// Protection is what may be done with mapped memory.
type Protection int

// The bits of protection.
const (
	MayRead Protection = 1 << iota
	MayWrite
)

// Context is what a driver keeps of an open device. Objects are made in
// one call each, with a function that gives the command to the kernel: what the
// kernel has to be told of memory is made before it, what it answers is mapped
// after it. The driver calls that function once. If it fails, or what follows
// does, nothing is left mapped, and the core destroys what the kernel has made.
type Context interface {
	// Describe fills in what the kernel's answer to QUERY_DEVICE leaves
	// open: Caps, MaxInline, and limits that the driver's queues set.
	// attr.KernelCaps and the kernel's limits are there already, and so are
	// the bits of Caps that the core has found by trying commands; Describe
	// clears those that the driver cannot serve. It is called once, before
	// a program makes an object, so that the driver may keep limits for later.
	Describe(attr *verbs.DeviceAttr)
	// Udata is the driver's part of commands by which no queue is made:
	// ALLOC_PD, REG_MR, ALLOC_MW. It is called before each of them, and the
	// driver is not told how the command ended. Goroutines call it at once.
	Udata(cmd abi.Command) Udata
	// CreateCQ makes a CQ for at least cqe completions. The driver may ask the
	// kernel for more entries.
	CreateCQ(cqe int, create func(cqe int, u Udata) error) (CQ, error)
	// CreateQP makes a QP. The driver cannot ask the kernel for other sizes
	// than the core does, but its queues may be larger (QP.Capacity).
	CreateQP(attr *QPAttr, create func(Udata) (CreatedQP, error)) (QP, error)
	// CreateSRQ makes an SRQ. What CreateQP says of sizes holds here too. It is called only
	// if Describe has left verbs.CapSRQ.
	CreateSRQ(attr verbs.SRQAttr, create func(Udata) (verbs.SRQAttr, error)) (SRQ, error)
	// CreateAH returns what requests call an address handle. The driver
	// finds it there by AddressHandle. It is called only if Describe has left verbs.CapUD.
	CreateAH(av *verbs.AddressVector, create func(Udata) error) (any, error)
	// Close is called once, when all queues are unmapped, and unmaps what Open
	// has mapped. The descriptor of the device is closed behind it: a mapping that is left
	// would keep the kernel's context.
	Close()
}

// ErrnoContext is a Context of a device whose driver in the kernel answers commands with
// errnos that mean something else with other drivers.
type ErrnoContext interface {
	Context
	// Errno is what the answer to a command that has failed means.
	Errno(cmd abi.Command, errno syscall.Errno) syscall.Errno
}

// XRCContext is a Context of a device with XRC domains, whose QPs may be initiators
// (verbs.QPTypeXRCInitiator). Targets have no queues, and are the core's alone: CREATE_QP has
// no driver's part then.
type XRCContext interface {
	Context
	// CreateXRCSRQ makes an SRQ of a domain. create returns its number. Poll finds out by
	// itself which completions are of it, marks them with OfXRC, and takes the number of the
	// QP, which may be another process's, from the completion. After Unmap it leaves them out.
	CreateXRCSRQ(attr verbs.SRQAttr, create func(Udata) (num uint32, err error)) (SRQ, error)
}

// OfXRC is a flag of completions between driver and core: it is of an SRQ of an XRC domain, and
// no QP's. SrcQPN is the number of the SRQ, by which the core drops what nobody has polled when
// the SRQ is destroyed.
const OfXRC verbs.WCFlags = 1 << 7

// WallTimeContext is a Context of a device whose kernel says how its clock and that of
// the host go together.
type WallTimeContext interface {
	Context
	// WallTime is called while the context is open. A device that has none for now has no
	// verbs.CapWallTime.
	WallTime(ticks uint64) (time.Time, error)
}

// ClockContext is a Context of a device that may show what its clock is now. Describe sets
// verbs.CapClock if it does.
type ClockContext interface {
	Context
	// Clock may map memory. Goroutines call it at once, also while Close runs and after it, when
	// it fails with verbs.ErrClosed. What it reads of a device that was removed is 0, or all
	// ones.
	Clock() (ticks uint64, err error)
}

// NullContext is a Context of a device that may have a key of no memory, for MRs without memory.
// Requests of any PD may name it, for local use, as long as the context is open.
type NullContext interface {
	Context
	// NullKey returns that key, or false if this device has none. Describe sets
	// verbs.CapNullMR if it has.
	NullKey() (lkey uint32, ok bool)
}

// MemoryContext is a Context of a device that may have memory of its own, which programs map.
type MemoryContext interface {
	Context
	// AllocDM makes memory of length bytes, no more than the device has. alloc gives DM_ALLOC
	// with the driver's attributes, which all are room for answers.
	AllocDM(length int, alloc func([]Attr) error) (DM, error)
}

// Attr is an attribute that the driver of the kernel adds to a method of the ioctl interface:
// Out is room for its answer.
type Attr struct {
	ID  uint16
	Out []byte
}

// DM is memory of the device, mapped. Goroutines call Read and Write at once, never after
// Unmap.
type DM interface {
	// Read and Write copy len(b) bytes, at least one, which lie inside. They refuse those
	// that the processor cannot copy with verbs.ErrInvalid. When Write returns the device
	// has the bytes.
	Read(b []byte, offset int) error
	Write(b []byte, offset int) error
	Unmap()
}

// QPAttr is what a QP is to be. The CQ of its receives is not here, for no driver
// has needed it.
type QPAttr struct {
	Type verbs.QPType
	// Cap is what the program asked for. The core asks the kernel for the same,
	// but for at least one send request with one SGE, and with an SRQ for no
	// receives.
	Cap       verbs.QPCap
	SignalAll bool
	SendCQ    CQ
	SRQ       SRQ // nil: it has a receive queue
}

// CreatedQP is a QP that the kernel made.
type CreatedQP struct {
	Num uint32
	Cap verbs.QPCap // as the kernel reports it
}

// CQ is the mapped memory of a CQ. The core calls its methods under the
// lock of the CQ, never after Unmap. The memory is hostile: whatever it holds,
// the methods return.
type CQ interface {
	// Poll moves up to len(wcs) completions into wcs, fewer only if there are
	// no more now: the core takes that for an empty queue. Each names its QP, by
	// which the core drops those of QPs that are gone. Where a completion has
	// a place in the QP's queue instead of an id, qps finds the queue. An error
	// means that the memory cannot be a completion queue.
	Poll(wcs []verbs.WC, qps QPs) (int, error)
	// Arm asks for an event, or returns false if that takes a command
	// (REQ_NOTIFY_CQ), which the core then makes. It gives none for completions that are
	// there already. A CQ that is armed for any completion is not weakened by Arm(true): the
	// driver remembers that.
	Arm(solicited bool) bool
	// Resize goes over to a queue of at least cqe entries. If it fails though
	// the command has not, the CQ is of no use any more. The driver may ask the
	// kernel for more entries. Only a ReservingCQ may leave the command out, if it
	// has enough already.
	Resize(cqe int, resize func(cqe int, u Udata) error) error
	Unmap()
}

// EventCQ is a CQ that has to know how many of its events were read from the
// completion channel.
type EventCQ interface {
	CQ
	// Notified is called, without the lock of the CQ, when an event was read.
	Notified()
}

// ReservingCQ is a CQ with entries that the driver has kept for itself.
type ReservingCQ interface {
	CQ
	// Capacity is how many completions the others are for.
	Capacity() int
}

// QPs finds the QPs that report to a CQ.
type QPs interface {
	// Find returns the queues of a QP, nil if it is gone. They may be unmapped
	// already, for the lock of the CQ is not the QP's: a driver that reads or
	// writes mapped memory of the QP here would crash. What Poll needs of a QP,
	// the ids of requests for instance, is to be in memory of Go. And PostSend and
	// PostRecv of the QP run at the same time, and the Poll of its other CQ: what they
	// share with Poll is atomic, as the two counters of sendQueue in mlx5/queue.go.
	Find(num uint32) QP
}

// QP is the mapped memory of a QP. The core calls PostSend under the QP's
// send lock, PostRecv under its receive lock, Reset and Unmap under both.
// The core has checked states, opcodes, numbers of SGEs and inline lengths
// against the device's capabilities and the QP's sizes.
type QP interface {
	// Capacity is how many requests fit into the queues (0 receives with an
	// SRQ).
	Capacity() (send, recv int)
	// PostSend puts requests into the send queue and returns how many; with
	// an error (verbs.ErrQueueFull), it is about the next one. doorbell says that
	// the kernel has to be told, which the core does once for all.
	PostSend(wrs []verbs.SendWR) (n int, doorbell bool, err error)
	PostRecv(wrs []verbs.RecvWR) (int, error)
	// Reset empties the queues: the QP has gone to RESET. Its completions have
	// been taken out of both CQs, so Poll does not come to its queues.
	Reset()
	Unmap()
}

// DoorbellQP is a QP whose PostSend rings a doorbell of the device, once for all that it has
// written, and never asks for the kernel's. It learns from completions alone what is done, also of
// requests that give none to the program. So where its send queue is full the core polls the CQ,
// keeps what it finds for those who poll, and posts once more.
//
// Of a completion with an error too, Opcode is below verbs.WCRecv if it is of the send queue.
type DoorbellQP interface {
	QP
	// Ring rings the doorbell again for all that is posted, under the send lock. The core
	// calls it when the QP has come to RTS, or back: requests may have been posted in SQD, or
	// during the transition. Often there are none.
	Ring()
	// Outstanding counts the requests that give a completion of which the CQ was not
	// polled yet, under the send lock and the CQ's.
	Outstanding() int
}

// UnflushedQP is a QP whose kernel flushes what it finds in the queues
// at the moment when the QP fails, and never looks at them again. Requests that
// are posted a moment later, or later still, would never complete. So once the
// QP is in ERR for certain, which MODIFY_QP makes sure of, the core takes them
// back and completes them itself.
type UnflushedQP interface {
	QP
	// TakeBack empties the queues and returns the ids of the requests that
	// were in them, oldest first. The kernel does not use the queues any more.
	TakeBack() (sends, recvs []uint64)
}

// RefusingQP is a QP whose kernel refuses the doorbell also where that is no
// error. For other QPs each refusal is an error of the post.
type RefusingQP interface {
	QP
	// Refused says what it means that the kernel has refused the doorbell. If
	// it is no error, either the QP is about to fail, or stuck: the kernel
	// cannot execute a request, and the QP has failed.
	Refused(err error) (stuck bool, _ error)
}

// ManagedQP is a QP that the kernel's connection manager moves from state to state, as
// on iWARP, where the QP takes over a connection of TCP. Its methods do not use the mapped
// memory, and are called without locks.
type ManagedQP interface {
	QP
	// MayModify says why the program cannot move the QP from one state to another; nil
	// if it can.
	MayModify(from, to verbs.QPState) error
	// State is the state of the QP, of which the kernel says that it is reported, while
	// known is the last one that the core knows of.
	State(reported, known verbs.QPState) verbs.QPState
}

// LengthQP is a QP that knows how many bytes a request that was posted has in its queue. WQEBytes
// uses no mapped memory, and is called without locks.
type LengthQP interface {
	QP
	WQEBytes(wr *verbs.SendWR) int
}

// EmptyWriteQP is a QP of iWARP whose peer, as the one that accepts a connection,
// may miss what arrives before it is in RTS, and looks at it only when more comes.
type EmptyWriteQP interface {
	QP
	// PostEmptyWrite posts a request with that id that makes the peer's kernel look, and
	// of which its program sees nothing: an empty WRITE. It posts none while the
	// kernel has not taken the request before it, which has the same effect.
	// It is called under the send lock. doorbell is PostSend's.
	PostEmptyWrite(id uint64) (doorbell bool)
}

// SRQ is the mapped memory of an SRQ, used under its lock. The driver's own Poll
// of a CQ may use it at the same time, and after Unmap: that lock is not the CQ's.
// So an SRQ that Poll uses needs a lock of its own, and Unmap says under it that the
// memory is gone, as in mlx5/srq.go.
type SRQ interface {
	Capacity() int
	PostRecv(wrs []verbs.RecvWR) (int, error)
	// Modify gives MODIFY_SRQ with what it adds to it. With SRQAttrMaxWR in
	// mask it goes over to a queue of that size. If it fails though the
	// command has not, the kernel reads another queue than this.
	Modify(attr verbs.SRQAttr, mask verbs.SRQAttrMask, modify func(in []byte) error) error
	Unmap()
}

// Window is a memory window of the core. Its key changes with each bind. PostSend uses it without a
// lock: the core lets one QP at a time bind it.
type Window interface {
	Key() uint32
	SetKey(key uint32)
}

// AH is an address handle of the core.
type AH interface {
	// DriverAH is what CreateAH has returned.
	DriverAH() any
}

// AddressHandle is what CreateAH has returned for ah, nil if ah is not the
// core's.
func AddressHandle(ah *verbs.AH) any {
	if a, ok := ah.Driver().(AH); ok {
		return a.DriverAH()
	}
	return nil
}
