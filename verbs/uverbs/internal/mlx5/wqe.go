//go:build amd64 || arm64

package mlx5

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

// A WQE is a control segment, what the layout of its operation says, and then the data: inline, or
// a segment for each SGE. It is written front to back, and the control segment, which has the size,
// at the end; the device looks at it when the record says so.

// wqe is what was written for a request.
type wqe struct {
	first uint64 // the first eight bytes, in our byte order: the doorbell of the device
	size  uint32 // bytes, whole segments
}

func (w wqe) blocks() uint32 { return (w.size + blockSize - 1) / blockSize }

// operation is what an operation of ours is to the device.
type operation struct {
	opcode    byte // MLX5_OPCODE_*
	layout    layout
	header    uint8 // bytes before the data
	argument  argument
	completes verbs.WCOpcode
}

// layout is what is behind the control segment.
type layout uint8

const (
	unsupported layout = iota // the service has no such operation
	plain                     // data
	addressed                 // whom to, data
	remoteWrite               // where to, data
	remoteRead                // where from, room for data
	remoteSwap                // where, two values, room for data
	remoteAdd                 // where, a value, room for data
	keyChange                 // see putKeyChange

	domain layout = 1 << 4 // with one of the others: the SRQ before that (struct mlx5_wqe_xrc_seg)
)

// inlines reports whether the data may be inline.
func (l layout) inlines() bool { return l&^domain <= remoteWrite }

// argument is what the last word of the control segment is.
type argument uint8

const (
	nothing argument = iota
	immediate
	invalidatedKey
)

// operations are those of a service, by verbs.Opcode.
type operations [256]operation

var reliable = operations{
	verbs.OpSend:         {opSend, plain, segmentSize, nothing, verbs.WCSend},
	verbs.OpSendWithImm:  {opSendImm, plain, segmentSize, immediate, verbs.WCSend},
	verbs.OpSendWithInv:  {opSendInv, plain, segmentSize, invalidatedKey, verbs.WCSend},
	verbs.OpWrite:        {opWrite, remoteWrite, 2 * segmentSize, nothing, verbs.WCWrite},
	verbs.OpWriteWithImm: {opWriteImm, remoteWrite, 2 * segmentSize, immediate, verbs.WCWrite},
	verbs.OpRead:         {opRead, remoteRead, 2 * segmentSize, nothing, verbs.WCRead},
	verbs.OpCompareSwap:  {opCompare, remoteSwap, 3 * segmentSize, nothing, verbs.WCCompareSwap},
	verbs.OpFetchAdd:     {opFetchAdd, remoteAdd, 3 * segmentSize, nothing, verbs.WCFetchAdd},
	verbs.OpBindMW:       {opUMR, keyChange, segmentSize, nothing, verbs.WCBindMW},
	verbs.OpLocalInv:     {opUMR, keyChange, segmentSize, nothing, verbs.WCLocalInv},
}

var unreliable = operations{
	verbs.OpSend:         reliable[verbs.OpSend],
	verbs.OpSendWithImm:  reliable[verbs.OpSendWithImm],
	verbs.OpWrite:        reliable[verbs.OpWrite],
	verbs.OpWriteWithImm: reliable[verbs.OpWriteWithImm],
	verbs.OpBindMW:       reliable[verbs.OpBindMW],
	verbs.OpLocalInv:     reliable[verbs.OpLocalInv],
}

var datagrams = operations{
	verbs.OpSend:        {opSend, addressed, segmentSize + datagramSize, nothing, verbs.WCSend},
	verbs.OpSendWithImm: {opSendImm, addressed, segmentSize + datagramSize, immediate, verbs.WCSend},
}

// extended are those of XRC initiators, whose requests have a segment for the SRQ of the other end.
var extended = operations{
	verbs.OpSend:         {opSend, domain | plain, 2 * segmentSize, nothing, verbs.WCSend},
	verbs.OpSendWithImm:  {opSendImm, domain | plain, 2 * segmentSize, immediate, verbs.WCSend},
	verbs.OpSendWithInv:  {opSendInv, domain | plain, 2 * segmentSize, invalidatedKey, verbs.WCSend},
	verbs.OpWrite:        {opWrite, domain | remoteWrite, 3 * segmentSize, nothing, verbs.WCWrite},
	verbs.OpWriteWithImm: {opWriteImm, domain | remoteWrite, 3 * segmentSize, immediate, verbs.WCWrite},
	verbs.OpRead:         {opRead, domain | remoteRead, 3 * segmentSize, nothing, verbs.WCRead},
	verbs.OpCompareSwap:  {opCompare, domain | remoteSwap, 4 * segmentSize, nothing, verbs.WCCompareSwap},
	verbs.OpFetchAdd:     {opFetchAdd, domain | remoteAdd, 4 * segmentSize, nothing, verbs.WCFetchAdd},
	verbs.OpBindMW:       reliable[verbs.OpBindMW],
	verbs.OpLocalInv:     reliable[verbs.OpLocalInv],
}

func operationsOf(typ verbs.QPType) *operations {
	switch typ {
	case verbs.QPTypeRC:
		return &reliable
	case verbs.QPTypeUD:
		return &datagrams
	case verbs.QPTypeXRCInitiator:
		return &extended
	}
	return &unreliable
}

// segment is one of a WQE, as two big-endian numbers.
type segment [2]uint64

func (s *segment) put(first, second uint64) {
	s[0], s[1] = bits.ReverseBytes64(first), bits.ReverseBytes64(second)
}

// writeSmall writes WQEs, from block first on, as long as they are small: SENDs, WRITEs and
// READs with at most one SGE or one piece of inline data, in one block each. It returns how
// many, and the last.
//
// This is the path of most requests. It is one loop with its counters in registers: where
// the device has read the queue a store waits for the memory, and a processor has room for
// some dozens of stores.
func (q *qp) writeSmall(first uint32, wrs []verbs.SendWR) (n int, last wqe) {
	s := &q.send
	if s.fence {
		return 0, last
	}
	silent := s.silent
	for n < len(wrs) {
		wr, at := &wrs[n], first+uint32(n)
		op := &q.operations[wr.Opcode]
		b := &s.blocks[at&s.mask]
		segments := abi.ViewAt[[blockSize / segmentSize]segment](b[:], 0)
		size := uint32(segmentSize)
		if op.layout == remoteWrite || op.layout == remoteRead {
			segments[1].put(wr.RemoteAddr, uint64(wr.RKey)<<32)
			size = 2 * segmentSize
		} else if op.layout != plain {
			break
		}
		if wr.Flags&verbs.SendInline != 0 {
			if len(wr.Inline) != 1 || op.layout == remoteRead {
				break
			}
			piece := wr.Inline[0]
			if uint(len(piece))-1 >= uint(blockSize-4-size) {
				break
			}
			data := size
			size = (size + 4 + uint32(len(piece)) + segmentSize - 1) &^ (segmentSize - 1)
			segments[(size-segmentSize)/segmentSize%uint32(len(segments))] = segment{}
			*abi.ViewAt[uint32](b[:], int(data)) = bits.ReverseBytes32(inlineFlag | uint32(len(piece)))
			// without a call: most small messages are so long
			if n := len(piece); n >= 8 && n <= 16 {
				head, tail := binary.LittleEndian.Uint64(piece), binary.LittleEndian.Uint64(piece[n-8:])
				binary.LittleEndian.PutUint64(b[data+4:], head)
				binary.LittleEndian.PutUint64(b[data+4+uint32(n)-8:], tail)
			} else {
				copy(b[data+4:], piece)
			}
		} else if len(wr.SGL) == 1 {
			sge := &wr.SGL[0]
			if uint(sge.Length)-1 >= maxMessage {
				break
			}
			segments[size/segmentSize%uint32(len(segments))].put(uint64(sge.Length)<<32|uint64(sge.LKey), sge.Addr)
			size += segmentSize
		} else if len(wr.SGL) > 1 {
			break
		}
		flags := wr.Flags | s.always
		is := summary(0)
		if flags&verbs.SendSignaled != 0 {
			silent, is = 0, givesOne
		} else {
			silent++
			if 2*silent >= s.most && s.marks && !s.marking {
				silent--
				break
			}
		}
		last.first = q.first(at, op.opcode, size)
		segments[0].put(last.first, uint64(controlFlags[flags&knownFlags])<<32|uint64(op.argument.of(wr)))
		r := &s.requests[at&s.mask]
		r.id, r.summary = wr.ID, summaryOf(s.count+uint32(n), 1, op.completes, is)
		n++
	}
	s.count += uint32(n)
	s.silent = silent
	last.size = uint32(last.first&maxSegments) * segmentSize
	return n, last
}

// write writes the WQE of any request, from block at on. Where the largest would go over the end of
// the queue it is made elsewhere and copied.
func (q *qp) write(at uint32, wr *verbs.SendWR) (w wqe, err error) {
	s := &q.send
	b := s.from(at)
	over := len(b) < s.largest
	if over {
		b = s.scratch[:]
	}
	flags, is, silent := wr.Flags|s.always, summary(0), s.silent+1
	if flags&verbs.SendSignaled != 0 {
		is, silent = givesOne, 0
	} else if 2*silent >= s.most && s.marks && !s.marking {
		flags |= verbs.SendSignaled
		is, silent = isMarked, 0
	}
	if w, err = q.encode(b[:s.largest], at, wr, flags); err != nil {
		return w, err
	}
	if over {
		n := copy(s.from(at), b[:w.size])
		copy(s.mem, b[n:w.size])
	}
	if s.silent = silent; is == isMarked {
		s.marking, s.marked = true, at+w.blocks()
	}
	s.requests[at&s.mask] = request{wr.ID, summaryOf(s.count, w.blocks(), q.operations[wr.Opcode].completes, is)}
	for i := range w.blocks() - 1 {
		s.requests[(at+1+i)&s.mask] = request{} // none begins there
	}
	s.count++
	return w, nil
}

// encode writes the WQE of any request, as block at, into b, which has room for the largest.
func (q *qp) encode(b []byte, at uint32, wr *verbs.SendWR, flags verbs.SendFlags) (w wqe, err error) {
	op := &q.operations[wr.Opcode]
	head := abi.ViewAt[[blockSize / segmentSize]segment](b, 0)
	behind := head[1:]
	if op.layout&domain != 0 {
		behind[0].put(uint64(wr.RemoteSRQ)<<32, 0)
		behind = behind[1:]
	}
	switch op.layout &^ domain {
	case plain:
	case addressed:
		putDatagram(b[segmentSize:], wr.Datagram)
	case remoteWrite, remoteRead:
		behind[0].put(wr.RemoteAddr, uint64(wr.RKey)<<32)
	case remoteSwap:
		behind[0].put(wr.RemoteAddr, uint64(wr.RKey)<<32)
		behind[1].put(wr.Swap, wr.CompareAdd)
	case remoteAdd:
		behind[0].put(wr.RemoteAddr, uint64(wr.RKey)<<32)
		behind[1].put(wr.CompareAdd, 0)
	default:
		return q.encodeKeyChange(b, at, wr, flags)
	}
	n := 0
	switch data := b[op.header:]; {
	case wr.Flags&verbs.SendInline == 0:
		n = putSGEs(data, wr.SGL)
	case op.layout.inlines():
		n = putInline(data, wr.Inline)
	default:
		n = -1
	}
	if n < 0 {
		return w, q.refused(wr)
	}
	w.size = uint32(op.header) + uint32(n)
	w.first = q.first(at, op.opcode, w.size)
	head[0].put(w.first, uint64(q.controlFlags(flags))<<32|uint64(op.argument.of(wr)))
	return w, nil
}

func (a argument) of(wr *verbs.SendWR) uint32 {
	switch a {
	case immediate:
		return wr.Imm
	case invalidatedKey:
		return wr.InvalidateRKey
	}
	return 0
}

// maxSegments is how many segments a WQE may have by its format (the width of ds in struct
// mlx5_wqe_ctrl_seg).
const maxSegments = 1<<6 - 1

// first are the first eight bytes of a WQE of this size.
func (q *qp) first(at uint32, opcode byte, size uint32) uint64 {
	return uint64(at&0xffff<<8|uint32(opcode))<<32 | uint64(q.number<<8|size/segmentSize)
}

// encodeKeyChange is encode of what changes a key.
func (q *qp) encodeKeyChange(b []byte, at uint32, wr *verbs.SendWR, flags verbs.SendFlags) (w wqe, err error) {
	if q.operations[wr.Opcode].layout != keyChange {
		return w, fmt.Errorf("%w: %v on a QP of type %v of a ConnectX", verbs.ErrUnsupported, wr.Opcode, q.typ)
	}
	size, err := q.keySize(wr)
	if err != nil {
		return w, err
	}
	key := q.putKeyChange(b[segmentSize:size], wr)
	w.size = uint32(size)
	w.first = q.first(at, opUMR, w.size)
	abi.ViewAt[segment](b, 0).put(w.first, uint64(q.controlFlags(flags))<<32|uint64(key))
	q.send.fence = true
	return w, nil
}

// controlFlags are fm_ce_se of the control segment, behind a request that changes a key too.
func (q *qp) controlFlags(flags verbs.SendFlags) byte {
	control := controlFlags[flags&knownFlags]
	if q.send.fence && control&flagFence == 0 {
		control |= flagAfterUMR
	}
	q.send.fence = false
	return control
}

const knownFlags = verbs.SendFence | verbs.SendSignaled | verbs.SendSolicited | verbs.SendInline

// controlFlags are those of the control segment, by the flags of a request.
var controlFlags = func() (table [knownFlags + 1]byte) {
	for flags := range table {
		if flags&int(verbs.SendSignaled) != 0 {
			table[flags] |= flagSignaled
		}
		if flags&int(verbs.SendSolicited) != 0 {
			table[flags] |= flagSolicited
		}
		if flags&int(verbs.SendFence) != 0 {
			table[flags] |= flagFence
		}
	}
	return table
}()

// refused says what is wrong with a request for which there is no room.
func (q *qp) refused(wr *verbs.SendWR) error {
	length := wr.Len()
	switch {
	case wr.Flags&verbs.SendInline != 0 && !q.operations[wr.Opcode].layout.inlines():
		return fmt.Errorf("%w: inline data of %v", verbs.ErrInvalid, wr.Opcode)
	case length > maxMessage:
		return fmt.Errorf("%w: message of %d bytes, the device has %d", verbs.ErrInvalid, length, maxMessage)
	}
	return fmt.Errorf("%w: a request of %d bytes and %d SGEs is larger than those that the QP was made for", verbs.ErrInvalid, length, len(wr.SGL))
}

// WQEBytes is how long the WQE of a request is that was posted.
func (q *qp) WQEBytes(wr *verbs.SendWR) int {
	op := &q.operations[wr.Opcode]
	size := int(op.header)
	switch {
	case op.layout == keyChange:
		size, _ = q.keySize(wr) // 0 if it is none
	case wr.Flags&verbs.SendInline != 0:
		size += inlineSize(wr.Len())
	default:
		for i := range wr.SGL {
			if wr.SGL[i].Length > 0 {
				size += segmentSize
			}
		}
	}
	return size
}

// inlineSize is the size of the segment of so many bytes of inline data, if there are any.
func inlineSize(length int) int {
	if length == 0 {
		return 0
	}
	return (4 + length + segmentSize - 1) &^ (segmentSize - 1)
}

// putInline writes the one segment of inline data, if there is any, with zeros behind it, and
// returns its size, or -1 if b has no room for it.
func putInline(b []byte, pieces [][]byte) int {
	length := 0
	for _, piece := range pieces {
		length += len(piece)
	}
	size := inlineSize(length)
	switch {
	case size == 0:
		return 0
	case size > len(b):
		return -1
	}
	*abi.ViewAt[segment](b, size-segmentSize) = segment{}
	be.PutUint32(b, inlineFlag|uint32(length))
	b = b[4:]
	for _, piece := range pieces {
		b = b[copy(b, piece):]
	}
	return size
}

// putSGEs writes a segment for each element but the empty ones: to the device a length of 0 is
// the largest. It returns the size of all, or -1 if b has no room for them or the device none
// for so long a message.
func putSGEs(b []byte, sgl []verbs.SGE) (size int) {
	length := 0
	for i := range sgl {
		sge := &sgl[i]
		if sge.Length == 0 {
			continue
		}
		if length += int(sge.Length); size+segmentSize > len(b) || length > maxMessage {
			return -1
		}
		abi.ViewAt[segment](b, size).put(uint64(sge.Length)<<32|uint64(sge.LKey), sge.Addr)
		size += segmentSize
	}
	return size
}

// maxMessage is what a port takes (log_max_msg of the device).
const maxMessage = 1 << 30

// sendBlocks is how many basic blocks the largest request of a QP takes.
func sendBlocks(typ verbs.QPType, size verbs.QPCap) int {
	header := segmentSize
	switch typ {
	case verbs.QPTypeUD:
		header += datagramSize
	case verbs.QPTypeRC:
		header += 2 * segmentSize
	case verbs.QPTypeXRCInitiator:
		header += 3 * segmentSize
	default:
		header += segmentSize
	}
	largest := header + max(max(size.MaxSendSGE, 1)*segmentSize, inlineSize(size.MaxInline))
	if typ != verbs.QPTypeUD {
		largest = max(largest, binding)
	}
	return (largest + blockSize - 1) / blockSize
}
