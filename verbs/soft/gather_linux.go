package soft

import "github.com/seed-b9b531af/ramjet/verbs"

// gather copies local memory into dst; false if a key, bounds or rights do
// not cover it. It may have copied a part then, into a buffer of the peer
// that a failed request leaves undefined anyway.
func (q *qp) gather(dst []byte, sgl []verbs.SGE) bool {
	for i := range sgl {
		e := &sgl[i]
		if e.Length == 0 {
			continue
		}
		src, ok := q.pd.localBytes(&q.sgl, e, 0)
		if !ok {
			return false
		}
		dst = dst[copy(dst, src):]
	}
	return true
}

// localOK reports whether all of the local memory may be used.
func (q *qp) localOK(wr *verbs.SendWR, need verbs.Access) bool {
	if wr.Flags&verbs.SendInline != 0 {
		return true
	}
	for i := range wr.SGL {
		if wr.SGL[i].Length == 0 {
			continue
		}
		if _, ok := q.pd.localBytes(&q.sgl, &wr.SGL[i], need); !ok {
			return false
		}
	}
	return true
}

// gatherAt fills dst with the payload from byte skip on.
func (q *qp) gatherAt(dst []byte, wr *verbs.SendWR, skip int) bool {
	if wr.Flags&verbs.SendInline != 0 {
		for _, b := range wr.Inline {
			if skip >= len(b) {
				skip -= len(b)
				continue
			}
			dst = dst[copy(dst, b[skip:]):]
			skip = 0
		}
		return true
	}
	for i := range wr.SGL {
		e := wr.SGL[i]
		if skip >= int(e.Length) {
			skip -= int(e.Length)
			continue
		}
		src, ok := q.pd.localBytes(&q.sgl, &e, 0)
		if !ok {
			return false
		}
		dst = dst[copy(dst, src[skip:]):]
		skip = 0
	}
	return true
}

// scatter copies src into local memory.
func (q *qp) scatter(sgl []verbs.SGE, src []byte) bool {
	return scatter(q.pd, &q.sgl, sgl, 0, src)
}

// scatter copies src to where sgl says, from byte skip on.
func scatter(p *pd, last **region, sgl []verbs.SGE, skip int, src []byte) bool {
	for i := range sgl {
		e := &sgl[i]
		if skip >= int(e.Length) {
			skip -= int(e.Length)
			continue
		}
		dst, ok := p.localBytes(last, e, verbs.AccessLocalWrite)
		if !ok {
			return false
		}
		src = src[copy(dst[skip:], src):]
		skip = 0
		if len(src) == 0 {
			return true
		}
	}
	return len(src) == 0
}
