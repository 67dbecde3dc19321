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
type tcpRace struct {
	a    *attempt
	stop context.CancelFunc // ends what package net does
	over chan struct{}      // closed when package net has returned

	mu   sync.Mutex        // held for moments only
	done bool              // package net has returned: guarded by mu, as what follows
	conn *Conn             // the stream that was opened
	won  string            // the address that it was opened at
	err  error             // why there is none
	late []*pendingSession // that were too slow
	here chan struct{}     // closed when the head start of a listener of this host is over; nil if there is none

	work sync.WaitGroup // the calls of watch
}

// errTaken is what package net is told of a connection that was made another way.
var errTaken = errors.New("rnet: the connection goes another way")

// dialRace dials over TCP and looks for something faster on the way.
func (a *attempt) dialRace(ctx context.Context) (net.Conn, error) {
	r := &tcpRace{a: a, over: make(chan struct{})}
	tcpCtx, stop := context.WithCancel(r.hideTaken(ctx))
	defer stop()
	r.stop = stop
	d := a.d.socketDialer()
	d.ControlContext = r.before
	conn, err := d.DialContext(tcpCtx, a.network, a.address)
	r.mu.Lock()
	r.done = true
	r.mu.Unlock()
	close(r.over)
	r.work.Wait() // ended by over
	switch {
	case r.conn != nil:
		if conn != nil {
			conn.Close() // to another address, at the same moment
		}
		return a.decide(r.conn, nil, nil)
	case errors.Is(err, syscall.EMFILE):
		r.err = worse(r.err, err) // there may have been no socket to look with
		conn, err = a.dialSocketAfter(ctx)
	case err != nil:
		if c, lateErr := r.await(ctx, err); c != nil {
			traceConnected(ctx, a.network, c)
			return a.decide(c, nil, nil)
		} else if lateErr != err { // TCP was stopped for the sake of a session that did not last
			conn, err = a.dialSocket(ctx)
		}
	}
	if r.err == nil {
		r.err = err // package net has not come to an address
	}
	conn, err = a.decide(conn, r.err, err)
	for _, ps := range r.late {
		pool.outdate(a.remembered(), ps)
	}
	return conn, err
}

// before is called by package net before it connects to an address.
func (r *tcpRace) before(ctx context.Context, network, address string, c syscall.RawConn) error {
	tcpOnly, err := r.a.d.control(ctx, network, address, c)
	if err != nil {
		return err
	}
	if tcpOnly != nil {
		return r.toTCP(tcpOnly, nil)
	}
	addr, err := dialedAddr(network, address)
	if err != nil {
		return r.toTCP(err, nil) // package net knows better: an IPv4 address with a zone, say
	}
	r.giveWay(ctx)
	if ctx.Err() != nil {
		return r.ended(ctx)
	}
	hs := r.a.headStart(ctx)
	defer hs.Stop()
	var found chan struct{} // closed when we go on
	o := openOptions{hs: hs, open: r.open, found: func(ps *pendingSession) {
		if found == nil && ps.here {
			found = r.isHere()
		}
	}}
	_, ps, err := pool.open(ctx, r.a.key(), addr, r.a, o)
	if found != nil {
		defer close(found)
	}
	if err != nil {
		err = r.toTCP(err, ps)
		if err == nil && ctx.Err() != nil {
			err = r.ended(ctx) // package net would connect all the same
		}
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.won = address
	return errTaken
}

// toTCP notes why there is no stream to an address, and the session that was too slow, if one
// was. It returns nil if package net is to connect: the dial may have come to its end meanwhile.
func (r *tcpRace) toTCP(why error, slow *pendingSession) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn != nil || r.done {
		return errTaken
	}
	r.err = worse(r.err, why)
	if slow != nil {
		r.late = append(r.late, slow)
		r.work.Go(func() { r.watch(slow) })
	}
	return nil
}

// ended returns what package net is told where the time for an address is over: if no stream was
// opened at another one, what it would have said itself.
func (r *tcpRace) ended(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn != nil {
		return errTaken
	}
	_, err := new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:1") // dials nothing
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// open opens the one stream of the dial.
func (r *tcpRace) open(s *session) (*Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn != nil || r.done {
		return nil, errTaken
	}
	c, err := s.open()
	if err == nil {
		r.conn = c
		r.stop()
	}
	return c, err
}

// isHere notes that a process of this host listens at the address that is looked at.
func (r *tcpRace) isHere() chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.here = make(chan struct{})
	return r.here
}

// giveWay waits as long as TCP would have connected to a listener of this host that
// was found at another address: for its head start, and then for as long as package
// net gives one connect before it begins the next.
func (r *tcpRace) giveWay(ctx context.Context) {
	r.mu.Lock()
	here := r.here
	r.mu.Unlock()
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
	case <-time.After(cmp.Or(r.a.d.FallbackDelay, fallbackDelay)):
	case <-ctx.Done():
	}
}

// tcpTime is how long TCP may take to connect before it is stopped for the sake
// of a session that is there. The server may have accepted what is stopped, so
// it must not be a connection that is about to be made: it is between the first two repetitions of a SYN,
// a second and three after the first try.
const tcpTime = 1500 * time.Millisecond

// watch stops TCP if it hangs, and a session is there after all.
func (r *tcpRace) watch(ps *pendingSession) {
	hangs := time.NewTimer(tcpTime)
	defer hangs.Stop()
	select {
	case <-hangs.C:
	case <-r.over:
		return
	}
	select {
	case <-ps.ready: // ended by setUp, which has a time limit
		if ps.err == nil {
			r.stop()
		}
	case <-r.over:
	}
}

// await waits for the sessions that were too slow, where TCP failed with err. It
// returns err if there is nothing to wait for, and another error if TCP would
// have to be tried again.
func (r *tcpRace) await(ctx context.Context, err error) (*Conn, error) {
	for _, ps := range r.late {
		select {
		case <-ps.ready: // ended by setUp, which has a time limit
		case <-ctx.Done():
			return nil, err
		}
		if ps.err != nil {
			continue
		}
		if c, openErr := ps.s.openWhenTold(ctx, openOptions{}); openErr == nil {
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

// hideLookUp returns ctx with a trace that is not told of connections, for the look-up of a name,
// as package net has it: a resolver connects to servers of names.
func hideLookUp(ctx context.Context) context.Context {
	trace := httptrace.ContextClientTrace(ctx)
	if trace == nil {
		return ctx
	}
	return httptrace.WithClientTrace(untraced{ctx}, &httptrace.ClientTrace{
		DNSStart: trace.DNSStart, DNSDone: trace.DNSDone,
		ConnectStart: func(string, string) {}, // in the place of that of ctx
	})
}

// hideTaken returns ctx with a trace that is told of the address at which a stream was
// opened as of a connection that was made, and of others that are given up for its sake
// as of a dial that was canceled.
func (r *tcpRace) hideTaken(ctx context.Context) context.Context {
	trace := httptrace.ContextClientTrace(ctx)
	if trace == nil || trace.ConnectDone == nil {
		return ctx
	}
	return httptrace.WithClientTrace(untraced{ctx}, &httptrace.ClientTrace{
		DNSStart: trace.DNSStart, DNSDone: trace.DNSDone, ConnectStart: trace.ConnectStart,
		ConnectDone: func(network, addr string, err error) {
			if errors.Is(err, errTaken) {
				err = r.outcome(addr, err)
			}
			trace.ConnectDone(network, addr, err)
		},
	})
}

// outcome is what a trace is told of an address that was not dialed over TCP.
func (r *tcpRace) outcome(addr string, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.won == addr {
		return nil
	}
	var op *net.OpError
	if !errors.As(err, &op) {
		return context.Canceled
	}
	canceled := *op
	canceled.Err = context.Canceled
	return &canceled
}

// traceConnected tells the trace of ctx, if there is one, of a connection that
// was made without package net.
func traceConnected(ctx context.Context, network string, c *Conn) {
	trace := httptrace.ContextClientTrace(ctx)
	if trace == nil {
		return
	}
	addr := c.RemoteAddr().String()
	if trace.ConnectStart != nil {
		trace.ConnectStart(network, addr)
	}
	if trace.ConnectDone != nil {
		trace.ConnectDone(network, addr, nil)
	}
}
