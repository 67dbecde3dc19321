//go:build race

package serial

// Enter is called by the data path after a promise. What it touches it touches without the
// mutex, which would order calls that overlap.
func (s *Section) Enter() {
	s.touched++
	s.Mutex.Lock()
}

// Leave ends what Enter began.
func (s *Section) Leave() {
	s.Mutex.Unlock()
	s.touched++
}

// entered makes the data path, which has Mutex, one that has called Enter.
func (s *Section) entered() {}
