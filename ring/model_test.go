package ring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// The model: two ends of one connection, each with the real types of this package, over
// memory that they share. Each end does what a session's poller does, one message per
// step:
//
//	output:     stamp and write a message into the peer's ring, and announce it
//	poll:       take a message that was announced, place and dispatch it
//
// The application reads whenever it likes, and sends what that makes due. How an end
// sleeps and is woken is another model's matter: verbs/soft and rnet/internal/wait have
// theirs.

// What the model must never do.
var (
	errOverwritten = errors.New("message overwritten before it was read")
	errRefused     = errors.New("an honest peer was taken for a liar")
	errNoReceive   = errors.New("message without a posted receive")
	errDeadlock    = errors.New("deadlock: nobody can go on")
)

const (
	modelStreams = 2
	modelRingMax = 1024 // bytes
	seqCount     = 128  // sequence numbers run from 1 to this, more than blocks in the ring
)

// protocol is what is explored: the sizes, the load, and the faults.
type protocol struct {
	ring    uint32                  // bytes, each way
	depth   int                     // posted receives for data, each way
	aside   int                     // posted receives beyond them for credit messages, which need neither slot nor ring
	repost  int                     // receives used up before they are posted again, 1 if 0
	window  uint32                  // bytes, each stream
	sizes   []int                   // lengths of data messages that are tried
	frames  [2][modelStreams]int    // data messages that each end has to send
	readers [2][modelStreams]reader // what the application of that end does with each stream
	losses  int                     // stamps that may be lost
	lazy    bool                    // the application writes at any time, not all at the start
	fault
}

// reader is how an application reads a stream.
type reader uint8

const (
	whenever reader = iota // at once or at any time later
	atOnce                 // always waiting in Read when something arrives
	never
)

// fault is a deliberate mistake, to show that it would be found.
type fault struct {
	countedRelease  bool // release as many bytes as were freed, not contiguously
	noSpill         bool // never move retained messages elsewhere
	wholeMessages   bool // never shorten a message to the room there is
	relativeCredits bool // send differences instead of positions
}

type kind uint8

const (
	data kind = iota
	update
	creditOnly
)

type message struct {
	kind   kind
	stream uint8
	n      uint8 // bytes
	seq    uint8 // what is written into each block
	stamp  credit
	limit  uint16 // window granted, of an update
}

// credit is what each message tells of what its sender has released and posted: the
// low bits of absolute counts.
type credit struct {
	released uint32
	posted   uint16
}

// frame is data that arrived and was not read yet.
type frame struct {
	off, n, seq uint8 // of off and n the unit is a block of Align bytes
	spilled     bool
	token       Token
}

// queue is a list whose items never change, so that copies of a world share
// them: push copies, pop leaves the first one out.
type queue[T any] []T

func (q *queue[T]) push(x T) { *q = append((*q)[:len(*q):len(*q)], x) }

func (q *queue[T]) pop() T {
	x := (*q)[0]
	*q = (*q)[1:]
	return x
}

// end is one of the two processes.
type end struct {
	// Shared with the peer.
	inbox queue[message]              // descriptors; written by the peer
	mem   [modelRingMax / Align]uint8 // our ring: seq of the message in each block, 0 if free

	// Our own.
	tx      Tx
	rx      Rx
	theirs  SendSlots // receives that the peer has posted
	ours    RecvSlots // and those that we have
	send    [modelStreams]SendWindow
	recv    [modelStreams]RecvWindow
	unread  [modelStreams]queue[frame]
	toWrite [modelStreams]int // data messages that the application has yet to write
	toSend  [modelStreams]int // written and not sent yet
	seq     uint8
	polling bool // nothing is left to send

	used     int // receives used up and not posted again
	usedData int // those of them that count as slots
	receives int // posted and not claimed by the peer: must not become negative

	freed     uint64 // bytes freed, for countedRelease
	toldFreed uint64
	lost      bool // a stamp of ours was lost and not repeated
}

// world is the whole state.
type world struct {
	p      *protocol
	ends   [2]end
	losses int
}

func newWorld(p *protocol) *world {
	w := &world{p: p, losses: p.losses}
	for i := range w.ends {
		e := &w.ends[i]
		e.tx = Tx{size: uint64(p.ring)}
		e.rx = Rx{size: uint64(p.ring), step: uint64(p.ring) / 4}
		must(e.theirs.Init(p.depth))
		must(e.ours.Init(p.depth))
		e.receives = p.depth + p.aside
		for s := range modelStreams {
			must(e.send[s].Init(p.window))
			must(e.recv[s].Init(p.window))
		}
		if e.toSend = p.frames[i]; p.lazy {
			e.toSend, e.toWrite = e.toWrite, e.toSend
		}
	}
	return w
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// clone copies w; only the retained list is changed in place.
func (w *world) clone() *world {
	c := *w
	for i := range c.ends {
		kept := &c.ends[i].rx.kept
		kept.entries = slices.Clone(kept.entries)
	}
	return &c
}

// encode: see state. All arithmetic is about differences, so positions are
// written relative to one of them, and runs that differ only in how far they
// have come fall together. If both ends have the same to do it does not matter
// which is which.
func (w *world) encode(buf []byte) []byte {
	a, b := &w.ends[0], &w.ends[1]
	buf = append(buf, byte(w.losses))
	start := len(buf)
	buf = w.encodeEnd(buf, a, b)
	middle := len(buf)
	buf = w.encodeEnd(buf, b, a)
	if w.p.frames[0] == w.p.frames[1] && w.p.readers[0] == w.p.readers[1] && bytes.Compare(buf[start:middle], buf[middle:]) > 0 {
		buf = append(buf, buf[start:middle]...)
		buf = slices.Delete(buf, start, middle)
	}
	return buf
}

func (w *world) encodeEnd(buf []byte, e, peer *end) []byte {
	buf = append(buf, bits(e.polling, e.lost), byte(e.used), byte(e.usedData), byte(e.receives))

	in, out := w.base(peer, e), w.base(e, peer)
	for _, pos := range [...]uint64{
		e.tx.sent - out.ring, e.tx.acked - out.ring, e.theirs.posted - out.slots,
		e.rx.placed - in.ring, e.rx.told - in.ring, e.ours.posted - in.slots, e.ours.told - in.slots,
	} {
		buf = binary.LittleEndian.AppendUint16(buf, uint16(pos))
	}
	if w.p.countedRelease || w.p.relativeCredits {
		buf = append(buf, byte(e.freed), byte(e.freed>>8), byte(e.toldFreed), byte(e.toldFreed>>8))
	}
	for seq := e.rx.kept.head; seq != e.rx.kept.tail; seq++ {
		pos := e.rx.kept.entries[seq&uint64(len(e.rx.kept.entries)-1)]
		buf = append(buf, byte((pos-in.ring)>>4)<<1|byte(pos&freedMark))
	}
	buf = append(buf, 0xff)
	for s := range modelStreams {
		sent := peer.send[s].sent
		buf = append(buf, byte(e.toWrite[s]), byte(e.toSend[s]))
		for _, pos := range [...]uint64{e.send[s].granted - e.send[s].sent,
			e.recv[s].arrived - sent, e.recv[s].consumed - sent, e.recv[s].granted - sent} {
			buf = binary.LittleEndian.AppendUint16(buf, uint16(pos))
		}
		for _, f := range e.unread[s] {
			buf = append(buf, f.off, f.n, in.relative(f.seq), bits(f.spilled), byte(f.token.seq-e.rx.kept.head))
		}
		buf = append(buf, 0xfe)
	}
	for _, seq := range e.mem[:w.p.ring/Align] {
		buf = append(buf, in.relative(seq))
	}
	buf = append(buf, 0xfd)
	for i := range e.inbox {
		buf = peer.encodeMessage(buf, &e.inbox[i], out, in)
	}
	return append(buf, 0xfc)
}

// base holds what the positions of one direction are relative to.
type base struct {
	ring, slots uint64
	seq         uint8
}

func (w *world) base(from, to *end) base {
	return base{ring: from.tx.sent &^ uint64(w.p.ring-1), slots: from.theirs.sent, seq: from.seq}
}

// relative returns how long ago seq was given out, 0 for none.
func (b base) relative(seq uint8) uint8 {
	if seq == 0 {
		return 0
	}
	return (b.seq+seqCount-seq)%seqCount + 1
}

// encodeMessage appends a message sent by e; in and out are e's directions.
func (e *end) encodeMessage(buf []byte, m *message, in, out base) []byte {
	buf = append(buf, byte(m.kind), m.stream, m.n, out.relative(m.seq))
	if m.kind == update {
		// Relative to what was granted last, which the other positions place.
		buf = append(buf, byte((e.recv[m.stream].granted-uint64(m.limit))/Align))
	}
	buf = binary.LittleEndian.AppendUint32(buf, m.stamp.released-uint32(in.ring))
	return binary.LittleEndian.AppendUint16(buf, m.stamp.posted-uint16(in.slots))
}

func bits(flags ...bool) (b byte) {
	for i, f := range flags {
		if f {
			b |= 1 << i
		}
	}
	return b
}

// final says whether the world may stay like this for ever: nobody can go on,
// with good reason.
func (w *world) final() error {
	for i := range w.ends {
		e, peer := &w.ends[i], &w.ends[1-i]
		for s := range modelStreams {
			if e.toSend[s] > 0 && uint32(peer.recv[s].Buffered()) < w.p.window {
				return fmt.Errorf("%w: end %d has data for stream %d, whose reader holds %d of %d bytes; window %d, slots %d, room %d",
					errDeadlock, i, s, peer.recv[s].Buffered(), w.p.window, e.send[s].Avail(), e.theirs.Avail(), e.tx.Room())
			}
			if w.p.readers[1-i][s] != never && len(peer.unread[s]) > 0 {
				return fmt.Errorf("%w: unread data", errDeadlock)
			}
		}
	}
	return nil
}
