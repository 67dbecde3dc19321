// Package protocol is what two processes must agree on whose QPs are paired: the
// memory that they share (this file) and the messages on the socket between them
// (message_linux.go). docs/protocol.md has the same for other programs.
package protocol

import (
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
)

// Header is the beginning of the inbound segment of a QP: a memfd that its owner makes, polls and
// publishes credits in, and that its peer maps and writes descriptors into.
//
//	offset      what                writer        read by
//	0           arm                 both, by CAS  peer after each publication
//	4           gate                owner         peer before each operation
//	8           own CPU             owner         peer, before it polls
//	12          asked CPU           owner         peer, before it waits
//	128         posted              owner         peer, when its copy is used up
//	136         consumed            owner         peer, when its copy is used up
//	144         released            owner         peer, when its copy is used up
//	152         starved             owner         peer, when notified
//	256         want                peer sets 1, owner sets 0
//	1024        keys                owner         peer before each operation on a region
//	65536       descriptors         peer          owner
//	then        lengths             owner         peer, before a SEND
//	then        SEND buffer         peer          owner
//
// The order of the peer: payload, descriptor, its seq word (a store with a
// full fence), then the load of arm. The order of the owner: arm (with a full
// fence), then the load of seq. The one that comes second sees the other, so
// no wake-up is lost (protocol_test.go of package soft tries all orders).
//
// arm is the one word with two writers: the owner sets ArmArmed, the peer
// takes it away by compare-and-swap when it wakes the owner, so that one arrival
// wakes once.
//
// Counts are absolute and never go back: receives posted, descriptors
// consumed, bytes of the SEND buffer released. An entry of the ring is
// published by seq becoming uint32(position+1).
//
// Which entry comes next is the peer's choice: the one behind, or the one that a
// descriptor with FlagElsewhere names. So the peer goes round in as few entries
// as it needs, which stay in the caches, and the others have no memory.
//
// keys say which regions of the owner the peer may use: the answer about a key
// names a place among them, which holds the key for as long as it is good. A
// peer that writes there, as it can, takes keys from itself alone: the regions
// have no word that counts for others. The pages of keys beyond the first come
// with the regions that need them.
type Header struct {
	Arm  atomic.Uint32
	Gate atomic.Uint32
	CPUs CPUs
	_    [112]byte

	Posted   atomic.Uint64
	Consumed atomic.Uint64
	Released atomic.Uint64
	Starved  atomic.Uint64 // 1 + position of the descriptor that found the SRQ empty
	_        [96]byte

	Want atomic.Uint32
	_    [KeysAt - 260]byte

	Keys [KeySlots]atomic.Uint32
}

// CPUs is where the owner of a segment runs. Each word is 1 + CPU, or 0: not known.
type CPUs struct {
	Own   atomic.Uint32 // where it ran when it looked last
	Asked atomic.Uint32 // where it asks the peer to run, too; from bit 17 on a number that changes when it asks again
}

// The bits of Header.Arm.
const (
	ArmArmed     uint32 = 1 << 0 // wake once when something arrives
	ArmSolicited uint32 = 1 << 1 // only if it is solicited or failed
	ArmFutex     uint32 = 1 << 2 // the sleeper waits in a futex on arm, not for the wake-up socket
)

// The bits of Header.Gate: what the owner's QP lets in.
const (
	GateOpen   uint32 = 1 << 0 // in RTR, RTS, SQD or SQE
	GateFailed uint32 = 1 << 1 // in ERR, or destroyed: will never open again
	GateWrite  uint32 = 1 << 2
	GateRead   uint32 = 1 << 3
	GateAtomic uint32 = 1 << 4
	GateFlush  uint32 = 1 << 5
	GateRNR    uint32 = 8 // shift of the min_rnr_timer code, 5 bits
)

// Sizes and places in a segment, in bytes.
const (
	headerSize     = 1 << 16                   // a multiple of the page size of any machine
	KeysAt         = 1024                      // where Header.Keys begins
	KeySlots       = (headerSize - KeysAt) / 4 // regions that a peer may use at a time
	DescriptorSize = 128
	InlinePayload  = 96 // bytes of a SEND or a WRITE that travel in the descriptor
	SendAlign      = 64 // pieces in the SEND buffer start at multiples
)

// Descriptor tells the owner of the segment about one arrival.
type Descriptor struct {
	Seq    atomic.Uint32
	Kind   uint8
	Flags  uint8
	_      uint16
	Imm    uint32 // immediate, or the rkey that SEND_WITH_INV invalidates
	Length uint32 // bytes of this piece
	Total  uint32 // bytes of the whole message, or the rkey of a WRITE in the descriptor
	Next   uint32 // entry of the next descriptor, with FlagElsewhere
	Addr   uint64 // where a WRITE in the descriptor goes
	Data   [InlinePayload]byte
}

// The kinds of descriptor. All but KindPiece complete a receive.
const (
	KindWriteImm uint8 = 1 + iota
	KindSend
	KindSendImm
	KindSendInv
	KindPiece // a part of a SEND, more follows
)

const (
	// FlagInDescriptor says that the data are in Descriptor.Data: the piece of a SEND is not in the
	// SEND buffer, and that of a WRITE not in its place yet (HelloPlaceAtPoll).
	FlagInDescriptor uint8 = 1 << 0
	// FlagElsewhere says that the next descriptor is in entry Next.
	FlagElsewhere uint8 = 1 << 1
)

// The sizes are part of the protocol between processes.
var (
	_ [headerSize - unsafe.Sizeof(Header{})]byte
	_ [unsafe.Sizeof(Header{}) - headerSize]byte
	_ [DescriptorSize - unsafe.Sizeof(Descriptor{})]byte
	_ [unsafe.Sizeof(Descriptor{}) - DescriptorSize]byte
	_ [unsafe.Offsetof(Header{}.Posted) - 128]byte
	_ [128 - unsafe.Offsetof(Header{}.Posted)]byte
	_ [unsafe.Offsetof(Header{}.Want) - 256]byte
	_ [256 - unsafe.Offsetof(Header{}.Want)]byte
	_ [unsafe.Offsetof(Header{}.Keys) - KeysAt]byte
	_ [KeysAt - unsafe.Offsetof(Header{}.Keys)]byte
)

// Geometry is the shape of a segment; both ends compute the same layout from
// it.
type Geometry struct {
	Receives uint32 // most receives posted: a power of two
	SendBuf  uint32 // bytes of the SEND buffer: a power of two
}

// The bounds of a Geometry.
const (
	minReceives = 32
	MaxReceives = 1 << 16 // as many as a queue of a device has
	MinSendBuf  = 1 << 12
	maxSendBuf  = 1 << 24
)

// entries is the size of the descriptor ring. Twice the number of receives:
// consumed may be told a quarter of the ring late, and a peer that has a
// receive to use must never find the ring full on that account.
func (g Geometry) entries() uint32 { return 2 * g.Receives }

// PagesAtOnce is how much memory one system call gives or takes while posts wait.
const PagesAtOnce = 64 << 10

// A lap is the part of the ring that is in use, from its start. It grows by a
// factor at first, and then by as much as one system call may populate.
const (
	FirstLap = 32
	lapStep  = PagesAtOnce / DescriptorSize
)

// LongerLap is what comes after a lap in a ring of so many entries.
func LongerLap(lap, entries uint32) uint32 { return min(4*lap, lap+lapStep, entries) }

// PagesOfEntries returns the pages of the ring in which the entries from first
// to end lie.
func PagesOfEntries(ring []Descriptor, first, end uint32) []byte {
	base := unsafe.Pointer(unsafe.SliceData(ring))
	from := int(first) * DescriptorSize &^ (PageSize - 1)
	return unsafe.Slice((*byte)(unsafe.Add(base, from)), PageAlign(int(end)*DescriptorSize)-from)
}

// PagesAround returns the pages in which memory lies.
func PagesAround(mem []byte) []byte {
	base := unsafe.Pointer(unsafe.SliceData(mem))
	before := int(uintptr(base) & uintptr(PageSize-1))
	return unsafe.Slice((*byte)(unsafe.Add(base, -before)), PageAlign(before+len(mem)))
}

// PagesWithin returns the pages of the ring in which nothing else lies.
func PagesWithin(ring []Descriptor, first, end uint32) []byte {
	from := PageAlign(int(first) * DescriptorSize)
	to := max(from, int(end)*DescriptorSize&^(PageSize-1))
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(ring)), from)), to-from)
}

func (g Geometry) lengthsAt() int { return headerSize + int(g.entries())*DescriptorSize }

// Rooms are the parts of a segment that must have memory from the beginning,
// by their ends: the first page of the header, and the first descriptors.
func (g Geometry) Rooms() [2][2]int {
	return [2][2]int{{0, PageSize}, {headerSize, PageAlign(headerSize + FirstLap*DescriptorSize)}}
}

// SendAt is where the SEND buffer begins.
func (g Geometry) SendAt() int { return PageAlign(g.lengthsAt() + int(g.Receives)*4) }

// Size is that of the segment in bytes.
func (g Geometry) Size() int { return g.SendAt() + int(g.SendBuf) }

// Check returns an error if no segment has this shape.
func (g Geometry) Check() error {
	powerOfTwo := bits.OnesCount32(g.Receives) == 1 && bits.OnesCount32(g.SendBuf) == 1
	if !powerOfTwo || g.Receives < minReceives || g.Receives > MaxReceives || g.SendBuf < MinSendBuf || g.SendBuf > maxSendBuf {
		return fmt.Errorf("segment of %d receives and %d bytes of SEND buffer", g.Receives, g.SendBuf)
	}
	return nil
}

// GeometryFor is the shape for a QP of maxRecv receives.
func GeometryFor(maxRecv int) Geometry {
	n := uint32(minReceives)
	for int(n) < maxRecv {
		n *= 2
	}
	return Geometry{Receives: n, SendBuf: 1 << 18}
}

// View is a segment's memory, typed. The zero view is of no segment.
type View struct {
	Header  *Header
	Ring    []Descriptor
	Lengths []atomic.Uint32
	Send    []byte
}

// ViewOf lays g over mem, which is page aligned and at least g.Size() long.
func ViewOf(mem []byte, g Geometry) View {
	_ = mem[g.Size()-1]
	return View{
		Header:  (*Header)(unsafe.Pointer(&mem[0])),
		Ring:    unsafe.Slice((*Descriptor)(unsafe.Pointer(&mem[headerSize])), g.entries()),
		Lengths: unsafe.Slice((*atomic.Uint32)(unsafe.Pointer(&mem[g.lengthsAt()])), g.Receives),
		Send:    mem[g.SendAt():g.Size()],
	}
}

// SetSeqQuietly writes the seq word with an ordinary store: for an entry that
// a later, fenced store of an earlier entry publishes.
func (d *Descriptor) SetSeqQuietly(seq uint32) {
	*(*uint32)(unsafe.Pointer(&d.Seq)) = seq
}

// Word64 views 8 bytes for an atomic; the caller has checked the alignment of
// the address.
func Word64(mem []byte) *atomic.Uint64 {
	_ = mem[7]
	return (*atomic.Uint64)(unsafe.Pointer(&mem[0]))
}

// AddressOf is the address by which work requests name the first byte.
func AddressOf(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }

// PageSize is that of the machine: 4 to 64 KiB.
var PageSize = os.Getpagesize()

// PageAlign returns the next multiple of PageSize that is not less than n.
func PageAlign(n int) int { return (n + PageSize - 1) &^ (PageSize - 1) }

// Populate gives memory to what must have it.
func (g Geometry) Populate(mem []byte) error {
	for _, room := range g.Rooms() {
		if err := sys.Populate(mem[room[0]:room[1]]); err != nil {
			return err
		}
	}
	return nil
}
