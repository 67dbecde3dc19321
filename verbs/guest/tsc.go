package main

import "time"

// The guest's kernel keeps time with the time stamp counter, and finds out its
// frequency by waiting for a timer. A busy host can interrupt that at the worst
// moment: guests were seen whose clocks ran eleven times too fast. So the frequency
// is measured here, and the kernel is told.

// tscPoint is a moment by two clocks.
type tscPoint struct {
	counter uint64
	time    time.Time
}

// tscInterval is how far apart two moments should be: a microsecond of error
// between them is then 20 millionths.
const tscInterval = 50 * time.Millisecond

// tscNow returns the present moment. Of several tries the shortest counts, in
// which nothing came between the clocks.
func tscNow() (point tscPoint) {
	shortest := time.Duration(1<<63 - 1)
	for range 20 {
		before := time.Now()
		counter := readTSC()
		if took := time.Since(before); took < shortest {
			shortest = took
			point = tscPoint{counter: counter, time: before.Add(took / 2)}
		}
	}
	return point
}

// frequency returns the counter's frequency in kHz, from p until now, or 0 if
// there is no counter.
func (p tscPoint) frequency() int64 {
	time.Sleep(tscInterval - time.Since(p.time))
	now := tscNow()
	return int64(float64(now.counter-p.counter) / now.time.Sub(p.time).Seconds() / 1000)
}
