package soft

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
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
		unmap(r.mapping)
	}
}

// remoteOf is a region of our own process as a peer in it sees it. The
// memory stays until Deregister has waited for the peers.
func remoteOf(r *region) *remote {
	return &remote{key: r.key, access: r.access & remoteRights, addr: r.addr, mem: r.mem, valid: &r.remote}
}

var errBadRegion = errors.New("peer describes an impossible region")

// mapRemote maps a region that a peer sent with descriptor fd, which stays
// the caller's. learn says where its key is.
func (d *device) mapRemote(k keyAnswer, fd int) (*remote, error) {
	if k.length == 0 || k.length > maxMRSize || k.addr+k.length < k.addr {
		return nil, errBadRegion
	}
	size := int(k.length)
	if err := checkSealed(fd, size); err != nil {
		return nil, err
	}
	access := k.access & remoteRights
	prot := unix.PROT_READ
	if access&(verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) != 0 {
		prot |= unix.PROT_WRITE
	}
	mapping, err := d.mmap(fd, size, prot)
	if err != nil {
		return nil, err
	}
	if prot&unix.PROT_WRITE != 0 && size <= populateLimit {
		if err := populate(mapping); err != nil {
			unmap(mapping)
			return nil, fmt.Errorf("map the peer's region: %w", err)
		}
	}
	return &remote{
		key: k.key, access: access, addr: k.addr, place: k.place, mem: mapping, mapping: mapping,
	}, nil
}

// populateLimit bounds what we fault in ahead of use in somebody else's memory.
const populateLimit = 64 << 20

// keyHolders are the links over which a region was given to peers, with the
// place of its key in the segment of each. Its lock also keeps the region's
// descriptor from being closed while it is sent, and the segments of the links
// from being released.
type keyHolders struct {
	mu    sync.Mutex
	links map[*socketLink]uint32
}

// give sends the region to the peer at the other end of l, with its key at
// place; false if the region is gone or only good within this process.
func (r *region) give(l *socketLink, place uint32) bool {
	r.told.mu.Lock()
	defer r.told.mu.Unlock()
	if r.fd < 0 || r.remote.Load() != r.key || !r.local.Load() {
		return false
	}
	if r.told.links == nil {
		r.told.links = make(map[*socketLink]uint32)
	}
	r.told.links[l] = place
	l.seg.hdr.keys[place].Store(r.key)
	answer := keyAnswer{key: r.key, good: true, access: r.access & remoteRights, place: place, addr: r.addr, length: uint64(len(r.mem))}
	l.mustSend(encodeKeyAnswer(answer), r.fd)
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
	closeFDs(r.fd)
	r.fd = -1
	links := r.told.links
	r.told.links = nil
	r.told.mu.Unlock()
	for l := range links {
		l.mention(encodeKey(kindKeyGone, r.key))
		l.takeBack(r)
	}
}
