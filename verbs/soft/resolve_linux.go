package soft

import "github.com/seed-b9b531af/ramjet/verbs"

// remoteBytes resolves the peer's memory that a request names.
func (q *qp) remoteBytes(wr *verbs.SendWR, n uint64, need verbs.Access) (progress, []byte, verdict) {
	p, v := q.resolve(wr.RKey)
	if p != finished || v.status != verbs.WCSuccess {
		return p, nil, v
	}
	mem, ok := q.cached.bytes(wr.RemoteAddr, n, need)
	if !ok {
		return finished, nil, verdict{status: verbs.WCRemAccessErr, tell: faultAccess}
	}
	return finished, mem, verdict{}
}

// resolve makes the region of a key the cached one.
func (q *qp) resolve(key uint32) (progress, verdict) {
	r := q.cached
	if r == nil || r.key != key {
		if r = q.remotes[key]; r == nil {
			return q.askFor(key)
		}
		q.cached = r
	}
	if !r.good() {
		// The key is gone for good; the peer tells so too, but later.
		return finished, verdict{status: verbs.WCRemAccessErr, tell: faultAccess}
	}
	return finished, verdict{}
}

// askFor gets to know a key.
func (q *qp) askFor(key uint32) (progress, verdict) {
	if err, ok := q.refused[key]; ok {
		delete(q.refused, key)
		if err != nil {
			return finished, verdict{status: verbs.WCLocQPOpErr}
		}
		return finished, verdict{status: verbs.WCRemAccessErr, tell: faultAccess}
	}
	r, ok := q.link.lookup(key)
	switch {
	case r != nil:
		q.addRemote(r)
		return finished, verdict{}
	case ok:
		return finished, verdict{status: verbs.WCRemAccessErr, tell: faultAccess}
	}
	if _, asked := q.asked[key]; !asked {
		if q.asked == nil {
			q.asked = make(map[uint32]struct{})
		}
		q.asked[key] = struct{}{}
		q.link.ask(key)
	}
	return needKey, verdict{}
}

// addRemote makes r the cached region. When the number of regions has doubled
// it drops those whose keys were taken away: a peer of this process does not
// say when that happens, and what a peer says may get lost.
func (q *qp) addRemote(r *remote) {
	if q.remotes == nil {
		q.remotes = make(map[uint32]*remote)
	}
	if len(q.remotes) >= max(q.sweepAt, minSweep) {
		for key, old := range q.remotes {
			if !old.good() {
				q.dropRemote(key)
			}
		}
		q.sweepAt = 2 * len(q.remotes)
	}
	q.remotes[r.key] = r
	q.cached = r
}

// minSweep is how many regions are kept without a look at them.
const minSweep = 64

// forgetRemotes drops all regions of the peer.
func (q *qp) forgetRemotes() {
	for _, r := range q.remotes {
		r.close()
	}
	q.remotes, q.asked, q.refused, q.cached = nil, nil, nil, nil
}

// dropRemote drops one. The caller's unlock takes its mapping back.
func (q *qp) dropRemote(key uint32) {
	r := q.remotes[key]
	if r == nil {
		return
	}
	if q.cached == r {
		q.cached = nil
	}
	delete(q.remotes, key)
	if r.mapping != nil {
		q.gone = append(q.gone, r)
	}
}
