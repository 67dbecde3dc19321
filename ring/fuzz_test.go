package ring

import (
	"testing"
)

// naiveRing is what Tx and Rx are compared with: it remembers every message
// and the owner of every unit of memory, and computes everything from that.
type naiveRing struct {
	size  uint64
	owner []int // message in each unit of Align bytes, 0 if none
	msgs  []naiveMessage
	sent  uint64 // position after the last message
	begin uint64 // position at which all started
	acked uint64
	told  uint64
}

type naiveMessage struct {
	start, end uint64
	n          int
	arrived    bool
	kept       int // retentions that were not freed
}

// naiveToken is a retention of a message.
type naiveToken struct {
	token Token
	msg   int
}

// reserve returns where a message of n bytes lies, by trying.
func (m *naiveRing) reserve(n int) (off uint32, ok bool) {
	if n <= 0 || uint64(n) > m.size {
		return 0, false
	}
	length := uint64(n)
	for length%Align != 0 {
		length++
	}
	start := m.sent
	for start%m.size+length > m.size {
		start += Align
	}
	if start+length > m.acked+m.size {
		return 0, false
	}
	m.msgs = append(m.msgs, naiveMessage{start: start, end: start + length, n: n})
	m.sent = start + length
	return uint32(start % m.size), true
}

// released is the start of the first message that arrived and is still kept, or
// the end of those that arrived.
func (m *naiveRing) released() uint64 {
	pos := m.begin
	for _, msg := range m.msgs {
		switch {
		case !msg.arrived:
			return pos
		case msg.kept > 0:
			return msg.start
		}
		pos = msg.end
	}
	return pos
}

// FuzzRing runs operations on a Tx and an Rx, honest ones and lies, and
// compares each result with a naive model that also watches who owns the
// memory.
func FuzzRing(f *testing.F) {
	f.Add(uint8(0), []byte{0, 10, 1, 0, 3, 0})
	f.Add(uint8(1), []byte{0, 255, 0, 255, 1, 1, 1, 2, 2, 0, 3, 0, 0, 200, 4, 9, 5, 1})
	f.Add(uint8(2), []byte{0, 128, 1, 1, 0, 128, 1, 1, 0, 128, 1, 1, 2, 2, 2, 1, 2, 0, 3, 1, 0, 254})
	f.Add(uint8(3), []byte{6, 0, 6, 255, 0, 255, 0, 1, 7, 3, 7, 200})

	f.Fuzz(func(t *testing.T, where uint8, ops []byte) {
		const size = 4096
		base := []uint64{0, 1<<32 - 512, 1<<31 - 64, 5<<40 + 4080}[where%4]
		tx, rx := txAt(t, size, base), rxAt(t, size, base)
		model := &naiveRing{size: size, owner: make([]int, size/Align), sent: base, begin: base, acked: base, told: base}
		next := 0 // message that arrives next
		var tokens []naiveToken

		for i := 0; i+1 < len(ops); i += 2 {
			arg := int(ops[i+1])
			switch ops[i] % 8 {
			case 0: // send
				n := arg * 17
				room, tail := tx.Room(), tx.Tail()
				off, ok := tx.Reserve(n)
				wantOff, wantOK := model.reserve(n)
				if off != wantOff || ok != wantOK {
					t.Fatalf("Reserve(%d) = %d, %v, want %d, %v", n, off, ok, wantOff, wantOK)
				}
				if ok != (n > 0 && n <= room) {
					t.Fatalf("Reserve(%d) = %v with room for %d", n, ok, room)
				}
				if n > 0 && n <= tail && uint64(off) != model.msgs[len(model.msgs)-1].start%size {
					t.Fatalf("Reserve(%d) skipped with tail %d", n, tail)
				}
				if ok {
					model.take(t, len(model.msgs))
				}
			case 1: // arrive, with some retentions
				if next == len(model.msgs) {
					continue
				}
				msg := &model.msgs[next]
				off, err := rx.Place(msg.n)
				if err != nil || uint64(off) != msg.start%size {
					t.Fatalf("Place(%d) = %d, %v, want %d", msg.n, off, err, msg.start%size)
				}
				msg.arrived = true
				for range arg % 4 {
					tokens = append(tokens, naiveToken{rx.Retain(), next})
					msg.kept++
				}
				next++
				if msg.kept == 0 {
					model.drop(next)
				}
			case 2: // free any
				if len(tokens) == 0 {
					continue
				}
				k := arg % len(tokens)
				token := tokens[k]
				tokens = append(tokens[:k], tokens[k+1:]...)
				rx.Free(token.token)
				if model.msgs[token.msg].kept--; model.msgs[token.msg].kept == 0 {
					model.drop(token.msg + 1)
				}
			case 3: // tell, and perhaps lose it
				due := rx.CreditDue()
				if due != (model.released()-model.told >= size/4) {
					t.Fatalf("CreditDue %v", due)
				}
				pos := rx.TakeCredit()
				model.told = pos
				if arg%3 == 0 {
					continue
				}
				var err error
				if arg%3 == 1 {
					err = tx.Credit(pos)
				} else {
					err = tx.Credit32(uint32(pos))
				}
				if err != nil {
					t.Fatalf("credit %d refused: %v", pos, err)
				}
				model.acked = pos
			case 4: // a stale credit
				if err := tx.Credit32(uint32(tx.Acked()) - uint32(arg)*Align); err != nil {
					t.Fatalf("stale credit refused: %v", err)
				}
			case 5: // a lie
				if tx.Credit(tx.Sent()+1+uint64(arg)) == nil {
					t.Fatal("credit for what was not sent taken")
				}
				if arg%Align != 0 && tx.Credit(tx.Acked()+uint64(arg)) == nil {
					t.Fatal("credit between messages taken")
				}
			case 6: // a lie: more data than there is credit for
				if next < len(model.msgs) {
					continue
				}
				if _, err := rx.Place(size - rx.Retained() + 1 + arg); err == nil {
					t.Fatal("data beyond the credit taken")
				}
			case 7: // an impossible length
				if _, err := rx.Place(-arg); err == nil {
					t.Fatal("length not positive taken")
				}
			}
			model.compare(t, tx, rx, tokens)
		}
	})
}

// take gives the memory of message number i (from 1) to it; it must be free.
func (m *naiveRing) take(t *testing.T, i int) {
	msg := m.msgs[i-1]
	for pos := msg.start; pos < msg.end; pos += Align {
		unit := pos % m.size / Align
		if m.owner[unit] != 0 {
			t.Fatalf("message %d overwrites message %d", i, m.owner[unit])
		}
		m.owner[unit] = i
	}
}

// drop frees the memory of message number i (from 1).
func (m *naiveRing) drop(i int) {
	msg := m.msgs[i-1]
	for pos := msg.start; pos < msg.end; pos += Align {
		m.owner[pos%m.size/Align] = 0
	}
}

func (m *naiveRing) compare(t *testing.T, tx *Tx, rx *Rx, tokens []naiveToken) {
	if tx.Sent() != m.sent || tx.Acked() != m.acked {
		t.Fatalf("sent %d acked %d, want %d %d", tx.Sent(), tx.Acked(), m.sent, m.acked)
	}
	if rx.Released() != m.released() {
		t.Fatalf("released %d, want %d", rx.Released(), m.released())
	}
	if uint64(rx.Retained()) != rx.Placed()-m.released() || uint64(rx.Untold()) != m.released()-m.told {
		t.Fatalf("retained %d untold %d", rx.Retained(), rx.Untold())
	}
	oldest, ok := rx.Oldest()
	if ok != (len(tokens) > 0) {
		t.Fatalf("Oldest %v with %d retentions", ok, len(tokens))
	}
	for _, token := range tokens {
		if token.token.Seq() < oldest.Seq() {
			t.Fatalf("Oldest %d, but %d is retained", oldest.Seq(), token.token.Seq())
		}
	}
}

// FuzzWindow runs operations on both ends of a stream's flow control, honest
// ones and lies, and compares them with counts kept beside.
func FuzzWindow(f *testing.F) {
	f.Add(uint16(100), []byte{0, 50, 1, 0, 2, 20, 3, 0, 3, 1})
	f.Add(uint16(1), []byte{0, 1, 1, 1, 2, 1, 3, 1, 4, 200, 5, 3})
	f.Add(uint16(65535), []byte{0, 255, 0, 255, 1, 1, 1, 1, 2, 255, 6, 9, 3, 1, 3, 2})

	f.Fuzz(func(t *testing.T, window uint16, ops []byte) {
		var send SendWindow
		var recv RecvWindow
		size := int(window)
		if size == 0 {
			if recv.Init(0) == nil {
				t.Fatal("window of 0 taken")
			}
			return
		}
		must(send.Init(uint32(size)))
		must(recv.Init(uint32(size)))
		var flight []int
		sent, arrived, consumed, granted := 0, 0, 0, size

		for i := 0; i+1 < len(ops); i += 2 {
			arg := int(ops[i+1])
			switch ops[i] % 7 {
			case 0:
				n := min(arg*arg, send.Avail())
				send.Take(n)
				sent += n
				flight = append(flight, n)
			case 1:
				if len(flight) == 0 {
					continue
				}
				if err := recv.Arrive(flight[0]); err != nil {
					t.Fatalf("honest data refused: %v", err)
				}
				arrived += flight[0]
				flight = flight[1:]
			case 2:
				n := min(arg*arg, recv.Buffered())
				recv.Consume(n)
				consumed += n
			case 3: // tell, and perhaps lose it
				if !recv.UpdateDue() && arg%2 == 0 {
					continue
				}
				granted = int(recv.TakeUpdate())
				if arg%3 == 0 {
					continue
				}
				if err := send.Grant(uint64(granted)); err != nil {
					t.Fatalf("honest grant refused: %v", err)
				}
			case 4:
				if recv.Arrive(granted-arrived+1+arg) == nil {
					t.Fatal("data beyond the window taken")
				}
			case 5:
				if err := send.Grant(uint64(max(0, int(send.Granted())-arg))); err != nil {
					t.Fatalf("stale grant refused: %v", err)
				}
			case 6:
				if send.Grant(uint64(sent)+MaxWindow+1+uint64(arg)) == nil {
					t.Fatal("grant beyond the largest window taken")
				}
			}
			if int(send.Sent()) != sent || recv.Buffered() != arrived-consumed {
				t.Fatalf("sent %d, want %d; buffered %d, want %d", send.Sent(), sent, recv.Buffered(), arrived-consumed)
			}
			if int(send.Granted()) > granted || granted > consumed+size {
				t.Fatalf("granted %d to the sender, %d by the receiver, at most %d", send.Granted(), granted, consumed+size)
			}
			if send.Avail() == 0 && consumed == sent && send.Granted() == uint64(granted) && !recv.UpdateDue() {
				t.Fatal("the sender waits, everything was consumed, and no update is due")
			}
		}
	})
}
