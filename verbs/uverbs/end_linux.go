package uverbs

import (
	"errors"
	"sync"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// ending is the end of an object at the kernel, which calls it by a handle. As
// soon as the object is destroyed, the kernel may give the number to the next
// one that is made. So commands run inside use where they name an object whose
// lock they do not hold, and inside once where they destroy it.
type ending struct {
	mu     sync.Mutex
	users  int  // guarded by mu: commands that run inside use
	closed bool // guarded by mu
}

// use runs commands that name the object. It is there until they have ended.
func (e *ending) use(commands func() error) error {
	e.mu.Lock() // ends with the command that destroys the object
	if e.closed {
		e.mu.Unlock()
		return verbs.ErrClosed
	}
	e.users++
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		e.users--
		e.mu.Unlock()
	}()
	return commands()
}

// useAll is use for several objects.
func useAll(ends []*ending, commands func() error) error {
	for _, e := range ends {
		inner := commands
		commands = func() error { return e.use(inner) }
	}
	return commands()
}

// once gives the command that destroys the object.
func (e *ending) once(destroy func() error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return verbs.ErrClosed
	}
	if e.users > 0 {
		return verbs.ErrBusy
	}
	err := destroy()
	e.closed = destroyed(err)
	return err
}

// destroyed reports whether an object is gone after that answer to the command that destroys it, or
// because its device is closed or was removed. After any other answer the kernel has it as it was
// (core/rdma_core.c, uobj_destroy) and the device may use its memory: it stays, and commands may
// name it, that one too. It is EBUSY of what others use, but a driver may say anything, and a process
// that gives commands by write(2) and has changed its user gets EACCES.
func destroyed(err error) bool { return err == nil || errors.Is(err, verbs.ErrClosed) }
