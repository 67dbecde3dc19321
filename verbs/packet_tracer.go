package verbs

import (
	"bytes"
	"encoding/binary"
	"io"
	"maps"
	"sync"
	"time"
)

// NewPacketTracer returns a tracer that writes to w, as a pcapng file, the packets of RoCEv2
// that carry what is posted, for Wireshark or tshark to decode. It makes them from the
// requests: they are there for the software HCA too, which sends none, and acknowledgements,
// answers and repetitions are not. They end where the payload begins. LOCAL_INV and BIND_MW
// make none, and on iWARP the packets are other ones.
//
// Packet numbers are those of the device if the tracer was set before the QP got its first one, or
// while nothing that was posted was under way.
//
// It costs a Write for each request, one at a time, and more for a request of more than some
// hundred packets. What w does not take is lost. A Write must not post to the traced
// device: it would wait for itself.
func NewPacketTracer(w io.Writer) *Tracer {
	t := &packetTracer{w: w, flows: make(map[*QP]*flow)}
	t.header()
	t.flush()
	return &Tracer{packets: t}
}

type packetTracer struct {
	mu    sync.Mutex
	w     io.Writer     // guarded by mu
	out   bytes.Buffer  // guarded by mu: what Write gets next
	flows map[*QP]*flow // guarded by mu: of open QPs that have got a packet number, or have posted
}

// flow is what the packets of a QP have in common.
type flow struct {
	stale   bool // all but psn may have changed
	service byte // upper three bits of the opcodes
	port    uint8
	av      AddressVector
	dest    uint32
	psn     uint32
	mtu     uint32
	sources map[source]GID // as far as they were needed
}

// source says where packets come from.
type source struct{ port, index uint8 }

// The upper bits of opcodes by service, and the opcodes below them (InfiniBand Architecture
// Specification 9.2.1).
const (
	wireUC  = 0x20
	wireUD  = 0x60
	wireXRC = 0xa0

	wireSend        = 0 // first, and in this order middle, last, last with immediate, only, only with immediate
	wireWrite       = 6 // the same
	wireRead        = 12
	wireCompareSwap = 19
	wireFetchAdd    = 20
	wireLastInv     = 22
	wireOnlyInv     = 23
	wireFlush       = 28
	wireAtomicWrite = 29

	rocePort = 4791
	icrcSize = 4
)

// moved is called when attributes of a QP have changed. A packet number is taken from attr: a
// device that is asked for it may answer the next one.
func (t *packetTracer) moved(qp *QP, attr *QPAttr, mask QPAttrMask) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if mask&QPAttrSQPSN != 0 {
		t.flows[qp] = &flow{stale: true, psn: attr.SQPSN}
	} else if f := t.flows[qp]; f != nil {
		f.stale = true
	}
}

// posting is called before requests are given to the device, for QPs that had their packet number
// before there was a tracer.
func (t *packetTracer) posting(qp *QP) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.flows[qp] == nil {
		t.flowOf(qp)
	}
}

// closed is called when a QP has ended.
func (t *packetTracer) closed(qp *QP) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.flows, qp)
}

// forget is called when the QPs of a device have ended, or are not traced any more.
func (t *packetTracer) forget(c *Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.flows, func(qp *QP, _ *flow) bool { return qp.ctx == c })
}

// flowOf returns nil if the QP has gone meanwhile.
func (t *packetTracer) flowOf(qp *QP) *flow {
	old := t.flows[qp]
	if old != nil && !old.stale {
		return old
	}
	attr, err := qp.drv.Query()
	if err != nil {
		return nil
	}
	f := &flow{
		port: attr.Port, av: attr.AV, dest: attr.DestQPN, psn: attr.SQPSN, mtu: uint32(attr.PathMTU.Bytes()),
		sources: make(map[source]GID),
	}
	if old != nil {
		f.psn = old.psn
	}
	switch qp.attr.Type {
	case QPTypeUC:
		f.service = wireUC
	case QPTypeUD:
		f.service = wireUD
	case QPTypeXRCInitiator:
		f.service = wireXRC
	}
	// whose path MTU is not an attribute: whatever a device reports means nothing
	if f.mtu == 0 || f.service == wireUD {
		f.mtu = uint32(MTU4096.Bytes())
	}
	t.flows[qp] = f
	return f
}

// from returns the address that packets come from which are sent by av, without it zero.
func (f *flow) from(qp *QP, port uint8, av *AddressVector) GID {
	s := source{max(port, 1), av.SGIDIndex}
	if gid, ok := f.sources[s]; ok {
		return gid
	}
	gids, _ := qp.ctx.drv.QueryGIDs(s.port)
	for _, g := range gids {
		if g.Index == int(s.index) {
			f.sources[s] = g.GID
		}
	}
	return f.sources[s]
}

// post writes the packets of a request.
func (t *packetTracer) post(qp *QP, wr *SendWR) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.flowOf(qp)
	if f == nil {
		return
	}
	length := uint32(wr.Len()) // at most 2 GiB
	packets := max(1, (length+f.mtu-1)/f.mtu)
	port := f.port
	p := packet{flow: f, qpn: qp.num, dest: f.dest, to: f.av, srq: wr.RemoteSRQ, solicited: wr.Flags&SendSolicited != 0}
	if d := wr.Datagram; d != nil {
		p.dest, p.to, p.qkey = d.QPN, d.AH.av, d.QKey
		port = d.AH.av.Port
	}
	if f.service == wireUD && packets > 1 {
		return // it fails
	}
	p.from = f.from(qp, port, &p.to)
	switch wr.Opcode {
	case OpLocalInv, OpBindMW:
		return
	case OpRead:
		p.opcode, p.extra = wireRead, reth(nil, wr.RemoteAddr, wr.RKey, length)
		t.packet(&p, packets)
	case OpCompareSwap, OpFetchAdd:
		swap, compare := wr.CompareAdd, uint64(0)
		p.opcode = wireFetchAdd
		if wr.Opcode == OpCompareSwap {
			p.opcode, swap, compare = wireCompareSwap, wr.Swap, wr.CompareAdd
		}
		b := binary.BigEndian.AppendUint64(nil, wr.RemoteAddr)
		b = binary.BigEndian.AppendUint32(b, wr.RKey)
		b = binary.BigEndian.AppendUint64(b, swap)
		p.extra = binary.BigEndian.AppendUint64(b, compare)
		t.packet(&p, 1)
	case OpFlush:
		fl := wr.Flush
		p.opcode = wireFlush
		p.extra = reth([]byte{0, 0, 0, byte(fl.Type)&0xf | byte(fl.Level)<<4}, wr.RemoteAddr, wr.RKey, uint32(fl.Length))
		t.packet(&p, 1)
	case OpAtomicWrite:
		p.opcode, p.payload, p.extra = wireAtomicWrite, length, reth(nil, wr.RemoteAddr, wr.RKey, length)
		t.packet(&p, 1)
	default:
		t.message(&p, wr, length, packets)
	}
	t.flush()
}

// message writes the packets of a SEND or a WRITE.
func (t *packetTracer) message(p *packet, wr *SendWR, length, packets uint32) {
	write := wr.Opcode == OpWrite || wr.Opcode == OpWriteWithImm
	imm := wr.Opcode == OpSendWithImm || wr.Opcode == OpWriteWithImm
	solicited := p.solicited
	for i := range packets {
		first, last := i == 0, i == packets-1
		p.payload = min(length, p.flow.mtu)
		length -= p.payload
		p.extra, p.solicited = p.extra[:0], solicited && last
		if write && first {
			p.extra = reth(p.extra, wr.RemoteAddr, wr.RKey, uint32(wr.Len()))
		}
		switch {
		case first && last:
			p.opcode = 4
		case last:
			p.opcode = 2
		case first:
			p.opcode = 0
		default:
			p.opcode = 1
		}
		if last && imm {
			p.opcode++
			p.extra = binary.BigEndian.AppendUint32(p.extra, wr.Imm)
		}
		if write {
			p.opcode += wireWrite
		}
		if last && wr.Opcode == OpSendWithInv {
			p.opcode = wireLastInv
			if first {
				p.opcode = wireOnlyInv
			}
			p.extra = binary.BigEndian.AppendUint32(p.extra, wr.InvalidateRKey)
		}
		t.packet(p, 1)
		if t.out.Len() >= mostBuffered {
			t.flush()
		}
	}
}

// mostBuffered is about how many bytes of packets Write gets at once.
const mostBuffered = 64 << 10

func reth(b []byte, addr uint64, rkey, length uint32) []byte {
	b = binary.BigEndian.AppendUint64(b, addr)
	b = binary.BigEndian.AppendUint32(b, rkey)
	return binary.BigEndian.AppendUint32(b, length)
}

// packet is one of a request.
type packet struct {
	flow      *flow
	qpn, dest uint32
	from      GID
	to        AddressVector
	qkey      uint32 // UD
	srq       uint32 // XRC
	opcode    byte
	solicited bool
	extra     []byte // headers after the BTH, and the DETH of UD or the XRCETH
	payload   uint32 // bytes that are not captured
}

// packet writes a packet, after which the packet number goes on by so many.
func (t *packetTracer) packet(p *packet, numbers uint32) {
	be := binary.BigEndian
	pad := -p.payload & 3
	b := []byte{p.flow.service | p.opcode, byte(pad) << 4, 0xff, 0xff} // of the default partition
	if p.solicited {
		b[1] |= 0x80
	}
	b = be.AppendUint32(b, p.dest&0xffffff)
	b = be.AppendUint32(b, p.flow.psn)
	p.flow.psn = (p.flow.psn + numbers) & 0xffffff
	if p.flow.service == wireUD {
		b = be.AppendUint32(b, p.qkey)
		b = be.AppendUint32(b, p.qpn)
	}
	if p.flow.service == wireXRC {
		b = be.AppendUint32(b, p.srq)
	}
	b = append(b, p.extra...)
	rest := int(p.payload+pad) + icrcSize
	udp := be.AppendUint16(nil, 0xc000|uint16(p.qpn^p.dest)&0x3fff) // any of the dynamic ports
	udp = be.AppendUint16(udp, rocePort)
	udp = be.AppendUint16(udp, uint16(8+len(b)+rest))
	udp = be.AppendUint16(udp, 0) // no sum
	b = append(ipHeader(p.from, &p.to, len(udp)+len(b)+rest), append(udp, b...)...)
	t.enhanced(b, rest)
}

// ipHeader makes that of IPv4 if both addresses are of that, or else that of IPv6.
func ipHeader(from GID, to *AddressVector, length int) []byte {
	be := binary.BigEndian
	hops := to.HopLimit
	if hops == 0 {
		hops = 64
	}
	const udp = 17
	mapped := GID{10: 0xff, 11: 0xff}
	if !bytes.Equal(from[:12], mapped[:12]) || !bytes.Equal(to.DGID[:12], mapped[:12]) {
		b := be.AppendUint32(nil, 6<<28|uint32(to.TrafficClass)<<20|to.FlowLabel&0xfffff)
		b = be.AppendUint16(b, uint16(length))
		b = append(b, udp, hops)
		return append(append(b, from[:]...), to.DGID[:]...)
	}
	b := []byte{0x45, to.TrafficClass}
	b = be.AppendUint16(b, uint16(20+length))
	b = append(b, 0, 0, 0x40, 0, hops, udp, 0, 0)
	b = append(append(b, from[12:]...), to.DGID[12:]...)
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(be.Uint16(b[i:]))
	}
	sum = sum&0xffff + sum>>16
	be.PutUint16(b[10:], ^uint16(sum+sum>>16))
	return b
}

// The blocks of a pcapng file (draft-ietf-opsawg-pcapng).
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 6
	linkRaw        = 101 // packets begin with the IP header
)

// header writes what a file begins with: times are in nanoseconds.
func (t *packetTracer) header() {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0x1a2b3c4d)
	b = le.AppendUint32(b, 1) // version 1.0
	t.block(blockSection, le.AppendUint64(b, ^uint64(0)))
	b = le.AppendUint32(nil, linkRaw)
	b = le.AppendUint32(b, 0)
	t.block(blockInterface, append(b, 9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0)) // if_tsresol, 10^-9
}

// enhanced writes a packet of which rest bytes are left out.
func (t *packetTracer) enhanced(captured []byte, rest int) {
	le := binary.LittleEndian
	now := uint64(time.Now().UnixNano())
	b := le.AppendUint32(nil, 0)
	b = le.AppendUint32(b, uint32(now>>32))
	b = le.AppendUint32(b, uint32(now))
	b = le.AppendUint32(b, uint32(len(captured)))
	b = le.AppendUint32(b, uint32(len(captured)+rest))
	b = append(b, captured...)
	t.block(blockPacket, append(b, make([]byte, -len(captured)&3)...))
}

func (t *packetTracer) block(kind uint32, body []byte) {
	le := binary.LittleEndian
	length := uint32(12 + len(body))
	b := le.AppendUint32(t.out.AvailableBuffer(), kind)
	b = le.AppendUint32(b, length)
	b = append(b, body...)
	t.out.Write(le.AppendUint32(b, length))
}

func (t *packetTracer) flush() {
	_, _ = t.w.Write(t.out.Bytes()) // as NewPacketTracer says
	t.out.Reset()
}
