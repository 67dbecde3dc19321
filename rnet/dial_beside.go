package rnet

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http/httptrace"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// A dial that may take any transport goes the way of package net: that resolves
// the name, and tries its addresses one after the other or, those of the two
// families of IP, beside each other. Before it connects to an address it asks us
// (ControlContext), and we look there for a listener of streams. So
//
//   - a dial leads to the server to which net.Dial would lead,
//   - a server sees one connection of one dial: a stream is opened before TCP
//     connects to its address, or not at all,
//   - the look comes right before the connect. A server that starts listens for
//     streams first (listen_first.go), so a dial that connects to it over TCP would have
//     found that listener, unless both were opened between two system calls of the dial.
//
// What takes longer than the head start goes on in the background: later dials
// find the session. This one takes it only if TCP fails or hangs.
//
// Two addresses, one of each family, may be looked at side by side, and the looks do
// not wait for each other. But where a process of this host listens at the first
// address, TCP would be connected to it at once, and not come to the second: that has
// to wait until the first one's head start is over.
type beside struct {
	a    *attempt
	stop context.CancelFunc // ends what package net does
	over chan struct{}      // closed when package net has returned

	mu   sync.Mutex    // held for moments only
	done bool          // package net has returned: guarded by mu, as what follows
	conn *Conn         // the stream that was opened
	err  error         // why there is none
	late []*place      // of sessions that were too slow
	here chan struct{} // closed when the head start of a listener of this host is over; nil if there is none

	work sync.WaitGroup // the calls of watch
}

// errTaken is what package net is told of a connection that was made another way.
var errTaken = errors.New("rnet: the connection goes another way")

// dialBeside dials over TCP and looks for something faster on the way.
func (a *attempt) dialBeside(ctx context.Context) (net.Conn, error) {
	tcpCtx, stop := context.WithCancel(hideTaken(ctx))
	defer stop()
	b := &beside{a: a, stop: stop, over: make(chan struct{})}
	d := a.d.socketDialer()
	d.ControlContext = b.before
	conn, err := d.DialContext(tcpCtx, a.network, a.address)
	b.mu.Lock()
	b.done = true
	b.mu.Unlock()
	close(b.over)
	b.work.Wait() // ended by over
	switch {
	case b.conn != nil:
		if conn != nil {
			conn.Close() // to another address, at the same moment
		}
		return a.decide(b.conn, nil, nil)
	case errors.Is(err, syscall.EMFILE):
		b.err = worse(b.err, err) // there may have been no socket to look with
		conn, err = a.dialSocketAfter(ctx)
	case err != nil:
		if c, lateErr := b.await(ctx, err); c != nil {
			return a.decide(c, nil, nil)
		} else if lateErr != err { // TCP was stopped for the sake of a session that did not last
			conn, err = a.dialSocket(ctx)
		}
	}
	if b.err == nil {
		b.err = err // package net has not come to an address
	}
	return a.decide(conn, b.err, err)
}

// before is called by package net before it connects to an address.
func (b *beside) before(ctx context.Context, network, address string, c syscall.RawConn) error {
	tcpOnly, err := b.a.d.control(ctx, network, address, c)
	if err != nil {
		return err
	}
	if tcpOnly != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.err = worse(b.err, tcpOnly)
		return nil
	}
	addr, err := dialedAddr(network, address)
	if err != nil {
		return nil // package net knows better
	}
	b.giveWay(ctx)
	if ctx.Err() != nil {
		return errTaken
	}
	hs := b.a.headStart()
	defer hs.Stop()
	var found chan struct{} // closed when we go on
	w := wish{hs: hs, open: b.open, found: func(pl *place) {
		if found == nil && pl.here {
			found = b.isHere()
		}
	}}
	_, pl, err := pool.open(ctx, b.a.key(), addr, b.a, w)
	if found != nil {
		defer close(found)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil || b.conn != nil || b.done {
		return errTaken
	}
	b.err = worse(b.err, err)
	if pl != nil {
		b.late = append(b.late, pl)
		b.work.Go(func() { b.watch(pl) })
	}
	return nil
}

// open opens the one stream of the dial.
func (b *beside) open(s *session) (*Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil || b.done {
		return nil, errTaken
	}
	c, err := s.open()
	if err == nil {
		b.conn = c
		b.stop()
	}
	return c, err
}

// isHere notes that a process of this host listens at the address that is looked at.
func (b *beside) isHere() chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.here = make(chan struct{})
	return b.here
}

// giveWay waits as long as TCP would have connected to a listener of this host that
// was found at another address: for its head start, and then for as long as package
// net gives one connect before it begins the next.
func (b *beside) giveWay(ctx context.Context) {
	b.mu.Lock()
	here := b.here
	b.mu.Unlock()
	if here == nil {
		return
	}
	select {
	case <-here: // before we came: package net has waited
		return
	default:
	}
	select {
	case <-here: // ended by the head start
	case <-ctx.Done():
		return
	}
	const fallbackDelay = 300 * time.Millisecond // of net.Dialer
	select {
	case <-time.After(cmp.Or(b.a.d.FallbackDelay, fallbackDelay)):
	case <-ctx.Done():
	}
}

// tcpTime is how long TCP may take to connect before it is stopped for the sake
// of a session that is there. The server may have accepted what is stopped, so
// it must not be a connection that is about to be made.
const tcpTime = time.Second

// watch stops TCP if it hangs, and a session is there after all.
func (b *beside) watch(pl *place) {
	hangs := time.NewTimer(tcpTime)
	defer hangs.Stop()
	select {
	case <-hangs.C:
	case <-b.over:
		return
	}
	select {
	case <-pl.ready: // ended by setUp, which has a time limit
		if pl.err == nil {
			b.stop()
		}
	case <-b.over:
	}
}

// await waits for the sessions that were too slow, where TCP failed with err. It
// returns err if there is nothing to wait for, and another error if TCP would
// have to be tried again.
func (b *beside) await(ctx context.Context, err error) (*Conn, error) {
	for _, pl := range b.late {
		select {
		case <-pl.ready: // ended by setUp, which has a time limit
		case <-ctx.Done():
			return nil, err
		}
		if pl.err != nil {
			continue
		}
		if c, openErr := pl.s.openWhenTold(ctx, wish{}); openErr == nil {
			return c, nil
		}
		err = errTaken
	}
	return nil, err
}

// dialedAddr returns the address that package net is about to connect to. To
// dial no address means this host.
func dialedAddr(network, address string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if host == "" {
		host = netip.IPv4Unspecified().String()
		if network == "tcp6" {
			host = netip.IPv6Unspecified().String()
		}
	}
	addr, err := netip.ParseAddrPort(net.JoinHostPort(host, port))
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()), err
}

// untraced is a context without the httptrace.ClientTrace of its parent.
type untraced struct{ context.Context }

func (c untraced) Value(key any) any {
	v := c.Context.Value(key)
	if _, ok := v.(*httptrace.ClientTrace); ok {
		return nil
	}
	return v
}

// hideTaken returns ctx with a trace that is told of a connection that went
// another way as of one that was made.
func hideTaken(ctx context.Context) context.Context {
	trace := httptrace.ContextClientTrace(ctx)
	if trace == nil || trace.ConnectDone == nil {
		return ctx
	}
	return httptrace.WithClientTrace(untraced{ctx}, &httptrace.ClientTrace{
		DNSStart: trace.DNSStart, DNSDone: trace.DNSDone, ConnectStart: trace.ConnectStart,
		ConnectDone: func(network, addr string, err error) {
			if errors.Is(err, errTaken) {
				err = nil
			}
			trace.ConnectDone(network, addr, err)
		},
	})
}

// traceConnected tells the trace of ctx, if there is one, of a connection that
// was made without package net.
func traceConnected(ctx context.Context, network string, c *Conn) {
	trace := httptrace.ContextClientTrace(ctx)
	if trace == nil {
		return
	}
	addr := c.st.RemoteAddr().String()
	if trace.ConnectStart != nil {
		trace.ConnectStart(network, addr)
	}
	if trace.ConnectDone != nil {
		trace.ConnectDone(network, addr, nil)
	}
}
