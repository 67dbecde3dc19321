//go:build amd64 || arm64

package fabric

// datagram sends a message of UD.
func (q *QP) datagram(w *Request, local []piece) {
	from := q.Port
	if from.Link == Ethernet {
		w.To.Global = true // there it always is, and the bit is not set
	}
	if w.To.QPN == multicastQPN {
		q.spread(w, local)
		return
	}
	to := from.find(w.To.Address)
	if to == nil || to.down || from.down || from.Link == Ethernet && w.To.MAC != to.MAC {
		return
	}
	q.deliver(to.QPs[w.To.QPN], w, local)
}

// deliver gives a datagram to a QP, if there is one that takes it.
func (q *QP) deliver(p *QP, w *Request, local []piece) {
	const (
		grh     = 40
		usesOwn = 1 << 31 // of a Q_Key: that of the QP is taken
	)
	qkey := w.To.QKey
	if qkey&usesOwn != 0 {
		qkey = q.Attr.QKey
	}
	if p == nil || p.Service != UD || p.State < StateRTR || p.State == StateError || p.Attr.QKey != qkey {
		return
	}
	receives := p.Queues.Receives()
	list, index, ok := receives.Next()
	if !ok {
		return
	}
	receives.Consume()
	pieces, cause := p.buffers(receives.PD(), list, grh+w.Length)
	if cause != "" {
		p.Queues.Received(index, Receipt{Status: cause})
		p.toError()
		return
	}
	if w.To.Global {
		_ = store(pieces, q.Port.header(w))
	}
	for left := uint64(grh); left > 0; { // there is room for it and the message
		n := min(left, pieces[0].size)
		pieces, left = advance(pieces, n), left-n
	}
	_ = p.move(w, local, pieces)
	r := w.receipt()
	r.Bytes += grh
	r.LID, r.QPN, r.GID, r.Global, r.SL = q.Port.LID, q.Number, q.Port.source(w), w.To.Global, w.To.SL
	p.Queues.Received(index, r)
}

// source is the row of the GID table that a datagram names.
func (p *Port) source(w *Request) GID {
	if int(w.To.Source) < len(p.GIDs) {
		return p.GIDs[w.To.Source]
	}
	return p.GIDs[0]
}

// header is what a datagram has before its data: the GRH, or of RoCE v2 over IPv4 the header
// of that in the last 20 bytes (IBA annex A17.4.5.2).
func (p *Port) header(w *Request) []byte {
	h := make([]byte, 40)
	source := p.source(w)
	if source.Kind == KindRoCE2 && source.IPv4() {
		const udp, headers = 17, 20 + 8 + 12 + 8 + 4 // IP, UDP, BTH, DETH, CRC
		ip := h[20:]
		ip[0], ip[8], ip[9] = 4<<4|5, 64, udp
		be.PutUint16(ip[2:], uint16(w.Length)+headers)
		copy(ip[12:], source.Bytes[12:])
		copy(ip[16:], w.To.GID[12:])
		return h
	}
	h[0] = 6 << 4
	be.PutUint16(h[4:], uint16(w.Length))
	h[6], h[7] = 0x1b, 64 // IBA transport, hop limit
	copy(h[8:], source.Bytes[:])
	copy(h[24:], w.To.GID[:])
	return h
}
