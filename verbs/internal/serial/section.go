package serial

import (
	"sync"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/internal/race"
)

// Section is a mutex with two kinds of callers. Those of the data path Begin and End, all
// others Lock and Unlock. The zero value is a mutex for both.
//
// Once Promise has been called, calls on the data path never overlap: the program has said
// so. After some hundred of them (PaysAfter) they Enter and Leave: they say
// by a plain store that they are there, and look by a plain load
// whether somebody waits; the fence that this needs is made by the one who waits, in all threads of
// the process (membarrier(2)). So Lock takes microseconds, and longer where the process has lost
// the fence (fence).
//
//	word     written by
//	inside   the data path: it is there
//	wanted   who holds Mutex: the data path is to stay out
//
//	data path              who waits
//	inside = 1             wanted = 1
//	look at wanted         a fence in all threads
//	                       look at inside
//
// Either the data path sees wanted, and waits for Mutex, or the other sees inside, and waits
// for left, which the data path gives when it leaves.
//
// Under the race detector all callers take Mutex, and the data path touches a variable that
// only the promise guards: calls that overlap are reported.
type Section struct {
	sync.Mutex        // of the data path if there is no promise, else of who waits for it
	Promised   bool   // the promise is made use of; written by the data path, under Mutex
	calls      uint32 // how many more before the promise is made use of; 0: none is, or it is; as Promised
	inside     Word
	wanted     atomic.Uint32 // written under Mutex
	left       chan struct{} // has room for one; made with Promised
	//lint:ignore U1000 used under the race detector
	touched uint // by the data path
}

// Promise is called before all else where the program promises that calls on the data path
// do not overlap. The section stays a mutex for the first calls (PaysAfter), and until the fence is
// ready, which takes milliseconds the first time in a process: for good if there is none.
func (s *Section) Promise() {
	s.calls = PaysAfter
	if race.Enabled {
		s.calls = 1 // the sooner the promise is looked after
	}
	prepareFence()
}

// PaysAfter is after how many calls on the data path the promise is made use of. What is made, used
// a little, and closed has a dozen of Locks or more, of which each costs as much with the fence as some
// hundred calls save. A variable for tests.
var PaysAfter uint32 = 256

// Begin is Enter, or Lock of the mutex without a promise. Where a nanosecond counts the
// caller looks at Promised itself, for the compiler to inline Enter.
func (s *Section) Begin() {
	if s.Promised {
		s.Enter()
		return
	}
	s.Mutex.Lock()
	if s.calls > 0 {
		s.count()
	}
}

// count counts a call, and makes use of the promise if it is time to. The data path has Mutex:
// whoever takes it next sees what is done here.
func (s *Section) count() {
	if s.calls--; s.calls > 0 {
		return
	}
	switch fenceState() {
	case fenceReady:
		s.left, s.Promised = make(chan struct{}, 1), true
		s.entered()
	case fenceUnknown:
		s.calls = 1
	}
}

// End ends what Begin began. The caller may look at Promised as before Begin.
func (s *Section) End() {
	if s.Promised {
		s.Leave()
	} else {
		s.Mutex.Unlock()
	}
}

// Lock waits until the data path has left, and keeps it out.
func (s *Section) Lock() {
	s.Mutex.Lock()
	if !s.Promised || race.Enabled {
		return
	}
	s.wanted.Store(1)
	fence()
	for s.inside.Load() != 0 {
		<-s.left // by Leave, or by await
	}
}

// Unlock lets the data path in.
func (s *Section) Unlock() {
	if s.Promised {
		s.wanted.Store(0)
	}
	s.Mutex.Unlock()
}

// Outlast returns when the calls have ended that were in one of the sections when it was called.
// Those that begin later see what the caller has stored before. It is Lock and Unlock of each,
// but with one fence for all.
func Outlast(sections []*Section) {
	promised := false
	for _, s := range sections {
		s.Mutex.Lock() // ends with whoever has it
		promised = promised || s.Promised
		s.Mutex.Unlock()
	}
	if !promised || race.Enabled {
		return
	}
	fence()
	for _, s := range sections {
		if s.inside.Load() != 0 {
			s.Lock() // ends with the call
			//lint:ignore SA2001 waiting for the holder is the purpose
			s.Unlock()
		}
	}
}

// await waits outside until nobody wants the section. Whoever wants it next takes Mutex after
// that, and sees inside.
func (s *Section) await() {
	s.inside.Store(0)
	s.giveLeft()
	s.Mutex.Lock() // ends with whoever holds it
	s.inside.Store(1)
	s.Mutex.Unlock()
}

// giveLeft wakes whoever waits for the data path, who looks at inside again. It takes a token
// that nobody has waited for first: a send to a full channel would return without the
// channel's lock, which is the fence between the store to inside and the look
// for somebody who waits.
func (s *Section) giveLeft() {
	select {
	case <-s.left:
	default:
	}
	select {
	case s.left <- struct{}{}:
	default:
	}
}
