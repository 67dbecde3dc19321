package rnet

import "time"

// fakeTime reports whether the caller is in a bubble of testing/synctest. Its clock
// stands still while a goroutine of the bubble waits for a socket, and the bubble does
// not end before all its goroutines have: a session that is dialed there, or accepted
// by a listener made there, would neither end nor let the bubble end. Nothing tells
// but that the clock is decades away from that of the process.
func fakeTime() bool {
	apart := time.Since(processBegan) // by the monotonic clocks of both
	return apart < -fakeTimeApart || apart > fakeTimeApart
}

var processBegan = time.Now()

const fakeTimeApart = 10 * 365 * 24 * time.Hour
