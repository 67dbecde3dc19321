package soft

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
	"golang.org/x/sys/unix"
)

// remote is a region of the peer as an initiator uses it: memory, rights and
// the word by which the owner takes the key away. It is guarded by the sendMu
// of the QP that it belongs to.
type remote struct {
	key    uint32
	access verbs.Access
	addr   uint64 // as the peer names the first byte
	mem    []byte
	valid  *atomic.Uint32 // the key, while it is good
	place  uint32         // where that lies in the peer's segment

	mapping []byte // ours to unmap; nil for a region of this process
}

// bytes returns the n bytes at addr if the region lets need in there.
func (r *remote) bytes(addr, n uint64, need verbs.Access) ([]byte, bool) {
	off := addr - r.addr
	if off > uint64(len(r.mem)) || n > uint64(len(r.mem))-off || r.access&need == 0 || !r.good() {
		return nil, false
	}
	return r.mem[off : off+n], true
}

// good reports whether the owner has not taken the key away.
func (r *remote) good() bool { return r.valid.Load() == r.key }

func (r *remote) close() {
	if r.mapping != nil {
		sys.Unmap(r.mapping, sys.OfAPeer)
	}
}

func closeRemotes(list []*remote) {
	for _, r := range list {
		r.close()
	}
}

// remoteOf is a region of our own process as a peer in it sees it. The
// memory stays until Deregister has waited for the peers.
func remoteOf(r *region) *remote {
	return &remote{key: r.key, access: r.access & protocol.RemoteRights, addr: r.addr, mem: r.mem, valid: &r.remote}
}

// mostMapped leaves room for the beginning of a page, of any size, in an int of the machine.
const mostMapped = math.MaxInt - 1<<16

var errBadRegion = errors.New("peer describes an impossible region")

// mapRemote maps a region that a peer sent with descriptor fd, which stays
// the caller's. learn says where its key is. A region of more than longest bytes is not mapped,
// nor a part of one.
func (d *device) mapRemote(k protocol.KeyAnswer, fd int, longest uint64) (*remote, error) {
	if k.Length == 0 || k.Length > min(longest, mostMapped) || k.Addr+k.Length < k.Addr {
		return nil, errBadRegion
	}
	if k.Offset > protocol.MaxMRSize-k.Length {
		return nil, errBadRegion
	}
	pages := int64(protocol.PageSize)
	if err := sys.CheckSealed(fd, int64(k.Offset+k.Length), (int64(longest)+pages-1)&^(pages-1)); err != nil {
		return nil, err
	}
	skip := int(k.Offset) & (protocol.PageSize - 1)
	size := skip + int(k.Length)
	access := k.Access & protocol.RemoteRights
	prot := unix.PROT_READ
	if access&remoteWrites != 0 {
		prot |= unix.PROT_WRITE
	}
	mapping, err := d.mmap(fd, int64(k.Offset)-int64(skip), size, prot)
	if err != nil {
		return nil, err
	}
	if prot&unix.PROT_WRITE != 0 {
		if err := sys.Populate(mapping[:ahead(fd, size)]); err != nil {
			sys.Unmap(mapping, sys.OfAPeer)
			return nil, fmt.Errorf("map the peer's region: %w", err)
		}
	}
	return &remote{
		key: k.Key, access: access, addr: k.Addr, place: k.Place, mem: mapping[skip:], mapping: mapping,
	}, nil
}

// LimitRemote has no region of a peer in another process mapped that is longer than n bytes, nor a
// part of one: it costs the peer nothing to have one that takes most of our address space, and
// its memory may be freed in our process. Requests that name one fail. Callers find it as PopulateRemote.
func (q *qp) LimitRemote(n uint64) {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	q.longest = min(n, protocol.MaxMRSize)
}

// PopulateRemote gives memory to n bytes from addr on of a region that the peer has
// made sparse, so that running out of it is an error here and not a signal when they
// are written to. It does nothing for a region that nothing was sent to yet. Callers
// find it by an interface assertion on verbs.QP.Driver.
func (q *qp) PopulateRemote(rkey uint32, addr uint64, n int) error {
	return q.eachPart(rkey, addr, n, sys.Populate)
}

// DiscardRemote takes their memory away from n bytes from addr on, whole pages of
// them: they are zero from then on. Nobody else may be using them.
func (q *qp) DiscardRemote(rkey uint32, addr uint64, n int) error {
	return q.eachPart(rkey, addr, n, sys.Discard)
}

// RemotePageSize is the size of the pages that PopulateRemote and DiscardRemote give and take.
func (q *qp) RemotePageSize() int { return protocol.PageSize }

// ShrinkRing takes memory away from the ring of descriptors in which requests of this
// QP go, if nothing is on its way in it. It grows again with use.
func (q *qp) ShrinkRing() error {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	if q.link == nil || q.in.flushing.Load() {
		return nil
	}
	return q.out.shrink()
}

// eachPart calls f for the whole pages among n bytes from addr on of a region of the
// peer, a part at a time. The region stays mapped while sendMu is held, and between
// the parts posts go on.
func (q *qp) eachPart(rkey uint32, addr uint64, n int, f func(mem []byte) error) error {
	for end := addr + uint64(n); addr < end; {
		part := min(protocol.PagesAtOnce-addr%uint64(protocol.PageSize), end-addr)
		q.sendMu.Lock()
		var err error
		if mem := q.pagesOf(rkey, addr, int(part)); len(mem) > 0 {
			err = f(mem)
		}
		q.sendMu.Unlock()
		if err != nil {
			return err
		}
		addr += part
	}
	return nil
}

// pagesOf returns the whole pages among n bytes from addr on of a region of the peer
// that may be written to. sendMu is held.
func (q *qp) pagesOf(rkey uint32, addr uint64, n int) []byte {
	r := q.remotes[rkey]
	if r == nil {
		return nil
	}
	mem, ok := r.bytes(addr, uint64(n), verbs.AccessRemoteWrite)
	if !ok {
		return nil
	}
	page := uintptr(protocol.PageSize)
	at := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	skip := int(-at & (page - 1))
	if skip >= len(mem) {
		return nil
	}
	return mem[skip : skip+(len(mem)-skip)&^int(page-1)]
}

// keyHolders are the links over which a region was given to peers, with the
// place of its key in the segment of each. Its lock also keeps the region's
// descriptor from being closed while it is sent, and the segments of the links
// from being released.
type keyHolders struct {
	mu    sync.Mutex
	links map[*socketLink]uint32
}

// give sends the region to the peer at the other end of l, with its key at
// place; false if the region is gone or only good within this process, or if there is
// no descriptor for it.
func (r *region) give(l *socketLink, place uint32) bool {
	r.told.mu.Lock()
	defer r.told.mu.Unlock()
	whole := r
	if r.parent != nil {
		whole = r.parent
		whole.told.mu.Lock()
		defer whole.told.mu.Unlock()
	}
	if whole.fd < 0 || !whole.local.Load() || r.remote.Load() != r.key {
		return false
	}
	fd, done, err := whole.descriptorFor(r.access)
	if err != nil {
		return false
	}
	defer done()
	if r.told.links == nil {
		r.told.links = make(map[*socketLink]uint32)
	}
	r.told.links[l] = place
	l.in.grants.add(r)
	l.seg.Header.Keys[place].Store(r.key)
	answer := protocol.KeyAnswer{Key: r.key, Good: true, Access: r.access & protocol.RemoteRights, Place: place, Addr: r.addr, Length: uint64(len(r.mem))}
	answer.Offset = r.addr - whole.addr
	l.mustSend(protocol.EncodeKeyAnswer(answer), fd)
	if whole.onePeer {
		sys.CloseFDs(whole.fd)
		whole.fd = -1
	}
	return true
}

// forget drops a link that is closed.
func (r *region) forget(l *socketLink) {
	r.told.mu.Lock()
	defer r.told.mu.Unlock()
	delete(r.told.links, l)
}

// revoke closes the descriptor and tells the peers to unmap the region. That
// frees memory; that the key is gone from their segments has stopped them
// already.
func (r *region) revoke() {
	r.told.mu.Lock()
	sys.CloseFDs(r.fd)
	r.fd = -1
	links := r.told.links
	r.told.links = nil
	r.told.mu.Unlock()
	for l := range links {
		l.mention(protocol.EncodeKey(protocol.KindKeyGone, r.key))
		l.takeBack(r)
	}
}

// resolve makes the region of a key the cached one.
func (q *qp) resolve(key uint32) (progress, outcome) {
	r := q.cached
	if r == nil || r.key != key {
		if r = q.remotes[key]; r == nil {
			return q.askFor(key)
		}
		q.cached = r
	}
	if !r.good() {
		// The key is gone, or is that of a window which was bound anew.
		q.dropRemote(key)
		return q.askFor(key)
	}
	return finished, outcome{}
}

// askFor gets to know a key.
func (q *qp) askFor(key uint32) (progress, outcome) {
	if err, ok := q.refused[key]; ok {
		delete(q.refused, key)
		if err != nil {
			return finished, outcome{status: verbs.WCLocQPOpErr}
		}
		return finished, outcome{status: verbs.WCRemAccessErr, tell: protocol.FaultAccess}
	}
	r, ok := q.link.lookup(key)
	switch {
	case r != nil:
		q.addRemote(r)
		return finished, outcome{}
	case ok:
		return finished, outcome{status: verbs.WCRemAccessErr, tell: protocol.FaultAccess}
	}
	if _, asked := q.asked[key]; !asked {
		if q.sq.asks++; q.sq.asks > maxAsks {
			return finished, outcome{status: verbs.WCRemAccessErr, tell: protocol.FaultAccess}
		}
		if q.asked == nil {
			q.asked = make(map[uint32]struct{})
		}
		q.asked[key] = struct{}{}
		q.link.ask(key)
	}
	return needKey, outcome{}
}

// maxAsks is how often a request asks the peer. It asks again if a window was bound
// anew between the answer and the look at its key, or if the peer lies.
const maxAsks = 16

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
	q.dropRemote(r.key) // what the key stood for before
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
	closeRemotes(q.gone)
	q.remotes, q.asked, q.refused, q.cached, q.gone = nil, nil, nil, nil, nil
}

// dropRemote drops one. The next unlock takes its mapping back: the caller's, or that
// of who brings the answer to what the caller asks.
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
