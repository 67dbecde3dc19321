//go:build !race

package serial

// Enter is called by the data path after a promise.
func (s *Section) Enter() {
	s.inside.Store(1)
	if s.wanted.Load() != 0 {
		s.await()
	}
}

// Leave ends what Enter began.
func (s *Section) Leave() {
	s.inside.Store(0)
	if s.wanted.Load() != 0 {
		s.giveLeft()
	}
}

// entered makes the data path, which has Mutex, one that has called Enter.
func (s *Section) entered() {
	s.inside.Store(1)
	s.Mutex.Unlock() // a fence
}
