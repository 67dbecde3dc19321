package verbs

import "fmt"

// SendBatch builds send work requests one after the other and posts them together,
// in the manner of ibv_wr_start, the ibv_wr_* and ibv_wr_set_* functions, and
// ibv_wr_complete (infiniband/verbs.h). A method named for an operation begins a
// request, with the ID and the Flags that the batch has then; the Set methods say more
// of it; Complete hands all of them to the device at once, which rings its doorbell
// once.
//
//	b := qp.NewSendBatch(2)
//	b.Start()
//	b.ID, b.Flags = 1, 0
//	b.Write(rkey, addr)
//	b.SetSGE(mr.SGE(0, 4096))
//	b.ID, b.Flags = 2, verbs.SendSignaled
//	b.SendImm(7)
//	n, err := b.Complete()
//
// Once it has been used, a batch of that size allocates nothing. A mistake shows in
// the error of Complete. A batch is for one goroutine at a time; any number of
// batches may be built for a QP.
type SendBatch struct {
	ID    uint64    // SendWR.ID of the requests that are begun next
	Flags SendFlags // their flags; SetInline adds SendInline

	qp     *QP
	wrs    []SendWR
	extras []batchExtra // of each of wrs
	sges   []SGE
	pieces [][]byte
	err    error // the first mistake
}

// batchExtra is what a request points to.
type batchExtra struct {
	datagram Datagram
	bind     Bind
	flush    Flush
	word     [8]byte
}

// NewSendBatch makes a batch with room for n requests. It grows if there are more.
func (qp *QP) NewSendBatch(n int) *SendBatch {
	n = max(n, 1)
	return &SendBatch{qp: qp, wrs: make([]SendWR, 0, n), extras: make([]batchExtra, n), sges: make([]SGE, 0, n), pieces: make([][]byte, 0, n)}
}

// Start begins anew: what was built and not completed is forgotten.
func (b *SendBatch) Start() {
	clear(b.pieces) // the caller's memory
	b.wrs, b.sges, b.pieces, b.err = b.wrs[:0], b.sges[:0], b.pieces[:0], nil
}

// Len returns how many requests have been begun.
func (b *SendBatch) Len() int { return len(b.wrs) }

// Complete posts the requests, as [QP.PostSend], and begins anew. If a method was
// called that makes no sense, nothing is posted and the error says which.
func (b *SendBatch) Complete() (n int, err error) {
	if b.err == nil {
		n, err = b.qp.PostSend(b.wrs)
	} else {
		err = b.err
	}
	b.Start()
	return n, err
}

// Send begins a SEND.
func (b *SendBatch) Send() { b.begin(OpSend) }

// SendImm begins a SEND_WITH_IMM.
func (b *SendBatch) SendImm(imm uint32) { b.begin(OpSendWithImm).Imm = imm }

// SendInv begins a SEND_WITH_INV, which takes rkey away at the peer.
func (b *SendBatch) SendInv(rkey uint32) { b.begin(OpSendWithInv).InvalidateRKey = rkey }

// Write begins a WRITE.
func (b *SendBatch) Write(rkey uint32, addr uint64) { b.remote(OpWrite, rkey, addr) }

// WriteImm begins a WRITE_WITH_IMM.
func (b *SendBatch) WriteImm(rkey uint32, addr uint64, imm uint32) {
	b.remote(OpWriteWithImm, rkey, addr).Imm = imm
}

// Read begins a READ.
func (b *SendBatch) Read(rkey uint32, addr uint64) { b.remote(OpRead, rkey, addr) }

// CompareSwap begins a CMP_AND_SWP.
func (b *SendBatch) CompareSwap(rkey uint32, addr, compare, swap uint64) {
	wr := b.remote(OpCompareSwap, rkey, addr)
	wr.CompareAdd, wr.Swap = compare, swap
}

// FetchAdd begins a FETCH_AND_ADD.
func (b *SendBatch) FetchAdd(rkey uint32, addr, add uint64) {
	b.remote(OpFetchAdd, rkey, addr).CompareAdd = add
}

// AtomicWrite begins an ATOMIC_WRITE of the 8 bytes of value, in the order in which they
// are to lie there. It needs no Set method.
func (b *SendBatch) AtomicWrite(rkey uint32, addr uint64, value [8]byte) {
	b.remote(OpAtomicWrite, rkey, addr)
	extra := b.extra()
	extra.word = value
	b.SetInline(extra.word[:])
}

// Flush begins a FLUSH.
func (b *SendBatch) Flush(rkey uint32, addr uint64, flush Flush) {
	extra := b.remoteExtra(OpFlush, rkey, addr)
	extra.flush = flush
	b.last().Flush = &extra.flush
}

// BindMW begins a BIND_MW.
func (b *SendBatch) BindMW(bind Bind) {
	extra := b.remoteExtra(OpBindMW, 0, 0)
	extra.bind = bind
	b.last().Bind = &extra.bind
}

// LocalInv begins a LOCAL_INV, which takes rkey away here.
func (b *SendBatch) LocalInv(rkey uint32) { b.begin(OpLocalInv).InvalidateRKey = rkey }

// SetSGE says what memory the request is about.
func (b *SendBatch) SetSGE(sge SGE) {
	if wr := b.ofRequest("SetSGE"); wr != nil {
		b.sges = append(b.sges, sge)
		b.setSGL(wr, 1)
	}
}

// SetSGEs says what pieces of memory it is about. It keeps nothing of list.
func (b *SendBatch) SetSGEs(list []SGE) {
	if wr := b.ofRequest("SetSGEs"); wr != nil {
		b.sges = append(b.sges, list...)
		b.setSGL(wr, len(list))
	}
}

func (b *SendBatch) setSGL(wr *SendWR, n int) {
	wr.SGL, wr.Inline, wr.Flags = b.sges[len(b.sges)-n:len(b.sges):len(b.sges)], nil, wr.Flags&^SendInline
}

// SetInline says what bytes it sends inline. They must stay as they are until Complete.
func (b *SendBatch) SetInline(data []byte) {
	if wr := b.ofRequest("SetInline"); wr != nil {
		b.pieces = append(b.pieces, data)
		n := len(b.pieces)
		wr.Inline, wr.SGL, wr.Flags = b.pieces[n-1:n:n], nil, wr.Flags|SendInline
	}
}

// SetInlineList says what pieces it sends inline, one after the other. It keeps nothing of list,
// but the bytes must stay as they are until Complete.
func (b *SendBatch) SetInlineList(list [][]byte) {
	if wr := b.ofRequest("SetInlineList"); wr != nil {
		b.pieces = append(b.pieces, list...)
		n := len(b.pieces)
		wr.Inline, wr.SGL, wr.Flags = b.pieces[n-len(list):n:n], nil, wr.Flags|SendInline
	}
}

// SetAddress says where a message of a UD QP goes.
func (b *SendBatch) SetAddress(ah *AH, qpn, qkey uint32) {
	if wr := b.ofRequest("SetAddress"); wr != nil {
		extra := b.extra()
		extra.datagram = Datagram{AH: ah, QPN: qpn, QKey: qkey}
		wr.Datagram = &extra.datagram
	}
}

// SetRemoteSRQ says which SRQ of the peer a request of an XRC initiator is for.
func (b *SendBatch) SetRemoteSRQ(num uint32) {
	if wr := b.ofRequest("SetRemoteSRQ"); wr != nil {
		wr.RemoteSRQ = num
	}
}

func (b *SendBatch) begin(op Opcode) *SendWR {
	if len(b.wrs) == len(b.extras) {
		// What the requests point to lies where it did before.
		more := make([]batchExtra, 2*len(b.extras))
		copy(more, b.extras)
		b.extras = more
	}
	b.wrs = append(b.wrs, SendWR{ID: b.ID, Opcode: op, Flags: b.Flags &^ SendInline})
	return b.last()
}

func (b *SendBatch) remote(op Opcode, rkey uint32, addr uint64) *SendWR {
	wr := b.begin(op)
	wr.RKey, wr.RemoteAddr = rkey, addr
	return wr
}

func (b *SendBatch) remoteExtra(op Opcode, rkey uint32, addr uint64) *batchExtra {
	b.remote(op, rkey, addr)
	return b.extra()
}

func (b *SendBatch) last() *SendWR { return &b.wrs[len(b.wrs)-1] }

func (b *SendBatch) extra() *batchExtra { return &b.extras[len(b.wrs)-1] }

// ofRequest returns the request that was begun last, nil if there is none.
func (b *SendBatch) ofRequest(method string) *SendWR {
	if len(b.wrs) == 0 {
		if b.err == nil {
			b.err = fmt.Errorf("%w: %s before any operation", ErrInvalid, method)
		}
		return nil
	}
	return b.last()
}
