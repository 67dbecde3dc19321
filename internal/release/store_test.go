package release

import (
	"sync/atomic"
	"testing"
)

// Whoever sees a value sees what was written before it.
func TestWhatWasWrittenBeforeIsSeen(t *testing.T) {
	const rounds = 200_000
	var word, other atomic.Uint64
	var data [rounds + 1]uint64 // plain: each is written once, before its number is stored
	done := make(chan struct{})
	go func() { // ends by itself
		defer close(done)
		for i := range uint64(rounds) {
			data[i+1] = i + 1
			Store(&word, i+1)
			Store(&other, i+1)
		}
	}()
	for seen := uint64(0); seen < rounds; {
		second := other.Load()
		now := word.Load()
		if now < second || now < seen || data[now] != now {
			t.Fatalf("%d after %d, the later word at %d, data %d", now, seen, second, data[now])
		}
		seen = now
	}
	<-done
}
