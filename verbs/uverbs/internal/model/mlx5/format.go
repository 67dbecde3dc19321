package mlx5

import (
	"encoding/binary"
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
)

var (
	le = binary.LittleEndian
	be = binary.BigEndian
)

// An opcode is that of a WQE (MLX5_OPCODE_*).
type opcode byte

const (
	opNop       opcode = 0x00
	opSendInv   opcode = 0x01
	opWrite     opcode = 0x08
	opWriteImm  opcode = 0x09
	opSend      opcode = 0x0a
	opSendImm   opcode = 0x0b
	opRead      opcode = 0x10
	opCompare   opcode = 0x11
	opFetchAdd  opcode = 0x12
	opUMR       opcode = 0x25
	basicBlock         = 64  // the unit of send queues: MLX5_SEND_WQE_BB
	segmentSize        = 16  // the unit of a WQE's size
	maxWQE             = 512 // bytes: max_sq_desc_sz of the context
	invalidKey  uint32 = 0x100
	inlineFlag         = 1 << 31
	mostInline         = 0x3ff   // of a segment
	extendedAV         = 1 << 31 // MLX5_EXTENDED_UD_AV: the address is all of struct mlx5_wqe_av
	ctrlSignal         = 2 << 2  // MLX5_WQE_CTRL_CQ_UPDATE
	ctrlSolicit        = 1 << 1  // MLX5_WQE_CTRL_SOLICITED
	fenceReads         = 2       // MLX5_FENCE_MODE_FENCE
)

// ops are the operations that opcodes stand for.
var ops = map[opcode]fabric.Op{opNop: fabric.Nop, opSendInv: fabric.SendInv, opWrite: fabric.Write, opWriteImm: fabric.WriteImm,
	opSend: fabric.Send, opSendImm: fabric.SendImm, opRead: fabric.Read, opCompare: fabric.Compare, opFetchAdd: fabric.FetchAdd, opUMR: fabric.ChangeKey}

// control is a WQE's first segment (struct mlx5_wqe_ctrl_seg), and of the request what that says.
type control struct {
	fabric.Request
	qpn  uint32
	size int // of the WQE in bytes
}

func parseControl(b []byte) control {
	word := be.Uint32(b[4:])
	size := int(word&0x3f) * segmentSize
	return control{fabric.Request{Op: ops[opcode(b[3])], Index: be.Uint16(b[1:]), Slots: blocks(size),
		Signaled: b[11]&(3<<2) == ctrlSignal, Solicited: b[11]&ctrlSolicit != 0, Fenced: fence(b) >= fenceReads, Imm: [4]byte(b[12:16])}, word >> 8, size}
}

// fence is the mode of a WQE's (include/linux/mlx5/qp.h, MLX5_FENCE_MODE_*): 1 waits for changes of keys, 2 for READs and
// atomics, and those above for both.
func fence(b []byte) byte { return b[11] >> 5 }

// blocks is the number of basic blocks of a WQE.
func blocks(size int) uint16 { return uint16((size + basicBlock - 1) / basicBlock) }

// A workRequest is a WQE of a send queue. The address of a datagram is struct
// mlx5_wqe_datagram_seg, with struct mlx5_wqe_av.
type workRequest struct {
	control
	keyChange // UMR
}

// A keyChange is what a UMR does with a key (struct mlx5_wqe_umr_ctrl_seg,
// mlx5_wqe_mkey_context_seg and mlx5_wqe_umr_klm_seg).
type keyChange struct {
	key                 uint32 // that is changed
	checkFree, checkQPN bool
	setKey, setQPN      bool
	free                bool
	variant             byte // the lower byte of the key
	qpn                 uint32
	access              uint32
	addr, length        uint64
	target              fabric.Scatter
}

// parseKeyChange takes the segments of a UMR apart that libmlx5 writes to bind and free a memory
// window. The device has others, for what the model does not have.
func parseKeyChange(key uint32, b []byte) (u keyChange, err error) {
	const (
		control, context, target                 = 48, 64, 64
		inline, checkFree, offset, checkQPN      = 1 << 7, 1 << 5, 1 << 4, 1 << 3
		maskFree, maskKey, maskQPN, maskTarget   = 1 << 29, 1 << 13, 1 << 14, 1<<0 | 1<<6 | 1<<18 | 1<<19 | 1<<20 | 1<<21
		keyFree, atomic, remoteWrite, remoteRead = 1 << 6, 1 << 6, 1 << 5, 1 << 4
	)
	if len(b) < control+context {
		return u, fmt.Errorf("UMR of %d bytes", len(b))
	}
	flags, octowords, mask := b[0], be.Uint16(b[4:]), be.Uint64(b[8:])
	k := b[control:]
	u = keyChange{key: key, checkFree: flags&checkFree != 0, checkQPN: flags&checkQPN != 0, setKey: mask&maskKey != 0,
		setQPN: mask&maskQPN != 0, free: k[0]&keyFree != 0, variant: k[7], qpn: be.Uint32(k[4:]) >> 8}
	size, fields := control+context, uint64(maskFree|maskKey|maskQPN)
	if !u.free {
		size, fields = size+target, fields|maskTarget
	}
	switch {
	case flags&inline == 0 || flags&^(inline|checkFree|offset|checkQPN) != 0 || flags&offset != 0 && be.Uint16(b[6:]) != 0:
		return u, fmt.Errorf("UMR with flags %#x and offset %d", flags, be.Uint16(b[6:]))
	case mask&maskFree == 0 || mask&^fields != 0 || !u.free && mask&maskTarget != maskTarget:
		return u, fmt.Errorf("UMR with mask %#x of a key that is free: %t", mask, u.free)
	case len(b) != size || int(octowords)*segmentSize != size-control-context:
		return u, fmt.Errorf("UMR of %d bytes with %d segments behind the key's", len(b), octowords)
	case u.free:
		return u, nil
	}
	for bit, right := range map[byte]uint32{atomic: fabric.AccessRemoteAtomic, remoteWrite: fabric.AccessRemoteWrite, remoteRead: fabric.AccessRemoteRead} {
		if k[2]&bit != 0 {
			u.access |= right
		}
	}
	u.addr, u.length = be.Uint64(k[16:]), be.Uint64(k[24:])
	t := k[context:]
	u.target = fabric.Scatter{Addr: be.Uint64(t[8:]), Size: be.Uint32(t), Key: be.Uint32(t[4:])}
	if uint64(u.target.Size) != u.length {
		return u, fmt.Errorf("UMR of a key for %d bytes that leads to %d", u.length, u.target.Size)
	}
	return u, nil
}

// parseWQE takes a WQE apart. What does not fit is an error.
func parseWQE(b []byte, service fabric.Service) (w workRequest, err error) {
	w.control = parseControl(b)
	rest := b[segmentSize:]
	take := func(n int) []byte {
		if len(rest) < n {
			err = fmt.Errorf("WQE of %d bytes ends in the middle of a segment of %d", len(b), n)
			return make([]byte, n)
		}
		head := rest[:n]
		rest = rest[n:]
		return head
	}
	switch {
	case w.Op == fabric.Nop:
		return w, nil
	case w.Op == fabric.ChangeKey:
		w.keyChange, err = parseKeyChange(be.Uint32(w.Imm[:]), rest)
		return w, err
	case w.Op == "":
		return w, fmt.Errorf("opcode %#x is not known", b[3])
	}
	switch service {
	case fabric.XRCInitiator: // struct mlx5_wqe_xrc_seg
		w.SRQ = be.Uint32(take(16)) & 0xffffff
	case fabric.UD:
		a := take(48)
		if err == nil && be.Uint32(a[8:])&extendedAV == 0 {
			err = fmt.Errorf("WQE of UD without the extended address")
		}
		flow := be.Uint32(a[28:])
		w.To = fabric.Datagram{QKey: be.Uint32(a), QPN: be.Uint32(a[8:]) & 0xffffff, SL: a[12] & 15, MAC: [6]byte(a[20:26]),
			Address: fabric.Address{LID: be.Uint16(a[14:]), Global: flow>>30&1 != 0, GID: [16]byte(a[32:48]), Source: byte(flow >> 20)}}
	}
	if w.Op.Remote() {
		a := take(16)
		w.Addr, w.RKey = be.Uint64(a), be.Uint32(a[8:])
	}
	if w.Op.Atomic() {
		a := take(16)
		w.SwapAdd, w.Equal = be.Uint64(a), be.Uint64(a[8:])
	}
	for err == nil && len(rest) > 0 {
		n := be.Uint32(rest)
		if n&inlineFlag != 0 {
			if n &^= inlineFlag; n > mostInline {
				return w, fmt.Errorf("WQE with %d bytes of inline data", n)
			}
			data := take((4 + int(n) + 15) &^ 15)
			w.Inline = append(w.Inline, data[4:4+n]...)
			w.Length += uint64(n)
			continue
		}
		s := parseData(take(segmentSize))
		w.List = append(w.List, s)
		w.Length += uint64(s.Size)
	}
	if err == nil && w.Inline != nil && (w.List != nil || w.Op.Answered()) {
		err = fmt.Errorf("WQE with opcode %#x has inline data that it cannot have", b[3])
	}
	return w, err
}

// parseScatter returns the list of a WQE of a receive queue, which ends with the WQE or with
// the invalid key.
func parseScatter(b []byte) []fabric.Scatter {
	var list []fabric.Scatter
	for ; len(b) >= segmentSize; b = b[segmentSize:] {
		if be.Uint64(b) == uint64(invalidKey) { // and a length of 0
			break
		}
		list = append(list, parseData(b))
	}
	return list
}

// parseData is struct mlx5_wqe_data_seg, in which a length of 0 is the largest.
func parseData(b []byte) fabric.Scatter {
	s := fabric.Scatter{Addr: be.Uint64(b[8:]), Size: be.Uint32(b), Key: be.Uint32(b[4:])}
	if s.Size == 0 {
		s.Size = 1 << 31
	}
	return s
}

// The opcodes of CQEs (MLX5_CQE_*).
const (
	cqeRequest       = 0
	cqeWriteImm      = 1
	cqeSend          = 2
	cqeSendImm       = 3
	cqeSendInv       = 4
	cqeResize        = 5
	cqeRequestError  = 13
	cqeResponseError = 14
)

// cqeOps are those of what a receive request gets.
var cqeOps = map[fabric.Op]byte{fabric.Send: cqeSend, fabric.SendImm: cqeSendImm, fabric.SendInv: cqeSendInv, fabric.WriteImm: cqeWriteImm}

// A syndrome says why a request has failed (MLX5_CQE_SYNDROME_*).
type syndrome byte

const (
	localLength        syndrome = 0x01
	localOperation     syndrome = 0x02
	localProtection    syndrome = 0x04
	flushed            syndrome = 0x05
	windowBind         syndrome = 0x06
	localAccess        syndrome = 0x11
	remoteInvalid      syndrome = 0x12
	remoteAccess       syndrome = 0x13
	remoteOperation    syndrome = 0x14
	retriesExceeded    syndrome = 0x15
	rnrRetriesExceeded syndrome = 0x16
	remoteAborted      syndrome = 0x22
)

var syndromes = map[fabric.Status]syndrome{fabric.LocalLength: localLength, fabric.LocalOperation: localOperation,
	fabric.LocalProtection: localProtection, fabric.Flushed: flushed, fabric.WindowBind: windowBind, fabric.LocalAccess: localAccess,
	fabric.RemoteInvalid: remoteInvalid, fabric.RemoteAccess: remoteAccess, fabric.RemoteOperation: remoteOperation,
	fabric.RetriesExceeded: retriesExceeded, fabric.RNRRetriesExceeded: rnrRetriesExceeded,
	fabric.PageFault: remoteAborted}

// vendor returns the vendor's syndrome that ConnectX devices are seen to report with a
// syndrome, or 0 where no report is at hand.
func (s syndrome) vendor(response bool) byte {
	switch {
	case s == flushed && response:
		return 0xf9
	case s == flushed:
		return 0xf5
	case s == retriesExceeded:
		return 0x81
	case s == remoteAccess:
		return 0x88
	case s == remoteAborted:
		return 0x93 // MLX5_CQE_VENDOR_SYNDROME_ODP_PFAULT of rdma-core
	}
	return 0
}

const cqeSize = 64

// A completion is what a CQE says (struct mlx5_cqe64).
type completion struct {
	op        byte // cqe*
	qpn, uidx uint32
	index     uint16 // of the WQE
	request   opcode // of the WQE, if it is the requester's
	bytes     uint32
	imm       [4]byte
	solicited bool
	timestamp uint64 // none with an error
	// UD:
	slid   uint16
	source uint32 // QP number, service level << 24, with GRH 1 << 28
	// errors:
	cause syndrome
	// written, if not nil, is called when the CQE is in the program's memory.
	written func()
}

// encode returns the CQE with the owner bit as given.
func (c completion) encode(owner byte) []byte {
	e := make([]byte, cqeSize)
	be.PutUint16(e[22:], c.slid)
	be.PutUint32(e[24:], c.source)
	be.PutUint32(e[32:], c.uidx)
	copy(e[36:], c.imm[:])
	be.PutUint32(e[44:], c.bytes)
	be.PutUint64(e[48:], c.timestamp)
	if c.op == cqeRequestError || c.op == cqeResponseError {
		e[54], e[55] = c.cause.vendor(c.op == cqeResponseError), byte(c.cause)
	}
	be.PutUint32(e[56:], uint32(c.request)<<24|c.qpn)
	be.PutUint16(e[60:], c.index)
	e[63] = c.op<<4 | owner
	if c.solicited {
		e[63] |= 2
	}
	return e
}
