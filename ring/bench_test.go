package ring

import "testing"

// One message through both ends: reserve, stamp, place, apply, and a credit
// message when one is due.
func BenchmarkMessage(b *testing.B) {
	x, y := newLinks(b, LinkConfig{TxSize: 1 << 20, RxSize: 1 << 20, SendDepth: 256, RecvDepth: 256, CreditLen: 32})
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := x.Send(80); !ok {
			b.Fatal("no room")
		}
		stamp := x.Stamp()
		if _, err := y.Rx.Place(80); err != nil {
			b.Fatal(err)
		}
		y.RecvSlots.Post(1)
		if err := y.Apply(stamp); err != nil {
			b.Fatal(err)
		}
		if y.CreditDue() {
			if err := x.Apply(y.Stamp()); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkReserve(b *testing.B) {
	tx := newTx(b, 1<<20)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := tx.Reserve(80); !ok {
			tx.acked = tx.sent
		}
	}
}

func BenchmarkRoom(b *testing.B) {
	tx := newTx(b, 1<<20)
	sum := 0
	b.ReportAllocs()
	for b.Loop() {
		sum += tx.Room()
	}
	_ = sum
}

func BenchmarkPlace(b *testing.B) {
	rx := newRx(b, 1<<20)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := rx.Place(80); err != nil {
			b.Fatal(err)
		}
	}
}

// A message that is retained, with 100 others that are: the list does not
// matter.
func BenchmarkRetainFree(b *testing.B) {
	rx := newRx(b, 1<<20)
	var held [100]Token
	for i := range held {
		_, _ = rx.Place(80)
		held[i] = rx.Retain()
	}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		rx.Free(held[i])
		if _, err := rx.Place(80); err != nil {
			b.Fatal(err)
		}
		held[i] = rx.Retain()
		if i++; i == len(held) {
			i = 0
		}
	}
}

func BenchmarkWindow(b *testing.B) {
	var send SendWindow
	var recv RecvWindow
	must(send.Init(65536))
	must(recv.Init(65536))
	b.ReportAllocs()
	for b.Loop() {
		n := min(send.Avail(), 80)
		send.Take(n)
		if err := recv.Arrive(n); err != nil {
			b.Fatal(err)
		}
		recv.Consume(n)
		if recv.UpdateDue() {
			if err := send.Grant(recv.TakeUpdate()); err != nil {
				b.Fatal(err)
			}
		}
	}
}
