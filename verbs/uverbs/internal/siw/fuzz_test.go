package siw

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// FuzzSiwRequests has anything in the memory of the request queues, before and
// while they are used, and sizes that the kernel would not give: nothing
// panics, no request that the kernel holds is written over, and what is taken
// back is at most what a queue holds.
func FuzzSiwRequests(f *testing.F) {
	f.Add(uint32(4), uint32(4), []byte{}, []byte{}, uint16(3))
	f.Add(uint32(2), uint32(0), []byte{0, 0, 0, 0, 0, 0, 0, 0, 1}, []byte{}, uint16(7))
	f.Add(uint32(1), uint32(8), []byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255}, []byte{1, 2, 3, 4, 5, 6, 7, 8, 1}, uint16(200))
	f.Add(uint32(3), uint32(1<<31), []byte{1}, []byte{1}, uint16(81))
	f.Fuzz(func(t *testing.T, sqes, rqes uint32, before, later []byte, length uint16) {
		if sqes > 1<<10 && sqes <= maxQueue || rqes > 1<<10 && rqes <= maxQueue {
			return // memory for nothing
		}
		mem := new(testMemory)
		q, err := mem.openQP(driver.QPAttr{Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}}, sqes, rqes)
		if err != nil {
			if mem.mapped != 0 {
				t.Fatal("mapping left over")
			}
			return
		}
		pieces := make([]verbs.SGE, length%16)
		for i := range pieces {
			pieces[i].Length = uint32(length) & uint32(i) // some are empty
		}
		inline := verbs.SendWR{Opcode: verbs.OpWrite, Flags: verbs.SendInline, Inline: [][]byte{make([]byte, length)}}
		sends := []verbs.SendWR{{Opcode: verbs.OpSend, SGL: pieces}, inline, {Opcode: verbs.OpRead, SGL: pieces}}
		recvs := []verbs.RecvWR{{SGL: pieces}, {}, {}}
		fuzzSRQ(t, rqes, before, later, recvs)
		for _, written := range [][]byte{before, later, {}} {
			copy(q.send.mem, written)
			copy(q.recv.mem, written)
			sq, rq := heldBy(&q.send), heldBy(&q.recv)
			n, _, err := q.PostSend(sends)
			checkPost(t, &q.send, sq, n, len(sends), err)
			n, err = q.PostRecv(recvs)
			checkPost(t, &q.recv, rq, n, len(recvs), err)
		}
		copy(q.send.mem, before)
		held := len(heldBy(&q.send))
		back, _ := q.TakeBack()
		if len(back) != held {
			t.Fatalf("%d requests taken back of %d", len(back), held)
		}
		if len(heldBy(&q.send))+len(heldBy(&q.recv)) != 0 {
			t.Fatal("requests left over")
		}
	})
}

// fuzzSRQ does with the queue of an SRQ what FuzzSiwRequests does with those
// of a QP.
func fuzzSRQ(t *testing.T, rqes uint32, before, later []byte, recvs []verbs.RecvWR) {
	t.Helper()
	mem := new(testMemory)
	s, err := mem.openSRQ(rqes)
	if err != nil {
		if mem.mapped != 0 {
			t.Fatal("mapping left over")
		}
		return
	}
	for _, written := range [][]byte{before, later, {}} {
		copy(s.recv.mem, written)
		held := heldBy(&s.recv)
		n, err := s.PostRecv(recvs)
		checkPost(t, &s.recv, held, n, len(recvs), err)
		if len(held)+n > s.Capacity() {
			t.Fatalf("%d receives in an SRQ of %d", len(held)+n, s.Capacity())
		}
	}
	s.Unmap()
	if mem.mapped != 0 {
		t.Fatal("mapping left over")
	}
}

// heldBy copies the requests that the kernel has not taken, by their places.
func heldBy(r *ring) map[uint32]string {
	held := make(map[uint32]string)
	for i := uint32(0); r.mem != nil && i <= r.mask; i++ {
		if isValid(r.word(i).Load()) {
			held[i] = string(r.element(i))
		}
	}
	return held
}

// checkPost looks at a queue that has taken n of the requests.
func checkPost(t *testing.T, r *ring, before map[uint32]string, n, requests int, err error) {
	t.Helper()
	if n < requests && err == nil {
		t.Fatalf("%d of %d requests taken, and no error", n, requests)
	}
	if held := len(heldBy(r)); held != len(before)+n {
		t.Fatalf("%d requests where there were %d and came %d", held, len(before), n)
	}
	for i, request := range before {
		if request != string(r.element(i)) {
			t.Fatalf("request %d was the kernel's", i)
		}
	}
}
