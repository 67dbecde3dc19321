//go:build amd64 || arm64

package ibverbs

import (
	"errors"
	"sync"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// lifetime is how long an object of the library is there. The library frees its memory
// whoever still uses it, so that is counted here.
type lifetime struct {
	mu    sync.Mutex
	users int  // guarded by mu: objects that are made of this one, and calls that name it
	ended bool // guarded by mu
}

// use keeps the object until release.
func (l *lifetime) use() error {
	l.mu.Lock() // ends with the call that destroys the object
	defer l.mu.Unlock()
	if l.ended {
		return verbs.ErrClosed
	}
	l.users++
	return nil
}

func (l *lifetime) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.users--
}

// during runs a call that names the object.
func (l *lifetime) during(f func() error) error {
	if err := l.use(); err != nil {
		return err
	}
	defer l.release()
	return f()
}

// alone runs a call that changes the object if nobody uses it.
func (l *lifetime) alone(f func() error) error {
	l.mu.Lock() // ends with the call that changes the object, or destroys it
	defer l.mu.Unlock()
	switch {
	case l.ended:
		return verbs.ErrClosed
	case l.users > 0:
		return verbs.ErrBusy
	}
	return f()
}

// end destroys the object if nobody uses it.
func (l *lifetime) end(destroy func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return verbs.ErrClosed
	}
	if l.users > 0 {
		return verbs.ErrBusy
	}
	err := destroy()
	l.ended = destroyed(err)
	return err
}

// destroyed reports whether an object is gone after that answer to the call that destroys it. After
// any other the library, whose drivers free what they have after the command alone, and the kernel
// have it as it was: it stays, and calls may name it, that one too. Of what others use it is EBUSY,
// but a driver of the kernel may say anything.
func destroyed(err error) bool { return err == nil || errors.Is(err, verbs.ErrClosed) }

// useAll keeps all of the objects, or none.
func useAll(list ...*lifetime) error {
	for i, l := range list {
		if err := l.use(); err != nil {
			releaseAll(list[:i]...)
			return err
		}
	}
	return nil
}

func releaseAll(list ...*lifetime) {
	for _, l := range list {
		l.release()
	}
}
