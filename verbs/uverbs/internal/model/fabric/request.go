package fabric

import "encoding/binary"

var (
	le = binary.LittleEndian
	be = binary.BigEndian
)

// A Service is the type of a QP (IB_UVERBS_QPT_*).
type Service byte

// The services that there are.
const (
	RC Service = 2
	UC Service = 3
	UD Service = 4

	XRCInitiator Service = 9
	XRCTarget    Service = 10 // its queues are those of its Domain
)

// An Op is what a request does.
type Op string

// The operations.
const (
	Nop       Op = "NOP"
	Send      Op = "SEND"
	SendImm   Op = "SEND with immediate"
	SendInv   Op = "SEND with invalidate"
	Write     Op = "WRITE"
	WriteImm  Op = "WRITE with immediate"
	Read      Op = "READ"
	Compare   Op = "compare and swap"
	FetchAdd  Op = "fetch and add"
	ChangeKey Op = "change of a key"
)

// Remote is true for operations on memory of the other side.
func (o Op) Remote() bool { return o == Write || o == WriteImm || o.Answered() }

// Atomic is true for atomic operations.
func (o Op) Atomic() bool { return o == Compare || o == FetchAdd }

// Answered is true for operations whose data come from the other side.
func (o Op) Answered() bool { return o == Read || o.Atomic() }

// Receives is true for operations that consume a receive request.
func (o Op) Receives() bool { return o == Send || o == SendImm || o == SendInv || o == WriteImm }

// A Status is what became of a request: the empty one that it was carried out.
type Status string

// The errors (enum ib_wc_status).
const (
	LocalLength        Status = "local length error"
	LocalOperation     Status = "local QP operation error"
	LocalProtection    Status = "local protection error"
	Flushed            Status = "flushed"
	WindowBind         Status = "memory window bind error"
	LocalAccess        Status = "local access error"
	PageFault          Status = "page fault" // of a receive; the requester tries again
	RemoteInvalid      Status = "remote invalid request"
	RemoteAccess       Status = "remote access error"
	RemoteOperation    Status = "remote operation error"
	RetriesExceeded    Status = "retries exceeded"
	RNRRetriesExceeded Status = "RNR retries exceeded"
)

// Access flags (IB_UVERBS_ACCESS_*).
const (
	AccessLocalWrite   = 1
	AccessRemoteWrite  = 2
	AccessRemoteRead   = 4
	AccessRemoteAtomic = 8
	AccessOnDemand     = 64
)

// AnyQP is the number of no QP: each of its PD may use a key that has it.
const AnyQP = 0xffffff

// A Scatter is an entry of a gather or scatter list.
type Scatter struct {
	Addr uint64
	Size uint32
	Key  uint32
}

// An Address is where packets go.
type Address struct {
	LID    uint16 // InfiniBand
	Global bool
	GID    [16]byte
	Source byte // index of the GID that they come from
}

// A Datagram is where a request of UD goes.
type Datagram struct {
	Address
	QKey uint32
	QPN  uint32
	SL   byte
	MAC  [6]byte
}

// A Request is one of a send queue.
type Request struct {
	Op             Op
	Index, Slots   uint16 // its place in the queue, and how much it takes
	Signaled       bool
	Solicited      bool
	Fenced         bool     // it waits for READs and atomics
	Imm            [4]byte  // or the key that is to be taken away
	To             Datagram // UD
	Addr           uint64   // remote
	RKey           uint32
	SRQ            uint32 // XRC: the number of that which it is for
	SwapAdd, Equal uint64 // atomics
	List           []Scatter
	Inline         []byte        // data of the request itself; it has these or a list
	Length         uint64        // of all data
	Change         func() Status // of a key
}

// A Receipt is what a completion says of a receive request.
type Receipt struct {
	Op        Op // of the message
	Status    Status
	Bytes     uint32
	Imm       [4]byte
	Solicited bool
	// UD:
	LID    uint16 // that it is from
	QPN    uint32
	GID    GID
	Global bool
	SL     byte
}
