package rxe

import (
	"errors"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// FuzzRxeCQ has memory that is no completion queue, and a kernel that moves
// its index as it likes: nothing panics, and each poll ends after one round.
func FuzzRxeCQ(f *testing.F) {
	f.Add(uint32(6), uint32(7), uint32(3), uint32(0), []byte{1, 0, 0, 0, 0, 0, 0, 0, 12}, uint32(6))
	f.Add(uint32(6), uint32(1<<32-1), uint32(1<<32-1), uint32(0), []byte{}, uint32(0))
	f.Add(uint32(31), uint32(0), uint32(0), uint32(0), []byte{}, uint32(1))
	f.Add(uint32(7), uint32(3), uint32(2), uint32(3), []byte{255, 255, 255, 255}, uint32(4))
	f.Fuzz(func(t *testing.T, log, mask, producer, consumer uint32, elements []byte, later uint32) {
		k := new(kernel)
		m := k.queue(0, 3, 6)
		mem := k.maps[0]
		*abi.ViewAt[uint32](mem, offsetLogElement) = log
		*abi.ViewAt[uint32](mem, offsetMask) = mask
		*abi.ViewAt[uint32](mem, offsetProducer) = producer
		*abi.ViewAt[uint32](mem, offsetConsumer) = consumer
		copy(mem[offsetElements:], elements)
		cq, err := k.openCQ(m)
		if err != nil {
			if k.mapped != 0 {
				t.Fatal("mapping left over")
			}
			return
		}
		wcs := make([]verbs.WC, len(mem))
		for round := range 3 {
			n, err := cq.Poll(wcs, nil)
			if err != nil && !errors.Is(err, errRing) {
				t.Fatal(err)
			}
			if n > int(cq.ring.mask) {
				t.Fatalf("%d completions from a queue of %d", n, cq.ring.mask)
			}
			for i := range wcs[:n] {
				if wcs[i].Status > verbs.WCTMRndvIncomplete {
					t.Fatalf("status %d", wcs[i].Status)
				}
			}
			*abi.ViewAt[uint32](mem, offsetProducer) = later + uint32(round)
			*abi.ViewAt[uint32](mem, offsetLogElement) = later // too late to matter
			*abi.ViewAt[uint32](mem, offsetMask) = later
		}
	})
}

// FuzzRxeRequests has hostile memory where queues of requests should be, those
// of an SRQ among them.
func FuzzRxeRequests(f *testing.F) {
	f.Add(uint32(9), uint32(7), uint32(0), uint32(0), uint32(5), uint16(3), uint32(2))
	f.Add(uint32(9), uint32(7), uint32(8), uint32(0), uint32(5), uint16(300), uint32(1<<31))
	f.Add(uint32(8), uint32(15), uint32(3), uint32(15), uint32(40), uint16(17), uint32(16))
	f.Fuzz(func(t *testing.T, log, mask, producer, consumer, most uint32, length uint16, later uint32) {
		k := new(kernel)
		out := createQPOut{send: k.queue(0, 3, 9), recv: k.queue(1<<20, 3, 9)}
		shared := k.queue(2<<20, 3, 9)
		for _, mem := range k.maps {
			*abi.ViewAt[uint32](mem, offsetLogElement) = log
			*abi.ViewAt[uint32](mem, offsetMask) = mask
			*abi.ViewAt[uint32](mem, offsetProducer) = producer
			*abi.ViewAt[uint32](mem, offsetConsumer) = consumer
		}
		depth := int(int32(most))
		q, err := k.openQP(driver.QPAttr{Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth}}, out)
		if err != nil {
			if k.mapped != 0 {
				t.Fatal("mapping left over")
			}
			return
		}
		attr := verbs.SRQAttr{MaxWR: depth, MaxSGE: 1}
		srq, err := k.openSRQ(attr, shared)
		if err != nil {
			t.Fatal("the QP's queues were taken, and an SRQ's is refused:", err)
		}
		inline := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{make([]byte, length)}}
		pieces := make([]verbs.SGE, length%40)
		sends := []verbs.SendWR{{Opcode: verbs.OpWrite, SGL: pieces}, inline, {Opcode: verbs.OpFetchAdd, SGL: pieces}}
		recvs := []verbs.RecvWR{{SGL: pieces}, {}, {}}
		for round := range 3 {
			n, _, err := q.PostSend(sends)
			if n < len(sends) && err == nil {
				t.Fatalf("%d of %d requests taken, and no error", n, len(sends))
			}
			if n, err := q.PostRecv(recvs); n < len(recvs) && err == nil {
				t.Fatalf("%d of %d receives taken, and no error", n, len(recvs))
			}
			if n, err := srq.PostRecv(recvs); n < len(recvs) && err == nil || n > srq.Capacity() {
				t.Fatalf("%d of %d receives taken by an SRQ of %d: %v", n, len(recvs), srq.Capacity(), err)
			}
			for _, mem := range k.maps {
				*abi.ViewAt[uint32](mem, offsetConsumer) = later * uint32(round+1)
				*abi.ViewAt[uint32](mem, offsetMask) = later
			}
		}
		before := k.mapped
		// to what is there now, or not at all
		_ = srq.Modify(attr, verbs.SRQAttrMaxWR, k.resizes(shared))
		if k.mapped != before {
			t.Fatalf("%d mappings where there were %d", k.mapped, before)
		}
		_, _ = srq.PostRecv(recvs)
		srq.Unmap()
		q.Unmap()
		if k.mapped != 0 {
			t.Fatal("mapping left over")
		}
	})
}
