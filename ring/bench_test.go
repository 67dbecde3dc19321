package ring

import "testing"

// One message through both ends: reserve, place, and credit for what is due.
func BenchmarkMessage(b *testing.B) {
	tx, rx := newTx(b, 1<<20), newRx(b, 1<<20)
	var theirs SendSlots
	var ours RecvSlots
	must(theirs.Init(256))
	must(ours.Init(256))
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := tx.Reserve(80); !ok {
			b.Fatal("no room")
		}
		theirs.Take()
		if _, err := rx.Place(80); err != nil {
			b.Fatal(err)
		}
		ours.Post(1)
		if rx.CreditDue() || ours.CreditDue() {
			must(tx.Credit32(uint32(rx.TakeCredit())))
			must(theirs.Credit16(uint16(ours.TakeCredit())))
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
