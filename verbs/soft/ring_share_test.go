//go:build linux

package soft_test

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// What travels in descriptors and what is written to its place go round small rings together, both ways,
// with memory taken away in between: no byte is lost, or late.
func TestShortAndLongWritesShareARing(t *testing.T) {
	n := 1 << 20
	if testing.Short() {
		n = 1 << 17
	}
	bothWays(t, func(t *testing.T) {
		s := usual
		s.atPoll, s.single, s.memory, s.cap.MaxRecvWR = true, true, ringSize, ringReceives
		a, b := newPair(t, s)
		warm(t, a, b)
		warm(t, b, a)
		for _, e := range []*end{a, b} {
			_, err := e.qp.PostRecv(make([]verbs.RecvWR, ringReceives))
			require.NoError(t, err)
		}
		var group sync.WaitGroup
		for i, ends := range [][2]*end{{a, b}, {b, a}} {
			r := ringUser{e: ends[0], peer: ends[1], rnd: rand.New(rand.NewPCG(uint64(i), 1))}
			group.Go(func() { r.run(t, n) })
		}
		group.Wait()
	})
}

const (
	ringSize     = 16 << 10
	ringReceives = 250
)

// ringUser sends through the ring of its peer, and takes what comes in its own.
type ringUser struct {
	e, peer     *end
	rnd         *rand.Rand
	sent, freed int // bytes
	used, known int // receives of the peer
	got, told   int // bytes
	took, gave  int // receives
}

// run sends n bytes and takes as many.
func (r *ringUser) run(t *testing.T, n int) {
	deadline := time.Now().Add(60 * time.Second)
	r.known = ringReceives
	for r.sent < n || r.freed < n || r.told < n {
		did := r.send(t, n) + r.receive(t) + r.giveBack(t)
		if r.rnd.IntN(16) == 0 && r.sent == r.freed {
			r.shrink(t)
		}
		if did == 0 {
			runtime.Gosched()
		}
		if t.Failed() || time.Now().After(deadline) {
			t.Errorf("gave up: %+v", *r)
			return
		}
	}
}

func ringByte(at int) byte { return byte(1 + at*7%251) } // never 0, which is what shrink leaves

// send sends some messages, most of them about as long as fits into a descriptor.
func (r *ringUser) send(t *testing.T, n int) (did int) {
	for range r.rnd.IntN(100) {
		size := 80 + r.rnd.IntN(32)
		if r.rnd.IntN(8) == 0 {
			size = 1 + r.rnd.IntN(2000)
		}
		size = min(size, n-r.sent, ringSize-r.sent%ringSize)
		if size == 0 || r.sent+size-r.freed > ringSize || r.known-r.used <= 100 { // they are for giveBack
			break
		}
		data := make([]byte, size)
		for i := range data {
			data[i] = ringByte(r.sent + i)
		}
		r.post(t, verbs.SendWR{Inline: [][]byte{data[:size/2], data[size/2:]}, RemoteAddr: r.peer.mr.Addr() + uint64(r.sent%ringSize), RKey: r.peer.mr.RKey()})
		r.sent += size
		did++
	}
	return did
}

func (r *ringUser) post(t *testing.T, wr verbs.SendWR) {
	wr.Opcode, wr.Flags = verbs.OpWriteWithImm, verbs.SendInline
	if _, err := r.e.qp.PostSend([]verbs.SendWR{wr}); err != nil {
		t.Error(err)
	}
	r.used++
}

func (r *ringUser) receive(t *testing.T) int {
	var wcs [32]verbs.WC
	k, err := r.e.recv.Poll(wcs[:1+r.rnd.IntN(len(wcs))])
	if err != nil {
		t.Error(err)
	}
	mem := r.e.mr.Bytes()
	for _, wc := range wcs[:k] {
		if wc.Status != verbs.WCSuccess {
			t.Error(wc.Err())
		}
		r.freed += int(wc.Imm >> 8)
		r.known += int(wc.Imm & 0xff)
		for range wc.ByteLen {
			p := &mem[r.got%ringSize]
			if *p != ringByte(r.got) {
				t.Errorf("byte %d, in a message of %d, is %d", r.got, wc.ByteLen, *p)
				return k
			}
			*p = 0
			r.got++
		}
	}
	if _, err := r.e.qp.PostRecv(make([]verbs.RecvWR, k)); err != nil {
		t.Error(err)
	}
	r.took += k
	return k
}

// giveBack tells the peer what was taken.
func (r *ringUser) giveBack(t *testing.T) int {
	if r.got-r.told == 0 && r.took-r.gave < 25 || r.used == r.known || r.rnd.IntN(3) == 0 {
		return 0
	}
	r.post(t, verbs.SendWR{Imm: uint32(r.got-r.told)<<8 | uint32(r.took-r.gave)})
	r.told, r.gave = r.got, r.took
	return 1
}

// shrink takes memory away from both rings of the peer, of which all is free.
func (r *ringUser) shrink(t *testing.T) {
	driver := r.e.qp.Driver().(interface {
		ShrinkRing() error
		DiscardRemote(rkey uint32, addr uint64, n int) error
	})
	from := r.rnd.IntN(4) << 12
	if err := driver.DiscardRemote(r.peer.mr.RKey(), r.peer.mr.Addr()+uint64(from), ringSize-from); err != nil {
		t.Error(err)
	}
	if err := driver.ShrinkRing(); err != nil {
		t.Error(err)
	}
}
