package uverbs

import (
	"errors"
	"sync"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// ending is the end of an object that is nothing but a handle at the kernel.
type ending struct {
	mu     sync.Mutex
	closed bool // guarded by mu
}

// once gives the command that destroys the object. One that is busy is still
// there; after any other answer it is not.
func (e *ending) once(destroy func() error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return verbs.ErrClosed
	}
	err := destroy()
	e.closed = !errors.Is(err, verbs.ErrBusy)
	return err
}
