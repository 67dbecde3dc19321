//go:build !linux

package harness

import "time"

// sleeper wakes a goroutine at a time, as exactly as time.Sleep does.
type sleeper struct{}

func newSleeper() *sleeper { return &sleeper{} }

func (s *sleeper) sleep(d time.Duration) { time.Sleep(d) }

func (s *sleeper) close() {}
