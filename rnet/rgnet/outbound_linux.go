package rgnet

import "github.com/panjf2000/gnet/v2/pkg/pool/byteslice"

// outbound is what has to wait for room, in pieces that many writes share. gnet's own buffer has a
// piece for each write, and goes through all of them when the first is wanted: with many small
// answers to a peer with a small window that would be most of what the loop does.
type outbound struct {
	pieces [][]byte
	gone   int // bytes of the first piece
	size   int // bytes that wait
}

// outPiece is how long a piece may become.
const outPiece = 64 << 10

func (o *outbound) Write(p []byte) (int, error) {
	n := len(p)
	o.size += n
	if last := len(o.pieces) - 1; last >= 0 {
		p = o.fill(last, p)
	}
	for len(p) > 0 {
		o.pieces = append(o.pieces, byteslice.Get(min(o.size, outPiece))[:0])
		p = o.fill(len(o.pieces)-1, p)
	}
	return n, nil
}

// fill adds to a piece what it has place for, and returns the rest.
func (o *outbound) fill(i int, p []byte) []byte {
	piece := o.pieces[i]
	n := min(len(p), cap(piece)-len(piece))
	o.pieces[i] = append(piece, p[:n]...)
	return p[n:]
}

// first returns what waits in the first piece. There is one.
func (o *outbound) first() []byte { return o.pieces[0][o.gone:] }

// discard takes n bytes of the first piece.
func (o *outbound) discard(n int) {
	o.gone += n
	o.size -= n
	if o.gone < len(o.pieces[0]) {
		return
	}
	byteslice.Put(o.pieces[0])
	o.pieces[0], o.gone = nil, 0
	if len(o.pieces) > 1 {
		o.pieces = o.pieces[1:]
	} else {
		o.pieces = o.pieces[:0] // for the next that has to wait
	}
}

func (o *outbound) release() {
	for _, piece := range o.pieces {
		byteslice.Put(piece)
	}
	*o = outbound{}
}
