package verbs

import (
	"fmt"
	"math"
)

// Opcode is the operation of a send work request (enum ib_uverbs_wr_opcode).
type Opcode uint8

// The operations, numbered as in rdma/ib_user_verbs.h.
const (
	OpWrite        Opcode = 0
	OpWriteWithImm Opcode = 1
	OpSend         Opcode = 2
	OpSendWithImm  Opcode = 3
	OpRead         Opcode = 4
	OpCompareSwap  Opcode = 5
	OpFetchAdd     Opcode = 6
	OpLocalInv     Opcode = 7
	OpBindMW       Opcode = 8
	OpSendWithInv  Opcode = 9
	OpFlush        Opcode = 14
	OpAtomicWrite  Opcode = 15
)

var opcodeNames = [...]string{
	OpWrite: "WRITE", OpWriteWithImm: "WRITE_WITH_IMM", OpSend: "SEND",
	OpSendWithImm: "SEND_WITH_IMM", OpRead: "READ", OpCompareSwap: "CMP_AND_SWP",
	OpFetchAdd: "FETCH_AND_ADD", OpLocalInv: "LOCAL_INV", OpBindMW: "BIND_MW",
	OpSendWithInv: "SEND_WITH_INV", OpFlush: "FLUSH", OpAtomicWrite: "ATOMIC_WRITE",
}

// String names the operation as the specification does.
func (o Opcode) String() string {
	if int(o) < len(opcodeNames) && opcodeNames[o] != "" {
		return opcodeNames[o]
	}
	return fmt.Sprintf("OPCODE(%d)", uint8(o))
}

// SendFlags modify a send work request.
type SendFlags uint8

// The send flags, numbered as in infiniband/verbs.h (enum ibv_send_flags) and
// the kernel's rdma/ib_verbs.h.
const (
	// SendFence makes the request wait until earlier READs and atomics of
	// this QP are done.
	SendFence SendFlags = 1 << 0
	// SendSignaled asks for a completion. Without it (and without
	// QPInitAttr.SignalAll) a request completes silently unless it fails.
	SendSignaled SendFlags = 1 << 1
	// SendSolicited makes the receiver's completion a solicited event.
	SendSolicited SendFlags = 1 << 2
	// SendInline takes the payload from SendWR.Inline while the call runs;
	// the memory may be reused as soon as PostSend returns and needs no MR.
	SendInline SendFlags = 1 << 3

	sendKnown = SendFence | SendSignaled | SendSolicited | SendInline
)

// SGE is a scatter/gather element: a piece of registered memory. Addr is an
// address as [MR.Addr] reports it.
type SGE struct {
	Addr   uint64
	Length uint32 // bytes
	LKey   uint32
}

// SendWR is a send work request. It is a plain value; PostSend keeps neither
// it nor its slices.
type SendWR struct {
	ID     uint64 // comes back in WC.ID
	Opcode Opcode
	Flags  SendFlags
	// Imm is the immediate of the WITH_IMM operations, in host byte order.
	// Providers put it on the wire in network byte order.
	Imm uint32
	// InvalidateRKey is the peer's rkey that SEND_WITH_INV invalidates, or
	// our own that LOCAL_INV does.
	InvalidateRKey uint32
	// SGL is the local memory: gathered for SEND and WRITE, scattered into
	// for READ and atomics (8 bytes). ATOMIC_WRITE is always inline: 8 bytes.
	SGL []SGE
	// Inline is the payload when SendInline is set; SGL is then ignored.
	Inline [][]byte
	// RemoteAddr and RKey name the peer's memory for WRITE, READ, atomics
	// and FLUSH.
	RemoteAddr uint64
	RKey       uint32
	// RemoteSRQ is the number of the peer's SRQ that each request of an XRC initiator is for:
	// it names whose receive is taken, and whose memory RemoteAddr and RKey are about.
	RemoteSRQ uint32
	// CompareAdd is the value to compare with (CMP_AND_SWP) or to add
	// (FETCH_AND_ADD); Swap is the value to store (CMP_AND_SWP).
	CompareAdd uint64
	Swap       uint64
	// Datagram is the destination on a UD QP, Bind what BIND_MW binds, Flush
	// what FLUSH flushes; nil for everything else.
	Datagram *Datagram
	Bind     *Bind
	Flush    *Flush
}

// Datagram is where a message of a UD QP goes.
type Datagram struct {
	AH   *AH
	QPN  uint32
	QKey uint32
}

// Bind says what a memory window is to cover. A window of type 2 gets a new
// rkey, which the caller chooses: the upper 24 bits of [MW.RKey] and any other
// lower 8 bits.
//
// A window of type 1 gets its next key with the post, which MW.RKey then returns. What the window
// had before, memory and key, it has until the request is executed. QPs of the PD may bind it in
// turn, but QPs execute in no order. So a device of the kernel has one QP at a time bind a window
// of either type: the post of another QP fails with an error that wraps ErrBusy until a completion
// was polled of the bind or of a request behind it, or the QP has failed or is closed. The software
// HCA executes the binds of all QPs one after the other, and MW.RKey is the key of the last one.
// Goroutines that post binds of a window on one QP have to make sure among themselves whose key it
// is that MW.RKey returns.
type Bind struct {
	MW     *MW
	RKey   uint32 // the new one
	MR     *MR    // made with AccessMWBind
	Addr   uint64 // inside MR, as MR.Addr counts
	Length uint64 // bytes, 0 to unbind
	Access Access // remote rights
}

// FlushType says how far the flushed data must have come (InfiniBand
// Architecture Specification, release 1.6, section 9.4.8; enum
// ib_flush_type, rdma/ib_user_verbs.h, kernel 6.3).
type FlushType uint8

// The flush types; they may be combined.
const (
	FlushGlobal     FlushType = 1 << 0 // visible to the whole host
	FlushPersistent FlushType = 1 << 1 // safe from a power failure
)

// FlushLevel says what is flushed (enum ib_selectivity_level).
type FlushLevel uint8

// The flush levels.
const (
	FlushRange FlushLevel = 0 // Length bytes from RemoteAddr
	FlushMR    FlushLevel = 1 // the whole MR of RKey
)

// Flush says what a FLUSH request flushes at the peer.
type Flush struct {
	Type   FlushType
	Level  FlushLevel
	Length uint32 // bytes, with FlushRange
}

// Len returns the payload length in bytes.
func (wr *SendWR) Len() int {
	if wr.Flags&SendInline != 0 {
		return wr.inlineLen()
	}
	n := 0
	for i := range wr.SGL {
		n += int(wr.SGL[i].Length)
	}
	return n
}

// countable reports whether Len is right: an int of 32 bits may have no room for it.
func (wr *SendWR) countable() bool {
	n := uint64(0)
	for i := range wr.SGL {
		n += uint64(wr.SGL[i].Length)
	}
	for _, b := range wr.Inline {
		n += uint64(len(b))
	}
	return n <= math.MaxInt
}

func (wr *SendWR) inlineLen() (n int) {
	for _, b := range wr.Inline {
		n += len(b)
	}
	return n
}

// RecvWR is a receive work request. An empty SGL is right for a QP that
// receives only RDMA WRITE with immediate.
type RecvWR struct {
	ID  uint64
	SGL []SGE
}
