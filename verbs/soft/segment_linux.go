package soft

import (
	"fmt"
	"math/bits"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
	"golang.org/x/sys/unix"
)

// The inbound segment of a QP: a memfd that its owner makes, polls and
// publishes credits in, and that its peer maps and writes descriptors into.
//
//	offset      what                writer        read by
//	0           arm                 both, by CAS  peer after each publication
//	4           gate                owner         peer before each operation
//	8           cpu                 owner         peer, when it wonders whether to spin
//	128         posted              owner         peer, when its copy is used up
//	136         consumed            owner         peer, when its copy is used up
//	144         released            owner         peer, when its copy is used up
//	152         starved             owner         peer, after a kick
//	256         want                peer sets 1, owner sets 0
//	1024        keys                owner         peer before each operation on a region
//	65536       descriptors         peer          owner
//	then        lengths             owner         peer, before a SEND
//	then        SEND buffer         peer          owner
//
// The order of the peer: payload, descriptor, its seq word (a store with a
// full fence), then the load of arm. The order of the owner: arm (with a full
// fence), then the load of seq. The one that comes second sees the other, so
// no wake-up is lost (protocol_test.go tries all orders).
//
// arm is the one word with two writers: the owner sets armArmed, the peer
// takes it away by compare-and-swap when it wakes the owner, so that one arrival
// wakes once.
//
// Counts are absolute and never go back: receives posted, descriptors
// consumed, bytes of the SEND buffer released. An entry of the ring is
// published by seq becoming uint32(position+1).
//
// Which entry comes next is the peer's choice: the one behind, or the one that a
// descriptor with flagElsewhere names. So the peer goes round in as few entries
// as it needs, which stay in the caches, and the others have no memory.
//
// keys say which regions of the owner the peer may use: the answer about a key
// names a place among them, which holds the key for as long as it is good. A
// peer that writes there, as it can, takes keys from itself alone: the regions
// have no word that counts for others. The pages of keys beyond the first come
// with the regions that need them.
type header struct {
	arm  atomic.Uint32
	gate atomic.Uint32
	cpu  atomic.Uint32 // 1 + CPU, 0: not published
	_    [116]byte

	posted   atomic.Uint64
	consumed atomic.Uint64
	released atomic.Uint64
	starved  atomic.Uint64 // 1 + position of the descriptor that found the SRQ empty
	_        [96]byte

	want atomic.Uint32
	_    [keysAt - 260]byte

	keys [keySlots]atomic.Uint32
}

// The bits of header.arm.
const (
	armArmed     uint32 = 1 << 0 // wake once when something arrives
	armSolicited uint32 = 1 << 1 // only if it is solicited or failed
	armFutex     uint32 = 1 << 2 // the sleeper waits in a futex on arm, not for the wake-up socket
)

// The bits of header.gate: what the owner's QP lets in.
const (
	gateOpen   uint32 = 1 << 0 // in RTR, RTS, SQD or SQE
	gateFailed uint32 = 1 << 1 // in ERR, or destroyed: will never open again
	gateWrite  uint32 = 1 << 2
	gateRead   uint32 = 1 << 3
	gateAtomic uint32 = 1 << 4
	gateFlush  uint32 = 1 << 5
	gateRNR    uint32 = 8 // shift of the min_rnr_timer code, 5 bits
)

const (
	headerSize     = 1 << 16 // a multiple of the page size of any machine
	keysAt         = 1024
	keySlots       = (headerSize - keysAt) / 4 // regions that a peer may use at a time
	descriptorSize = 64
	inlinePayload  = 40 // bytes of a SEND that travel in the descriptor
	sendAlign      = 64 // pieces in the SEND buffer start at multiples
)

// A descriptor tells the owner of the segment about one arrival.
type descriptor struct {
	seq    atomic.Uint32
	kind   uint8
	flags  uint8
	_      uint16
	imm    uint32 // immediate, or the rkey that SEND_WITH_INV invalidates
	length uint32 // bytes of this piece
	total  uint32 // bytes of the whole message
	next   uint32 // entry of the next descriptor, with flagElsewhere
	data   [inlinePayload]byte
}

// The kinds of descriptor. All but kindPiece complete a receive.
const (
	kindWriteImm uint8 = 1 + iota
	kindSend
	kindSendImm
	kindSendInv
	kindPiece // a part of a SEND, more follows
)

const (
	// flagInDescriptor says that the piece is in descriptor.data and not in the
	// SEND buffer.
	flagInDescriptor uint8 = 1 << 0
	// flagElsewhere says that the next descriptor is in entry next.
	flagElsewhere uint8 = 1 << 1
)

// The sizes are part of the protocol between processes.
var (
	_ [headerSize - unsafe.Sizeof(header{})]byte
	_ [unsafe.Sizeof(header{}) - headerSize]byte
	_ [descriptorSize - unsafe.Sizeof(descriptor{})]byte
	_ [unsafe.Sizeof(descriptor{}) - descriptorSize]byte
	_ [unsafe.Offsetof(header{}.posted) - 128]byte
	_ [128 - unsafe.Offsetof(header{}.posted)]byte
	_ [unsafe.Offsetof(header{}.want) - 256]byte
	_ [256 - unsafe.Offsetof(header{}.want)]byte
	_ [unsafe.Offsetof(header{}.keys) - keysAt]byte
	_ [keysAt - unsafe.Offsetof(header{}.keys)]byte
)

// segmentSeals keep a peer from truncating what we have mapped, which would
// be SIGBUS, and from sealing more.
const segmentSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// geometry is the shape of a segment; both ends compute the same layout from
// it.
type geometry struct {
	receives uint32 // most receives posted: a power of two
	sendBuf  uint32 // bytes of the SEND buffer: a power of two
}

const (
	minReceives = 32
	maxReceives = 1 << 16 // as many as a queue of a device has
	minSendBuf  = 1 << 12
	maxSendBuf  = 1 << 24
)

// entries is the size of the descriptor ring. Twice the number of receives:
// consumed may be told a quarter of the ring late, and a peer that has a
// receive to use must never find the ring full on that account.
func (g geometry) entries() uint32 { return 2 * g.receives }

// A lap is the part of the ring that is in use, from its start. It grows by a
// factor at first, and then by as much as one system call may populate.
const (
	firstLap = 64
	lapStep  = pagesAtOnce / descriptorSize
)

// longerLap is what comes after a lap in a ring of so many entries.
func longerLap(lap, entries uint32) uint32 { return min(4*lap, lap+lapStep, entries) }

// pagesOfEntries returns the pages of the ring in which the entries from first
// to end lie.
func pagesOfEntries(ring []descriptor, first, end uint32) []byte {
	base := unsafe.Pointer(unsafe.SliceData(ring))
	from := int(first) * descriptorSize &^ (pageSize - 1)
	return unsafe.Slice((*byte)(unsafe.Add(base, from)), pageAlign(int(end)*descriptorSize)-from)
}

// pagesWithin returns the pages of the ring in which nothing else lies.
func pagesWithin(ring []descriptor, first, end uint32) []byte {
	from := pageAlign(int(first) * descriptorSize)
	to := max(from, int(end)*descriptorSize&^(pageSize-1))
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(ring)), from)), to-from)
}

func (g geometry) lengthsAt() int { return headerSize + int(g.entries())*descriptorSize }

// rooms are the parts of a segment that must have memory from the beginning,
// by their ends: the first page of the header, and the first descriptors.
func (g geometry) rooms() [2][2]int {
	return [2][2]int{{0, pageSize}, {headerSize, pageAlign(headerSize + firstLap*descriptorSize)}}
}

func (g geometry) sendAt() int { return pageAlign(g.lengthsAt() + int(g.receives)*4) }

func (g geometry) size() int { return g.sendAt() + int(g.sendBuf) }

func (g geometry) check() error {
	powerOfTwo := bits.OnesCount32(g.receives) == 1 && bits.OnesCount32(g.sendBuf) == 1
	if !powerOfTwo || g.receives < minReceives || g.receives > maxReceives || g.sendBuf < minSendBuf || g.sendBuf > maxSendBuf {
		return fmt.Errorf("segment of %d receives and %d bytes of SEND buffer", g.receives, g.sendBuf)
	}
	return nil
}

// geometryFor is the shape for a QP of maxRecv receives.
func geometryFor(maxRecv int) geometry {
	n := uint32(minReceives)
	for int(n) < maxRecv {
		n *= 2
	}
	return geometry{receives: n, sendBuf: 1 << 18}
}

// view is a segment's memory, typed. The zero view is of no segment.
type view struct {
	hdr     *header
	ring    []descriptor
	lengths []atomic.Uint32
	send    []byte
}

// viewOf lays g over mem, which is page aligned and at least g.size() long.
func viewOf(mem []byte, g geometry) view {
	_ = mem[g.size()-1]
	return view{
		hdr:     (*header)(unsafe.Pointer(&mem[0])),
		ring:    unsafe.Slice((*descriptor)(unsafe.Pointer(&mem[headerSize])), g.entries()),
		lengths: unsafe.Slice((*atomic.Uint32)(unsafe.Pointer(&mem[g.lengthsAt()])), g.receives),
		send:    mem[g.sendAt():g.size()],
	}
}

// setSeqQuietly writes the seq word with an ordinary store: for an entry that
// a later, fenced store of an earlier entry publishes.
func (d *descriptor) setSeqQuietly(seq uint32) {
	*(*uint32)(unsafe.Pointer(&d.seq)) = seq
}

// word64 views 8 bytes for an atomic; the caller has checked the alignment of
// the address.
func word64(mem []byte) *atomic.Uint64 {
	_ = mem[7]
	return (*atomic.Uint64)(unsafe.Pointer(&mem[0]))
}

// addressOf is the address by which work requests name the first byte.
func addressOf(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }

// pageSize is that of the machine: 4 to 64 KiB.
var pageSize = os.Getpagesize()

func pageAlign(n int) int { return (n + pageSize - 1) &^ (pageSize - 1) }

// segment is the mapping of an inbound segment in the process that made it.
// Its QP holds one reference, a QP of the same process that is paired with it
// another.
type segment struct {
	view
	geo  geometry
	mem  []byte
	fd   atomic.Int32 // -1 once it is not needed for a handshake any more
	refs atomic.Int32
}

func (d *device) newSegment(geo geometry) (*segment, error) {
	fd, err := d.memfd("ramjet-qp", geo.size())
	if err != nil {
		return nil, err
	}
	// The counters and the first descriptors must exist; the rest comes on use.
	for _, room := range geo.rooms() {
		if err := sys.Allocate(fd, room[0], room[1]); err != nil {
			unix.Close(fd)
			return nil, err
		}
	}
	if err := sys.Seal(fd, segmentSeals); err != nil {
		unix.Close(fd)
		return nil, err
	}
	mem, err := d.mmap(fd, 0, geo.size(), unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	s := &segment{view: viewOf(mem, geo), geo: geo, mem: mem}
	s.fd.Store(int32(fd))
	s.refs.Store(1)
	// CQ.Poll looks at the ring without a lock, so the addresses stay mapped
	// until the collector proves that nobody can look any more.
	runtime.AddCleanup(s, func(r sys.AddressRange) { sys.Unmap(r.Bytes(), sys.OfMemfd) }, sys.RangeOf(mem))
	if err := geo.populate(mem, geo.size()); err != nil {
		s.release()
		return nil, err
	}
	return s, nil
}

// populate gives memory to what must have it, up to limit bytes.
func (g geometry) populate(mem []byte, limit int) error {
	for _, room := range g.rooms() {
		n := min(room[1]-room[0], limit)
		if err := sys.Populate(mem[room[0]:][:n]); err != nil {
			return err
		}
		limit -= n
	}
	return nil
}

// closeFD gives up the descriptor, after the handshake.
func (s *segment) closeFD() {
	if fd := s.fd.Swap(-1); fd >= 0 {
		unix.Close(int(fd))
	}
}

func (s *segment) retain() *segment {
	s.refs.Add(1)
	return s
}

// release gives up a reference. With the last one the memory is freed.
func (s *segment) release() {
	if s.refs.Add(-1) != 0 {
		return
	}
	s.closeFD()
	// If the kernel has no room to split the mapping, the memory stays until
	// the cleanup runs; nothing else is lost.
	_ = sys.ShowZeros(s.mem)
	runtime.KeepAlive(s) // or the cleanup could have given the addresses away before the zeros come
}
