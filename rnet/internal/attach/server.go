package attach

import "sync"

// Server has the endpoint of this process as long as somebody holds it. Its
// methods may be called from any goroutine.
type Server struct {
	// Document makes what a reader gets. It is called once for each
	// reader, for one after the other, on a goroutine that ends when no reader is
	// left, with no lock of the server held.
	Document func() ([]byte, error)

	mu      sync.Mutex
	holders int       // guarded by mu
	open    *endpoint // nil if there is none; guarded by mu
}

// Hold opens the endpoint if it is the first. Each Hold must be followed by a
// Release, also one that returns an error: there is no endpoint then until all
// have released it.
func (s *Server) Hold() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holders++; s.holders == 1 {
		s.open, err = listen(s.Document)
	}
	return err
}

// Release closes the endpoint after the last Hold. It does not wait for a
// reader.
func (s *Server) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holders--; s.holders == 0 && s.open != nil {
		s.open.close()
		s.open = nil
	}
}
