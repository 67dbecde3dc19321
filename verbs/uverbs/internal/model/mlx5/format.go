package mlx5

import (
	"encoding/binary"
	"fmt"
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
	ctrlSignal         = 2 << 2 // MLX5_WQE_CTRL_CQ_UPDATE
	ctrlSolicit        = 1 << 1 // MLX5_WQE_CTRL_SOLICITED
	ctrlFence          = 7 << 5 // MLX5_WQE_CTRL_FENCE and MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE
)

// remote is true for opcodes with a remote address segment.
func (o opcode) remote() bool {
	return o == opWrite || o == opWriteImm || o.answered()
}

// atomic is true for opcodes with an atomic segment.
func (o opcode) atomic() bool { return o == opCompare || o == opFetchAdd }

// answered is true for opcodes whose data come from the other side.
func (o opcode) answered() bool { return o == opRead || o.atomic() }

// receives is true for opcodes that consume a receive request.
func (o opcode) receives() bool {
	return o == opSend || o == opSendImm || o == opSendInv || o == opWriteImm
}

// control is a WQE's first segment (struct mlx5_wqe_ctrl_seg).
type control struct {
	op        opcode
	index     uint16 // of the WQE, in basic blocks
	qpn       uint32
	size      int // of the WQE in bytes
	signaled  bool
	solicited bool
	fenced    bool
	imm       [4]byte
}

func parseControl(b []byte) control {
	word := be.Uint32(b[4:])
	return control{
		op: opcode(b[3]), index: be.Uint16(b[1:]), qpn: word >> 8, size: int(word&0x3f) * segmentSize,
		signaled: b[11]&(3<<2) == ctrlSignal, solicited: b[11]&ctrlSolicit != 0, fenced: b[11]&ctrlFence != 0, imm: [4]byte(b[12:16]),
	}
}

// A scatter is an entry of a gather or scatter list (struct mlx5_wqe_data_seg).
type scatter struct {
	addr uint64
	size uint32
	key  uint32
}

// Access flags (IB_UVERBS_ACCESS_*).
const (
	accessLocalWrite   = 1
	accessRemoteWrite  = 2
	accessRemoteRead   = 4
	accessRemoteAtomic = 8
)

// A datagram is the address segment of UD (struct mlx5_wqe_datagram_seg, with
// struct mlx5_wqe_av).
type datagram struct {
	address
	qkey uint32
	qpn  uint32
	sl   byte
	mac  [6]byte
}

// An address is where packets go.
type address struct {
	lid    uint16 // InfiniBand
	global bool
	gid    [16]byte
	source byte // index of the GID that they come from
}

// A workRequest is a WQE of a send queue.
type workRequest struct {
	control
	to             datagram // UD
	addr           uint64   // remote
	rkey           uint32
	swapAdd, equal uint64 // atomics
	list           []scatter
	inline         []byte // data of the WQE itself; a WQE has these or a list
	length         uint64 // of all data
	keyChange             // UMR
}

// A keyChange is what a UMR does with a key (struct mlx5_wqe_umr_ctrl_seg, mlx5_wqe_mkey_context_seg and
// mlx5_wqe_umr_klm_seg).
type keyChange struct {
	key                 uint32 // that is changed
	checkFree, checkQPN bool
	setKey, setQPN      bool
	free                bool
	variant             byte // the lower byte of the key
	qpn                 uint32
	access              uint32
	addr, length        uint64
	target              scatter
}

// anyQP is the number of no QP: each of the key's PD may use it.
const anyQP = 0xffffff

// parseKeyChange takes the segments of a UMR apart that libmlx5 writes to bind and free a memory window. The device
// has others, for what the model does not have.
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
	for bit, right := range map[byte]uint32{atomic: accessRemoteAtomic, remoteWrite: accessRemoteWrite, remoteRead: accessRemoteRead} {
		if k[2]&bit != 0 {
			u.access |= right
		}
	}
	u.addr, u.length = be.Uint64(k[16:]), be.Uint64(k[24:])
	t := k[context:]
	u.target = scatter{addr: be.Uint64(t[8:]), size: be.Uint32(t), key: be.Uint32(t[4:])}
	if uint64(u.target.size) != u.length {
		return u, fmt.Errorf("UMR of a key for %d bytes that leads to %d", u.length, u.target.size)
	}
	return u, nil
}

// parseWQE takes a WQE apart. What does not fit is an error.
func parseWQE(b []byte, ud bool) (w workRequest, err error) {
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
	case w.op == opNop:
		return w, nil
	case w.op == opUMR:
		w.keyChange, err = parseKeyChange(be.Uint32(w.imm[:]), rest)
		return w, err
	case !w.op.receives() && !w.op.remote():
		return w, fmt.Errorf("opcode %#x is not known", w.op)
	}
	if ud {
		a := take(48)
		flow := be.Uint32(a[28:])
		w.to = datagram{qkey: be.Uint32(a), qpn: be.Uint32(a[8:]) & 0xffffff, sl: a[12] & 15, mac: [6]byte(a[20:26]),
			address: address{lid: be.Uint16(a[14:]), global: flow>>30&1 != 0, gid: [16]byte(a[32:48]), source: byte(flow >> 20)}}
	}
	if w.op.remote() {
		a := take(16)
		w.addr, w.rkey = be.Uint64(a), be.Uint32(a[8:])
	}
	if w.op.atomic() {
		a := take(16)
		w.swapAdd, w.equal = be.Uint64(a), be.Uint64(a[8:])
	}
	for err == nil && len(rest) > 0 {
		n := be.Uint32(rest)
		if n&inlineFlag != 0 {
			n &= 0x3ff
			data := take((4 + int(n) + 15) &^ 15)
			w.inline = append(w.inline, data[4:4+n]...)
			w.length += uint64(n)
			continue
		}
		a := take(segmentSize)
		if n == 0 {
			n = 1 << 31 // a length of 0 means the largest message
		}
		w.list = append(w.list, scatter{addr: be.Uint64(a[8:]), size: n, key: be.Uint32(a[4:])})
		w.length += uint64(n)
	}
	if err == nil && w.inline != nil && (w.list != nil || w.op.answered()) {
		err = fmt.Errorf("WQE with opcode %#x has inline data that it cannot have", w.op)
	}
	return w, err
}

// parseScatter returns the list of a WQE of a receive queue, which ends with the WQE or with
// the invalid key.
func parseScatter(b []byte) []scatter {
	var list []scatter
	for ; len(b) >= segmentSize; b = b[segmentSize:] {
		s := scatter{addr: be.Uint64(b[8:]), size: be.Uint32(b), key: be.Uint32(b[4:])}
		if s.size == 0 && s.key == invalidKey {
			break
		}
		list = append(list, s)
	}
	return list
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
)

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
