package rnet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/loop"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
	"github.com/seed-b9b531af/ramjet/rnet/internal/settings"
)

// Dial is net.Dial: it connects to the address on the network, over the
// fastest transport that reaches it. For "tcp", "tcp4" and "tcp6" that is a
// [*Conn] if a ramjet listener is there and a *net.TCPConn otherwise; for "unix" a
// *Conn or a *net.UnixConn, for "unixpacket" a [*MessageConn] or a *net.UnixConn. Other
// networks go to package net.
func Dial(network, address string) (net.Conn, error) {
	return plainDialer.Dial(network, address)
}

// plainDialer is the zero Dialer: one of each Dial would have to be allocated.
var plainDialer Dialer

// DialTimeout is Dial with a time limit for the whole of it.
func DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	d := Dialer{Timeout: timeout}
	return d.Dial(network, address)
}

// Dialer is net.Dialer with a choice of transport. The fields that net.Dialer
// has too mean the same; FallbackDelay and the two of keep-alive are for what
// goes over TCP. The zero value is ready to use, and any number of goroutines may use
// one. Dials share sessions if Transport, Device, Dir, Allow, Profile and
// Limits are the same, also those of several Dialers.
type Dialer struct {
	Timeout         time.Duration
	Deadline        time.Time
	FallbackDelay   time.Duration
	KeepAlive       time.Duration
	KeepAliveConfig net.KeepAliveConfig
	Resolver        *net.Resolver
	// LocalAddr, Control and ControlContext are about sockets. A dial with a
	// LocalAddr goes over TCP. Control and ControlContext are called as package net
	// does, with a TCP socket, for each address that is tried; an error forbids the
	// address. Where they set an option of that socket that says where packets go, or
	// as whose, the dial goes over TCP; docs/differences.md has the list. If
	// Transport demands another transport, none of the three is looked at.
	LocalAddr      net.Addr
	Control        func(network, address string, c syscall.RawConn) error
	ControlContext func(ctx context.Context, network, address string, c syscall.RawConn) error

	// Transport and Profile take precedence over the environment.
	Transport Transport
	Profile   Profile
	// Device is the name of the only device to use, "rxe0" or the like, or
	// with a port, "mlx5_0/2", the only port of it. If empty, RNET_DEVICE has
	// it, and if that is empty too, the address decides: the software HCA for
	// this host, and otherwise the device and port of the interface to which
	// the routing table leads.
	Device string
	// Dir is the directory in which listeners of this host in other network namespaces
	// are looked for, see ListenConfig.
	Dir string
	// Allow says whose listeners may be dialed beside those of this process's user.
	Allow Allow
	// Choose, if set, is asked before each dial, on the goroutine that dials,
	// and takes precedence over Transport unless it returns "".
	Choose func(ctx context.Context, network, address string) Transport
	// Lanes is over how many sessions the streams to one address are spread,
	// 1 if 0 or less: more lanes let more CPUs work for one address. With Dedicated
	// it means nothing.
	Lanes int
	// Dedicated gives each connection a session of its own, which ends with
	// it.
	Dedicated bool
	// HeadStart is how long a dial waits for the session to an address before
	// it connects to it over TCP, 200 ms if 0, and not at all if negative. Where there is
	// something to wait for, because the listener is at work on the session or many are
	// being set up, it waits up to ten times as long, not counting the time in which the
	// listener's process runs, and ten seconds at most. Half of the time that the dial
	// itself has is left for TCP.
	HeadStart time.Duration
	// Limits are the sizes of new sessions.
	Limits Limits
	// Logger gets each decision at debug level. If nil, RNET_LOG=debug
	// prints them to standard error.
	Logger *slog.Logger

	mptcp multipath
}

const defaultHeadStart = 200 * time.Millisecond

// Dial is DialContext without a context.
func (d *Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialContext connects to the address. ctx bounds the dial, not the
// connection. Unless a transport is demanded the dial fails only if TCP has, and
// the error is what package net says then, or a setting cannot be read. Where
// one is demanded the error is a *net.OpError that says why it cannot be
// had: fallback.Classify returns the reason.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	request := loop.DialOf(ctx)
	if request != nil {
		conn, err := d.dial(ctx, network, address, request.Poller)
		if c, ok := conn.(*Conn); ok {
			request.Stream = &c.st
		}
		return conn, err
	}
	conn, err := d.dial(ctx, network, address, nil)
	if c, ok := conn.(*Conn); ok && !isUnix(network) {
		c.asked = uint8(slices.Index(tcpNetworks[:], network))
	}
	return conn, err
}

// dial is DialContext for a stream that an event loop is to serve, or nobody
// if p is nil.
func (d *Dialer) dial(ctx context.Context, network, address string, p *mux.Poller) (net.Conn, error) {
	if network != "tcp" && network != "tcp4" && network != "tcp6" && (!isUnix(network) || p != nil) {
		return d.socketDialer().DialContext(ctx, network, address)
	}
	set, err := d.settings()
	a := attempt{d: d, set: *set, network: network, address: address, poller: p}
	if err == nil && d.Choose != nil {
		if t := d.Choose(ctx, network, address); t != "" {
			a.set.Transport, err = fallback.ParseTransport(string(t))
			a.chosen = true
		}
	}
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	if !isUnix(network) && a.tcpOnly() == fallback.None {
		if c := a.quick(ctx); c != nil {
			traceConnected(ctx, network, c)
			decided.Record(fallback.Decision{Addr: address, Transport: c.s.transport, Device: c.s.device})
			a.log(c.s.transport, c.s.device, fallback.None, 0, nil)
			return c, nil
		}
	}
	slow := a // allocated only now: what follows keeps it
	if isUnix(network) {
		return slow.dialUnix(ctx)
	}
	return slow.dial(ctx)
}

// settings returns what the Dialer and the environment together want.
func (d *Dialer) settings() (*settings.Settings, error) {
	return settings.Resolve(&settings.Wishes{
		Transport: string(d.Transport), Profile: string(d.Profile), Device: d.Device, Dir: d.Dir, Allow: softcm.Rules(d.Allow),
		Limits: settings.Limits(d.Limits), Logger: d.Logger,
	})
}

// attempt is one dial.
type attempt struct {
	d                *Dialer
	set              settings.Settings
	chosen           bool // by the Dialer's Choose
	network, address string
	poller           *mux.Poller // of the event loop that is to serve the stream; nil if none is
	begun            time.Time
	socket           softcm.UnixSocket // that is dialed, if one is
}

// own gives the attempt a Dialer of its own: what goes on after the dial must not look at that of the
// program, which may change it for the next one.
func (a *attempt) own() {
	d := *a.d
	a.d = &d
}

func (a *attempt) dial(ctx context.Context) (net.Conn, error) {
	a.begun = time.Now()
	if reason := a.tcpOnly(); reason != fallback.None {
		return a.dialTCP(ctx, reason, nil)
	}
	a.own()
	defer region("rnet.dial").End()
	ctx, cancel := a.limit(ctx)
	defer cancel()
	if a.set.Transport != fallback.Auto {
		conn, err := a.dialFast(ctx)
		if err != nil {
			a.record(a.set.Transport, "", fallback.Classify(err), err, true)
			return nil, a.opError(err)
		}
		c := conn.(*Conn)
		traceConnected(ctx, a.network, c)
		a.record(a.set.Transport, c.s.device, fallback.None, nil, false)
		return conn, nil
	}
	if reason, ok := negatives.Recall(a.remembered()); ok && reason.Nothing() {
		return a.dialTCP(ctx, reason, errNothingYet)
	} else if ok {
		return a.dialTCP(ctx, fallback.Remembered, fallback.Because(fallback.Remembered, errors.New(reason.Meaning())))
	}
	return a.dialRace(ctx)
}

// errNothingYet is why a dial went over TCP that did not look for anything else.
var errNothingYet = errors.New("rnet: nothing but TCP was there a moment ago")

// headStart is how long an accelerated dial may take before the dial goes on with TCP: no longer
// than half of the time that it has.
func (a *attempt) headStart(ctx context.Context) *fallback.HeadStart {
	hs := fallback.NewHeadStart(cmp.Or(a.d.HeadStart, defaultHeadStart))
	if end, ok := ctx.Deadline(); ok {
		hs.EndBy(time.Now().Add(time.Until(end) / 2))
	}
	return hs
}

// quick opens a stream on a session that lives, if there is one and the time
// for the dial is not over; nil if not.
func (a *attempt) quick(ctx context.Context) *Conn {
	if a.set.Transport == fallback.Auto && a.d.hasControl() {
		return nil // Choose is asked about each dial
	}
	if ctx.Err() != nil || a.d.Timeout < 0 || !a.d.Deadline.IsZero() && !time.Now().Before(a.d.Deadline) {
		return nil
	}
	key := a.key()
	return pool.quick(&key)
}

// tcpOnly returns the reason for which nothing but TCP is tried.
func (a *attempt) tcpOnly() fallback.Reason {
	switch {
	case a.set.Transport == fallback.TCP && a.chosen:
		return fallback.Callback
	case a.set.Transport == fallback.TCP:
		return fallback.Forced
	case a.set.Transport == fallback.Auto && fakeTime():
		return fallback.FakeTime
	case a.set.Transport == fallback.Auto && a.d.LocalAddr != nil:
		return fallback.SocketOptions
	}
	return fallback.None
}

// limit applies Timeout and Deadline, as net.Dialer does.
func (a *attempt) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	end := a.d.Deadline
	if a.d.Timeout != 0 {
		if t := time.Now().Add(a.d.Timeout); end.IsZero() || t.Before(end) {
			end = t
		}
	}
	if end.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, end)
}

func (a *attempt) dialSocket(ctx context.Context) (net.Conn, error) {
	return a.d.socketDialer().DialContext(ctx, a.network, a.address)
}

// dialSocketAfter is dialSocket after an accelerated dial that used up the last
// descriptors: its goroutines give them back in a moment.
func (a *attempt) dialSocketAfter(ctx context.Context) (net.Conn, error) {
	for pause := time.Millisecond; ; pause *= 2 {
		conn, err := a.dialSocket(ctx)
		if err == nil || !errors.Is(err, syscall.EMFILE) || pause > maxDescriptorPause {
			return conn, err
		}
		select { // ended by the clock or ctx
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

const maxDescriptorPause = 8 * time.Millisecond

func (a *attempt) dialTCP(ctx context.Context, reason fallback.Reason, why error) (net.Conn, error) {
	conn, err := a.dialSocket(ctx)
	if err != nil {
		why = err
		negatives.Forget(a.remembered()) // who is there next may be another server
	}
	a.record(a.plain(), "", reason, why, err != nil)
	return conn, err
}

// decide records and returns the result of a dial that could take any transport, and why
// that is not a stream if it is not.
func (a *attempt) decide(conn net.Conn, fastErr, err error) (net.Conn, error) {
	if conn != nil && fastErr == nil {
		negatives.Forget(a.remembered())
		s := conn.(*Conn).s
		a.record(s.transport, s.device, fallback.None, nil, false)
		return conn, nil
	}
	reason := fallback.Classify(fastErr)
	var late lateError
	// over TCP: without that, the address may just not be there
	if conn != nil && !errors.As(fastErr, &late) {
		negatives.Remember(a.remembered(), reason, a.begun)
	}
	why := fastErr
	if err != nil {
		why = err
		negatives.Forget(a.remembered())
	}
	a.record(a.plain(), "", reason, why, err != nil)
	return conn, err
}

// remembered is what negatives knows the address by: that one device does not
// lead there says nothing of the others, nor one directory of another, nor what one family of IP
// or one resolver makes of a name.
func (a *attempt) remembered() string {
	name := a.address
	if a.set.Device != (fallback.Device{}) {
		name = a.set.Device.String() + " " + name
	}
	if a.set.Dir != settings.DefaultDir || a.set.Allow != (settings.Allow{}) {
		name += " " + a.set.Dir + " " + a.set.Allow.Name()
	}
	if isUnix(a.network) {
		name = a.socket.String() + " " + name
	} else if a.network != "tcp" {
		name = a.network + " " + name
	}
	if a.d.Resolver != nil {
		name = fmt.Sprintf("%p %s", a.d.Resolver, name)
	}
	return name
}

// plain is the transport of package net.
func (a *attempt) plain() fallback.Transport {
	if isUnix(a.network) {
		return fallback.Unix
	}
	return fallback.TCP
}

// record counts the decision and prints it. failed says that err is the dial's, of which no connection came.
func (a *attempt) record(t fallback.Transport, device string, reason fallback.Reason, err error, failed bool) {
	took := time.Since(a.begun)
	decided.Record(fallback.Decision{
		Addr: a.address, Transport: t, Device: device, Reason: reason, Err: err, Failed: failed, At: a.begun.Add(took), Took: took,
	})
	a.log(t, device, reason, took, err)
}

// log prints the decision, if it is to be printed: to ask is cheap, and allocates nothing.
func (a *attempt) log(t fallback.Transport, device string, reason fallback.Reason, took time.Duration, err error) {
	if !a.set.Log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	a.set.Log.Debug("rnet: dial", "network", a.network, "address", a.address, "transport", t, "device", device, "reason", reason, "took", took, "err", err)
}

// dialFast opens a stream on a session to one of the address's hosts.
func (a *attempt) dialFast(ctx context.Context) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	addrs, err := a.resolve(ctx)
	if err != nil {
		return nil, err
	}
	for i, addr := range addrs {
		part, cancel := partOf(ctx, len(addrs)-i)
		c, _, failed := pool.open(part, a.key(), addr, a, openOptions{})
		cancel()
		if failed == nil {
			return c, nil
		}
		err = worse(err, failed)
		if ctx.Err() != nil {
			break // the others would only return the context's error
		}
	}
	return nil, err
}

// leastPart is the least time that one of several addresses gets, if there is as much.
const leastPart = 2 * time.Second

// partOf leaves an address its part of the time for the dial, as package net does: one that does
// not answer must not use up what is for those after it.
func partOf(ctx context.Context, addrs int) (context.Context, context.CancelFunc) {
	end, ends := ctx.Deadline()
	if !ends || addrs == 1 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, max(time.Until(end)/time.Duration(addrs), leastPart))
}

// resolve returns the addresses to try. A literal address costs no look-up.
func (a *attempt) resolve(ctx context.Context) ([]netip.AddrPort, error) {
	if ap, err := netip.ParseAddrPort(a.address); err == nil {
		return a.fitting([]netip.Addr{ap.Addr()}, ap.Port())
	}
	host, service, err := net.SplitHostPort(a.address)
	if err != nil {
		return nil, err
	}
	resolver := a.d.Resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	port, err := resolver.LookupPort(ctx, a.network, service)
	if err != nil {
		return nil, err
	}
	if host == "" { // the local host, as in package net
		return a.fitting([]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, uint16(port))
	}
	ips, err := resolver.LookupNetIP(hideLookUp(ctx), "ip"+a.network[len("tcp"):], host)
	if err != nil {
		return nil, err
	}
	return a.fitting(ips, uint16(port))
}

// fitting returns those addresses that are of the network, at a port.
func (a *attempt) fitting(ips []netip.Addr, port uint16) ([]netip.AddrPort, error) {
	if len(ips) == 1 && ips[0] == netip.IPv6Unspecified() { // this host, perhaps by IPv4, as in package net
		ips = append(ips, netip.IPv4Unspecified())
	}
	addrs := make([]netip.AddrPort, 0, len(ips))
	for _, ip := range ips {
		if fits(a.network, ip) {
			addrs = append(addrs, netip.AddrPortFrom(ip.Unmap(), port))
		}
	}
	if len(addrs) == 0 {
		return nil, &net.AddrError{Err: "no suitable address found", Addr: a.address}
	}
	return addrs, nil
}

func fits(network string, ip netip.Addr) bool {
	switch network {
	case "tcp4":
		return ip.Unmap().Is4()
	case "tcp6":
		return !ip.Unmap().Is4()
	}
	return true
}

// opError gives the error of a dial that may not fall back the form of
// package net.
func (a *attempt) opError(err error) error {
	return &net.OpError{Op: "dial", Net: a.network, Addr: a.addr(), Err: &transportError{a.set.Transport, err}}
}

// transportError says which transport was demanded and why it cannot be had.
type transportError struct {
	transport fallback.Transport
	err       error
}

func (e *transportError) Error() string {
	reason := fallback.Classify(e.err)
	text := "rnet: transport " + e.transport.String() + ": " + e.err.Error() + " [" + reason.String() + "]"
	if remedy := reason.Remedy(); remedy != "" {
		text += ": " + remedy
	}
	return text
}

func (e *transportError) Unwrap() error { return e.err }

// Timeout makes the OpError around it a timeout, if it is one.
func (e *transportError) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(e.err, &t) && t.Timeout()
}

// addr is the address as it was dialed.
func (a *attempt) addr() net.Addr {
	if isUnix(a.network) {
		return &net.UnixAddr{Name: a.address, Net: a.network}
	}
	return addrText(a.address)
}

// addrText is an address that was never resolved.
type addrText string

func (addrText) Network() string  { return "tcp" }
func (a addrText) String() string { return string(a) }

// key names the sessions that may serve the attempt.
func (a *attempt) key() poolKey {
	return poolKey{
		network: a.network, address: a.address, transport: a.set.Transport, device: a.set.Device, dir: a.set.Dir, allow: a.set.Allow,
		session: a.set.Session, lanes: max(1, a.d.Lanes), dedicated: a.d.Dedicated, resolver: a.d.Resolver, poller: a.poller, socket: a.socket,
	}
}
