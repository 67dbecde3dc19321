package verbs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Context is an open device. All methods may be called from any goroutine.
type Context struct {
	drv   ContextDriver
	attr  DeviceAttr
	trace atomic.Pointer[Tracer]
	once  sync.Once
	err   error // of the first Close

	mu  sync.Mutex
	mrs map[*MR]struct{} // open MRs, guarded by mu; nil once the context is closed
	// objects are those that are open, guarded by mu. pool is charged with them and the
	// context, nil if there is none.
	objects int
	pool    *Pool
	// cqs and srqs name what events are about, guarded by mu.
	cqs  map[CQDriver]*CQ
	srqs map[SRQDriver]*SRQ
}

func openWith(p Provider, name string) (*Context, *Error) {
	drv, err := p.Open(name)
	if err != nil {
		return nil, &Error{Op: "open", Device: name, Err: err, Hint: hintFor("open", err)}
	}
	attr, err := drv.QueryDevice()
	if err != nil {
		drv.Close()
		return nil, &Error{Op: "query device", Device: name, Err: err, Hint: hintFor("query device", err)}
	}
	return &Context{
		drv: drv, attr: attr, mrs: make(map[*MR]struct{}),
		cqs: make(map[CQDriver]*CQ), srqs: make(map[SRQDriver]*SRQ),
	}, nil
}

// Name returns the device's name.
func (c *Context) Name() string { return c.attr.Name }

// Attr returns the device's limits and capabilities, read when it was opened.
func (c *Context) Attr() DeviceAttr { return c.attr }

// QueryPort returns the present state of a port; ports count from 1.
func (c *Context) QueryPort(port uint8) (PortAttr, error) {
	if err := c.checkPort(port); err != nil {
		return PortAttr{}, c.wrap("query port", err)
	}
	a, err := c.drv.QueryPort(port)
	return a, c.wrap("query port", err)
}

func (c *Context) checkPort(port uint8) error {
	if port == 0 || int(port) > c.attr.PhysPorts {
		return fmt.Errorf("%w: port %d, the device has %d", ErrInvalid, port, c.attr.PhysPorts)
	}
	return nil
}

// QueryGIDs returns the GID table of a port without its empty rows.
func (c *Context) QueryGIDs(port uint8) ([]GIDEntry, error) {
	if err := c.checkPort(port); err != nil {
		return nil, c.wrap("query GIDs", err)
	}
	g, err := c.drv.QueryGIDs(port)
	return g, c.wrap("query GIDs", err)
}

// QueryGID returns a row of the GID table of a port. The GID of an empty row is zero. Indexes are
// below PortAttr.GIDTableLen.
func (c *Context) QueryGID(port uint8, index int) (GIDEntry, error) {
	const op = "query GID"
	attr, err := c.QueryPort(port)
	if err != nil {
		return GIDEntry{}, err
	}
	if index < 0 || index >= attr.GIDTableLen {
		return GIDEntry{}, c.wrap(op, fmt.Errorf("%w: GID %d, the port has %d", ErrInvalid, index, attr.GIDTableLen))
	}
	list, err := c.drv.QueryGIDs(port)
	for _, g := range list {
		if g.Index == index {
			return g, nil
		}
	}
	return GIDEntry{Index: index, Port: port}, c.wrap(op, err)
}

// PKeyIndex returns the index of the first row of a port's P_Key table that has key. The error
// wraps ErrInvalid if none has.
func (c *Context) PKeyIndex(port uint8, key uint16) (uint16, error) {
	const op = "find P_Key"
	attr, err := c.QueryPort(port)
	if err != nil {
		return 0, err
	}
	for i := range attr.PKeyTblLen {
		switch k, err := c.drv.QueryPKey(port, i); {
		case err != nil:
			return 0, c.wrap(op, err)
		case k == key:
			return i, nil
		}
	}
	return 0, c.wrap(op, fmt.Errorf("%w: port %d has no P_Key %#x", ErrInvalid, port, key))
}

// QueryPKey returns a partition key of a port: membership in the top bit, which is 1 for a
// full member, and the partition below, 0x7fff for the default one. Indexes are those of
// QPAttr.PKeyIndex, below PortAttr.PKeyTblLen. An empty row is 0. A port of iWARP has none.
func (c *Context) QueryPKey(port uint8, index uint16) (uint16, error) {
	key, err := c.queryPKey(port, index)
	return key, c.wrap("query P_Key", err)
}

func (c *Context) queryPKey(port uint8, index uint16) (uint16, error) {
	if err := c.checkPort(port); err != nil {
		return 0, err
	}
	attr, err := c.drv.QueryPort(port)
	if err != nil {
		return 0, err
	}
	if index >= attr.PKeyTblLen {
		return 0, fmt.Errorf("%w: P_Key %d, the port has %d", ErrInvalid, index, attr.PKeyTblLen)
	}
	return c.drv.QueryPKey(port, index)
}

// RNRs returns how often a request that was sent through the device found no
// receive at its peer, which then asked to try again (receiver not ready). A
// device of the kernel counts each such answer, for all processes and since it
// was made, the software HCA each such request, for this process. counted is
// false if the device does not tell. It may read files: it is for statistics.
func (c *Context) RNRs() (count uint64, counted bool) {
	if d, ok := c.drv.(RNRDriver); ok {
		return d.RNRs()
	}
	return 0, false
}

// WallTime is when WC.Timestamp was, by the clock of the host, or of the network that sets the
// device's. Ask soon: the timestamp may go round, and clocks are set. The error wraps
// ErrUnsupported on a device without CapWallTime.
func (c *Context) WallTime(timestamp uint64) (time.Time, error) {
	const op = "convert timestamp"
	d, ok := c.drv.(WallTimeDriver)
	if !ok || !c.attr.Caps.Has(CapWallTime) {
		return time.Time{}, c.wrap(op, ErrUnsupported)
	}
	t, err := d.WallTime(timestamp)
	return t, c.wrap(op, err)
}

// Clock returns what the clock of WC.Timestamp shows now, in ticks (DeviceAttr.ClockHz of them are
// a second). The error wraps ErrUnsupported on a device without CapClock.
func (c *Context) Clock() (uint64, error) {
	const op = "read clock"
	d, ok := c.drv.(ClockDriver)
	if !ok || !c.attr.Caps.Has(CapClock) {
		return 0, c.wrap(op, ErrUnsupported)
	}
	ticks, err := d.Clock()
	return ticks, c.wrap(op, err)
}

// Driver returns the provider's object, for a connection manager backend that
// belongs to the same provider.
func (c *Context) Driver() ContextDriver { return c.drv }

// NextEvent waits for the next asynchronous event of the device. It returns
// an error that wraps ErrClosed once the context is closed. One goroutine
// should call it; events are not duplicated.
func (c *Context) NextEvent() (AsyncEvent, error) {
	ev, err := c.drv.NextEvent()
	if err != nil {
		return AsyncEvent{}, c.wrap("next event", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return AsyncEvent{Type: ev.Type, QPN: ev.QPN, Port: ev.Port, CQ: c.cqs[ev.CQ], SRQ: c.srqs[ev.SRQ]}, nil
}

// Close closes the device. What was made from it and is still open is torn
// down with it.
func (c *Context) Close() error {
	c.once.Do(func() {
		c.err = c.wrap("close", c.drv.Close())
		c.trace.Load().forget(c)
		c.mu.Lock()
		defer c.mu.Unlock()
		for mr := range c.mrs {
			unpin(mr.pinned)
		}
		c.mrs = nil
		clear(c.cqs)
		clear(c.srqs)
		if c.pool != nil {
			c.pool.release(c.attr.Name, Usage{Handles: 1, Objects: c.objects})
		}
		c.objects = 0
	})
	return c.err
}

// keep lists an MR as open, and reports false if the context is closed.
func (c *Context) keep(mr *MR) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mrs == nil {
		return false
	}
	c.mrs[mr] = struct{}{}
	return true
}

// drop takes an MR off the list and reports whether it was on it: whoever
// drops it accounts for its bytes.
func (c *Context) drop(mr *MR) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, open := c.mrs[mr]
	delete(c.mrs, mr)
	return open
}

// recount sets the bytes of an MR that has changed, of which some more than before are counted.
func (c *Context) recount(mr *MR, bytes, more int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mrs == nil { // Close has counted out what it was
		unpin(more)
		return
	}
	unpin(mr.pinned + more - bytes)
	mr.pinned = bytes
}

// ended is wrap for what closes an object: one that is closed already stays so. After any other
// error it is open still.
func (c *Context) ended(op string, err error) error {
	switch {
	case errors.Is(err, ErrClosed):
		return nil
	case err == nil:
		c.discharge()
	}
	return c.wrap(op, err)
}

// destroyed reports whether an object is gone after that answer of its driver.
func destroyed(err error) bool { return err == nil || errors.Is(err, ErrClosed) }

func (c *Context) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Device: c.attr.Name, Err: err, Hint: hintFor(op, err)}
}
