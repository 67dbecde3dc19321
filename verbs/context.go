package verbs

import (
	"sync"
	"sync/atomic"
)

// Context is an open device. All methods may be called from any goroutine.
type Context struct {
	drv    ContextDriver
	attr   DeviceAttr
	trace  atomic.Pointer[Tracer]
	closed atomic.Bool
	once   sync.Once
	err    error
}

func openWith(p Provider, name string) (*Context, error) {
	drv, err := p.Open(name)
	if err != nil {
		return nil, &Error{Op: "open", Device: name, Err: err}
	}
	attr, err := drv.QueryDevice()
	if err != nil {
		drv.Close()
		return nil, &Error{Op: "query device", Device: name, Err: err}
	}
	return &Context{drv: drv, attr: attr}, nil
}

// Name returns the device's name.
func (c *Context) Name() string { return c.attr.Name }

// Attr returns the device's limits and capabilities, read when it was opened.
func (c *Context) Attr() DeviceAttr { return c.attr }

// QueryPort returns the present state of a port; ports count from 1.
func (c *Context) QueryPort(port uint8) (PortAttr, error) {
	a, err := c.drv.QueryPort(port)
	return a, c.wrap("query port", err)
}

// QueryGIDs returns the GID table of a port without its empty rows.
func (c *Context) QueryGIDs(port uint8) ([]GIDEntry, error) {
	g, err := c.drv.QueryGIDs(port)
	return g, c.wrap("query GIDs", err)
}

// Driver returns the provider's object, for a connection manager backend that
// belongs to the same provider.
func (c *Context) Driver() ContextDriver { return c.drv }

// NextEvent waits for the next asynchronous event of the device. It returns
// an error that wraps ErrClosed once the context is closed. One goroutine
// should call it; events are not duplicated.
func (c *Context) NextEvent() (AsyncEvent, error) {
	ev, err := c.drv.NextEvent()
	return ev, c.wrap("next event", err)
}

// Close closes the device. What was made from it and is still open is torn
// down with it.
func (c *Context) Close() error {
	c.once.Do(func() {
		c.closed.Store(true)
		c.err = c.wrap("close", c.drv.Close())
	})
	return c.err
}

func (c *Context) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Device: c.attr.Name, Err: err, Hint: hintFor(op, err)}
}
