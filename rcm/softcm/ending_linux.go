package softcm

import "sync"

// ending is the end of a connection. Of a context it has what is needed, in a tenth of the
// memory.
type ending struct {
	mu     sync.Mutex
	err    error         // nil until then; guarded by mu
	closed chan struct{} // made when somebody asks; guarded by mu
	calls  []func()      // guarded by mu
}

// end is the end, for err, which is not nil. What comes after the first has no effect.
func (e *ending) end(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return
	}
	e.err = err
	if e.closed != nil {
		close(e.closed)
	}
	for _, f := range e.calls {
		go f()
	}
	e.calls = nil
}

// why returns the error of the end, nil before.
func (e *ending) why() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// done returns a channel that is closed at the end.
func (e *ending) done() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed == nil {
		e.closed = make(chan struct{})
		if e.err != nil {
			close(e.closed)
		}
	}
	return e.closed
}

// after has f called at the end, on a goroutine of its own.
func (e *ending) after(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		go f()
		return
	}
	e.calls = append(e.calls, f)
}
