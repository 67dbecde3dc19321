package mux

import (
	"sync"

	"github.com/seed-b9b531af/ramjet/ring"
)

// Chunk is a piece of received data that waits for its reader: either still
// in the receive ring, or copied to ordinary memory. The chunks of a stream form
// a list, guarded by its receive half's mu.
type Chunk struct {
	next *Chunk
	buf  []byte // the bytes; for pooled chunks the capacity is the class's
	r    int    // buf[:r] was read
	half *receiveHalf

	inRing bool       // buf points into the ring, held by token
	busy   bool       // a reader copies from buf without the lock
	leave  bool       // the link needed the room meanwhile: the reader moves the rest out
	token  ring.Token // valid while inRing
	class  int8       // pool it goes back to, -1: none
}

// keepMin is the payload from which staying in the ring is cheaper than a copy to a
// chunk.
const keepMin = 4 << 10

// chunkSizes are the capacities of pooled chunks. Small ones gather frames of
// a few bytes, large ones take what is moved out of the ring, the largest whole
// messages. Each is twice the one before, so that what is kept takes no more than twice
// its length, but for the least.
var chunkSizes = [...]int{
	1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20,
}

var (
	chunkPools [len(chunkSizes)]sync.Pool
	ringChunks = sync.Pool{New: func() any { return &Chunk{class: -1} }}
)

// NewChunk returns an empty heap chunk with room for at least n bytes.
func NewChunk(n int) *Chunk {
	for class, size := range chunkSizes {
		if n > size {
			continue
		}
		if c, ok := chunkPools[class].Get().(*Chunk); ok {
			return c
		}
		return &Chunk{buf: make([]byte, 0, size), class: int8(class)}
	}
	return &Chunk{buf: make([]byte, 0, n), class: -1}
}

// keep leaves payload, part of a frame that has just arrived for r, in the ring.
func keep(r *receiveHalf, payload []byte) *Chunk {
	k := ringChunks.Get().(*Chunk)
	k.buf, k.half, k.inRing = payload, r, true
	k.token = r.st.m.link.Retain(k)
	return k
}

// MoveOut copies what is unread of the chunk to ordinary memory, see link.Holder. If a reader copies from it,
// the reader moves the rest when it is done.
func (k *Chunk) MoveOut() bool {
	k.half.mu.Lock()
	defer k.half.mu.Unlock()
	k.leave = k.busy
	if !k.inRing || k.busy {
		return false
	}
	other := NewChunk(len(k.Unread())) // its memory comes from a pool
	k.buf, k.r, k.class = append(other.buf, k.Unread()...), 0, other.class
	other.buf, other.class = nil, -1
	ringChunks.Put(other)
	k.inRing = false
	return true
}

// longerThan reports whether the chunk and those behind it have more than n bytes.
func (k *Chunk) longerThan(n int) bool {
	for ; k != nil && n >= 0; k = k.next {
		n -= len(k.Unread())
	}
	return n < 0
}

// Unread returns the bytes of the chunk.
func (k *Chunk) Unread() []byte { return k.buf[k.r:] }

// Space returns n bytes of memory to be filled in place of what the chunk holds; as many
// as NewChunk was asked for at most. SetLen follows.
func (k *Chunk) Space(n int) []byte { return k.buf[:n] }

// SetLen says how much of Space was filled.
func (k *Chunk) SetLen(n int) { k.buf = k.buf[:n] }

// Skip takes n bytes off the start of what is unread.
func (k *Chunk) Skip(n int) { k.r += n }

// Append adds p to what is unread, and returns the chunk that has both: k, or one with room
// for size bytes at least, and k is recycled.
func (k *Chunk) Append(p []byte, size int) *Chunk {
	if cap(k.buf)-len(k.buf) >= len(p) {
		k.buf = append(k.buf, p...)
		return k
	}
	larger := NewChunk(max(size, len(k.Unread())+len(p)))
	larger.buf = append(append(larger.buf, k.Unread()...), p...)
	k.Recycle()
	return larger
}

// Recycle gives the chunk back; its ring space must have been freed.
func (k *Chunk) Recycle() {
	class := k.class
	k.next, k.half, k.r, k.busy, k.leave, k.inRing, k.token = nil, nil, 0, false, false, false, ring.Token{}
	if class < 0 {
		k.buf = nil
		ringChunks.Put(k)
		return
	}
	k.buf = k.buf[:0]
	chunkPools[class].Put(k)
}

// chunkQueue is the received data of one stream, in order.
type chunkQueue struct {
	head, tail *Chunk
}

func (q *chunkQueue) push(k *Chunk) {
	if q.tail == nil {
		q.head = k
	} else {
		q.tail.next = k
	}
	q.tail = k
}

func (q *chunkQueue) pop() *Chunk {
	k := q.head
	q.head = k.next
	if q.head == nil {
		q.tail = nil
	}
	k.next = nil
	return k
}

// fitHead gives the first chunk, of which a part was read, less memory if that is more than keepMin, and less
// than a quarter of it is in use.
func (q *chunkQueue) fitHead() {
	k := q.head
	if k.inRing || cap(k.buf) <= keepMin || len(k.Unread()) >= cap(k.buf)/4 {
		return
	}
	fit := NewChunk(len(k.Unread()))
	fit.buf, fit.next = append(fit.buf, k.Unread()...), k.next
	if q.head = fit; q.tail == k {
		q.tail = fit
	}
	k.Recycle()
}

// appendCopy copies p to the end of the queue.
func (q *chunkQueue) appendCopy(p []byte) {
	if t := q.tail; t != nil && !t.inRing && !t.busy && cap(t.buf)-len(t.buf) >= len(p) {
		t.buf = append(t.buf, p...)
		return
	}
	k := NewChunk(len(p))
	k.buf = append(k.buf, p...)
	q.push(k)
}
