package softcm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"golang.org/x/sys/unix"
)

// The dialer's side: Resolve connects the bootstrap socket, Connect sends REQ
// over it, takes REP, moves the QP and sends RTU.

// Resolve connects to the listener of addr on this host and keeps the
// connection in the Route.
func (f *fabric) Resolve(ctx context.Context, addr netip.AddrPort) (rcm.Route, error) {
	r, err := f.resolve(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("rcm: resolve %v: %w", addr, err)
	}
	return r, nil
}

func (f *fabric) resolve(ctx context.Context, addr netip.AddrPort) (*route, error) {
	if ctx.Err() != nil {
		return nil, handshake.ContextError(ctx)
	}
	if f.socket != nil {
		return f.resolveUnix()
	}
	target, err := targetOf(addr)
	if dir := f.directory(); dir != nil && errors.Is(err, errElsewhere) && mayMeet(target.Addr()) {
		return f.meetElsewhere(dir, target)
	}
	if err != nil {
		return nil, err
	}
	names := f.namesFor(target)
	sock, err := dial(names[:], f.allow)
	if mayBeAnothers(err) && !f.rules.none() {
		var r *route
		if r, sock, err = f.resolveAllowed(target, err); r != nil {
			return r, nil
		}
	}
	if err != nil {
		return nil, err
	}
	r := &route{
		device: f.device,
		local:  netip.AddrPortFrom(sourceFor(target.Addr()), sourcePort()),
		remote: target,
	}
	r.sock.Store(sock)
	return r, nil
}

// resolveAllowed looks for a listener at an address of this network namespace that the rules
// let in: in the directory, where it may show a key, and then under the names of the
// namespace. before is the error of the look for one of our user, which is returned if
// nothing more is known.
func (f *fabric) resolveAllowed(target netip.AddrPort, before error) (*route, *socket, error) {
	if dir := f.directory(); dir != nil && mayMeet(target.Addr()) {
		r, err := f.meet(dir, target)
		if err == nil {
			return r, nil, nil
		}
		if errors.Is(before, rcm.ErrNoListener) || !errors.Is(before, rcm.ErrBusy) && (errors.Is(err, rcm.ErrPeerDenied) || errors.Is(err, rcm.ErrBusy)) {
			before = err
		}
	}
	if !f.rules.byKernel() {
		return nil, nil, before
	}
	for _, name := range f.namesFor(target) {
		sock, err := asSocket(samehost.Dial(unix.SOCK_SEQPACKET, everybody, name))
		var full *samehost.FullError
		if errors.As(err, &full) && full.UID >= 0 && slices.ContainsFunc(f.rules.Users, samehost.Peer{UID: uint32(full.UID)}.IsUser) {
			return nil, nil, err // to that one TCP would lead too
		}
		if err != nil { // also that the queue is full, which may be that of a stranger
			continue
		}
		if f.knows(sock.Conn) {
			return nil, sock, nil
		}
		if !errors.Is(before, rcm.ErrBusy) {
			before = f.denies(sock)
		}
		sock.Close()
	}
	return nil, nil, before
}

// mayBeAnothers reports whether somebody may listen whom only the rules let in, after a look
// for those who are let in without.
func mayBeAnothers(err error) bool {
	var full *samehost.FullError
	return errors.Is(err, rcm.ErrNoListener) || errors.Is(err, rcm.ErrPeerDenied) || errors.As(err, &full)
}

// The ports that TCP would choose from by default
// (net.ipv4.ip_local_port_range). A software connection needs no port; it has
// one so that its addresses look like TCP's and differ within a process.
const (
	firstSourcePort = 32768
	sourcePorts     = 60999 - firstSourcePort + 1
)

var nextSourcePort atomic.Uint32

func init() { nextSourcePort.Store(rand.Uint32()) }

func sourcePort() uint16 { return uint16(firstSourcePort + nextSourcePort.Add(1)%sourcePorts) }

type route struct {
	device string
	local  netip.AddrPort
	remote netip.AddrPort
	sock   atomic.Pointer[socket]
	used   atomic.Bool // Connect or Close has taken sock
	unix   *UnixSocket // beside which the listener stands, nil: none
	asks   atomic.Bool // Connect waits to be asked for what it has to show

	// In a directory, and if our user is not that of the listener: who may have the key.
	candidates []candidate
	key        []byte
	known      atomic.Bool // sock leads to one that may be met, and not to anybody who is there
}

func (r *route) Device() string             { return r.device }
func (r *route) Port() uint8                { return onlyPort }
func (r *route) LocalAddr() netip.Addr      { return r.local.Addr() }
func (r *route) RemoteAddr() netip.AddrPort { return r.remote }

func (r *route) Close() error {
	if r.used.Swap(true) {
		return nil
	}
	r.close()
	return nil
}

func (r *route) close() {
	r.sock.Load().Close()
	for _, c := range r.candidates {
		if c.sock != r.sock.Load() {
			c.sock.Close()
		}
	}
}

func (r *route) Connect(ctx context.Context, qp *verbs.QP, p rcm.ConnParam) (rcm.Conn, error) {
	if r.used.Swap(true) {
		return nil, fmt.Errorf("rcm: connect %v: %w: route was used or closed", r.remote, verbs.ErrInvalid)
	}
	c, err := r.connect(ctx, qp, p)
	if err != nil {
		r.close()
		return nil, fmt.Errorf("rcm: connect %v: %w", r.remote, err)
	}
	return c, nil
}

func (r *route) connect(ctx context.Context, qp *verbs.QP, p rcm.ConnParam) (rcm.Conn, error) {
	p, err := handshake.Complete(withTimeout(p), qp, rcm.MaxRequestData)
	if err != nil {
		return nil, err
	}
	local, err := localEndpoint(qp)
	if err != nil {
		return nil, err
	}
	if err := r.settle(ctx); err != nil {
		return nil, err
	}
	if err := toInit(qp, &p); err != nil {
		return nil, handshake.Failed(qp, err)
	}
	c, err := newConn(qp, true, r.local, r.remote)
	if err != nil {
		return nil, handshake.Failed(qp, err)
	}
	var rep handshake.Message
	err = r.sock.Load().interruptible(ctx, func() error {
		if rep, err = r.exchange(&p, local); err != nil {
			return err
		}
		if err := toRTS(qp, &p, local, rep.From, handshake.Agree(&p, rep.Resources, rep.Depth)); err != nil {
			return err
		}
		return r.sock.Load().send(&handshake.Message{Kind: handshake.KindReady})
	})
	if err != nil {
		c.abandon()
		return nil, handshake.Failed(qp, err)
	}
	c.establish(r.sock.Load(), rep.Private)
	return c, nil
}

// settle has the listener's key shown, if there is one, before it learns of the QP.
func (r *route) settle(ctx context.Context) error {
	if len(r.candidates) == 0 || len(r.key) == 0 || r.sock.Load().Peer().SameUser() {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	c, err := settle(within, r.key, r.candidates)
	switch {
	case err != nil && ctx.Err() != nil:
		return handshake.ContextError(ctx)
	case errors.Is(err, errNoKey) && within.Err() != nil || errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w within %v", errNoKey, settleTime)
	case err != nil:
		return err
	}
	r.sock.Store(c.sock)
	r.known.Store(true)
	return nil
}

// exchange sends REQ and waits for the answer; the wait ends with the answer,
// the peer's hang-up or interruptible.
func (r *route) exchange(p *rcm.ConnParam, local handshake.Endpoint) (handshake.Message, error) {
	req := handshake.Message{
		Kind: handshake.KindRequest, From: local, Resources: p.ResponderResources, Depth: p.InitiatorDepth,
		Src: r.local, Dst: r.remote, Private: p.PrivateData,
	}
	err := r.request(&req)
	if err != nil && !errors.Is(err, errHungUp) {
		return handshake.Message{}, err
	}
	// A listener that closed the socket already may have said why.
	return r.sock.Load().expect(handshake.KindReply)
}

// request sends REQ, and at a Unix socket shows that this process may connect to it.
func (r *route) request(req *handshake.Message) error {
	if r.unix == nil {
		return r.sock.Load().send(req)
	}
	r.asks.Store(true)
	fd, err := r.show()
	r.asks.Store(false)
	if err != nil {
		return err
	}
	defer samehost.CloseReceived(fd)
	return r.sock.Load().sendShown(req, fd)
}

// Known reports whether the listener may be met, by the kernel's word or because it has shown
// the key. Until then nothing that it does is worth a wait: it may be a stranger's. It may be
// called while Connect runs.
func (r *route) Known() bool { return len(r.candidates) == 0 || r.known.Load() }

// Taken reports whether the listener's process has taken all that it was sent, or
// may yet do so: on a busy machine a process waits for long, but one that is stopped
// takes nothing. It may be called while Connect runs.
func (r *route) Taken() bool {
	if !r.Known() {
		return false
	}
	raw, err := r.sock.Load().SyscallConn()
	unread := 0 // where the connection has ended: then Connect is about to return
	if err == nil {
		raw.Control(func(fd uintptr) { unread, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	}
	return unread == 0 && !r.asks.Load() || !stopped(r.sock.Load().peer().PID)
}

// Ran returns for how many ticks of the clock the listener's process has run so far: while
// they become more it may be at work on the requests before this one. That of a process
// in another PID namespace is always 0. It may be called while Connect runs.
func (r *route) Ran() uint64 {
	if !r.Known() {
		return 0
	}
	return statOf(r.sock.Load().peer().PID).ticks
}

// stopped reports whether a process is, by a signal or by a debugger, or has ended. One in another
// PID namespace cannot be looked at, and is taken for one that is: nobody waits long
// for what may never come.
func stopped(pid int) bool {
	if pid == 0 {
		return true
	}
	s := statOf(pid)
	if s.state == 0 { // gone, if there is a /proc
		return statOf(os.Getpid()).state != 0
	}
	return s.stopped()
}

// processStat is what /proc says of a process.
type processStat struct {
	state byte
	ticks uint64 // of the clock in which it ran
}

// stopped reports whether the process is known to be stopped, by a signal or by a debugger.
func (s processStat) stopped() bool { return s.state == 'T' || s.state == 't' }

// statOf returns the zero processStat if /proc does not tell. One of another PID namespace, as a
// container may have, has other processes by the same numbers.
func statOf(pid int) (s processStat) {
	self, err := os.Readlink("/proc/self")
	if pid == 0 || err != nil || self != strconv.Itoa(os.Getpid()) {
		return s
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return s
	}
	// The fields follow the name, which is in brackets and may have some itself.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	const state, user, system = 0, 11, 12
	if len(fields) <= system {
		return s
	}
	for _, i := range []int{user, system} {
		n, err := strconv.ParseUint(string(fields[i]), 10, 64)
		if err != nil {
			return s
		}
		s.ticks += n
	}
	s.state = fields[state][0]
	return s
}
