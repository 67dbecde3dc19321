package softcm

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"golang.org/x/sys/unix"
)

// Processes of this host in other network namespaces meet in a directory
// (samehost.Directory), where a listener has a name for each address that it serves.
// An address means there what it means in a network: it has one owner. So
//
//   - loopback and link-local addresses are not in it;
//   - a listener on all addresses has a name for each one of its namespace, as they
//     come and go, beside which one on a single address may stand, and comes first;
//   - a dial looks there for addresses that are not of its own namespace, and to
//     which its routing table knows a way.
//
// The QPs of such a connection are not paired by the abstract names of their devices,
// but over a second connection to the listener's socket, which begins with PAIR. It has
// to come from the process from which REQ came, as far as the kernel tells them apart.

// mayMeet reports whether an address names a host in a network.
func mayMeet(ip netip.Addr) bool { return ip.IsGlobalUnicast() && ip.Zone() == "" }

// entriesFor lists the names in a directory under which a listener may serve target, the
// most specific first.
func entriesFor(target netip.AddrPort) []string {
	return []string{target.String(), target.String() + "+"}
}

// entriesOf lists the names of a listener.
func (l *listener) entriesOf() ([]string, error) {
	if !l.addr.Addr().IsUnspecified() {
		return []string{l.addr.String()}, nil
	}
	host, err := addressesOfHost()
	if err != nil {
		return nil, err
	}
	var list []string
	for ip := range host {
		if mayMeet(ip) && handshake.Serves(l.addr.Addr(), l.v6Only, ip) {
			list = append(list, netip.AddrPortFrom(ip, l.addr.Port()).String()+"+")
		}
	}
	slices.Sort(list)
	return list, nil
}

// directory returns the one in which to meet, nil if there is none.
func (f *fabric) directory() *samehost.Directory {
	if f.meetAt == "" {
		return nil
	}
	if len(f.rules.Key) > 0 {
		return samehost.DirectoryOfUnknown(f.meetAt)
	}
	return samehost.DirectoryAt(f.meetAt)
}

// meet looks for a listener in the directory.
func (f *fabric) meet(dir *samehost.Directory, target netip.AddrPort) (*route, error) {
	nobody := func(why any) error {
		kind := rcm.ErrDirectory
		if !f.asked && errors.Is(dir.Err(), fs.ErrNotExist) {
			kind = rcm.ErrNoRoute
		}
		return fmt.Errorf("%w: %w, and none that is known in %s: %v", kind, errElsewhere, dir.Path(), why)
	}
	list, err := f.dialMet(dir, target)
	if errors.Is(err, rcm.ErrNoListener) {
		return nil, nobody(cause(dir.Err(), err))
	}
	if err != nil {
		return nil, err
	}
	source, err := sourceTowards(target)
	if err != nil {
		for _, c := range list {
			c.sock.Close()
		}
		return nil, nobody(err)
	}
	r := &route{
		device: f.device, local: netip.AddrPortFrom(source, sourcePort()), remote: target,
		dir: dir, place: list[0].place, candidates: list, key: f.rules.Key,
	}
	r.sock.Store(list[0].sock)
	return r, nil
}

// dialMet connects to the listener that a user has in the directory: ours comes first.
// Others that may not be met, or are busy, are passed over if somebody else is there. With a
// key there may be several, of whom nobody knows yet which has it, if one has.
func (f *fabric) dialMet(dir *samehost.Directory, target netip.AddrPort) (list []candidate, err error) {
	names := entriesFor(target)
	own := strconv.Itoa(os.Geteuid())
	sock, failed := asSocket(dir.Dial(unix.SOCK_SEQPACKET, policy(f.allow), os.Geteuid(), names...))
	if failed == nil {
		sock.met = true
		return []candidate{{sock, true, own}}, nil
	}
	var places []string
	for _, user := range f.rules.Users {
		places = append(places, strconv.Itoa(int(user)))
	}
	if f.rules.look() {
		places = append(places, dir.Places()...)
	}
	seen := make(map[string]bool)
	for _, place := range places {
		if seen[place] || len(list) == maxCandidates {
			continue
		}
		seen[place] = true
		sock, err := asSocket(dir.DialIn(unix.SOCK_SEQPACKET, everybody, place, names...))
		if err != nil {
			if errors.Is(failed, rcm.ErrNoListener) {
				failed = err
			}
			continue
		}
		sock.met = true
		known := f.knows(sock.Conn)
		switch {
		case len(f.rules.Key) > 0 && !sock.Peer().SameUser():
			list = append(list, candidate{sock, known, place})
		case known:
			for _, c := range list {
				c.sock.Close()
			}
			return []candidate{{sock, true, place}}, nil
		default:
			sock.Close()
			if !errors.Is(failed, rcm.ErrPeerDenied) {
				failed = fmt.Errorf("%w: process %d of user %d listens", rcm.ErrPeerDenied, sock.Peer().PID, sock.Peer().UID)
			}
		}
	}
	if len(list) > 0 {
		return list, nil
	}
	return nil, failed
}

func everybody(samehost.Peer) bool { return true }

// knows reports whether the kernel's word is enough to let a peer in that came by the
// directory.
func (f *fabric) knows(c *samehost.Conn) bool {
	p := c.Peer()
	if allow := policy(f.allow); allow != nil && allow(p) || allow == nil && p.SameUser() {
		return true
	}
	return slices.ContainsFunc(f.rules.Users, p.IsUser) || c.InGroup(f.rules.Groups)
}

func cause(first, err error) error {
	if first != nil {
		return first
	}
	return err
}

// sourceTowards returns the address from which TCP would reach target in a network. The
// error is that there is no way to it, in which case TCP would not reach it either.
func sourceTowards(target netip.AddrPort) (netip.Addr, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(target)) // sends nothing
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// pairer is a QP of the software HCA.
type pairer interface {
	PairBy(dials bool, connect func(over <-chan struct{}) (*samehost.Conn, error))
}

func pairerOf(qp *verbs.QP) (pairer, error) {
	p, ok := qp.Driver().(pairer)
	if !ok {
		return nil, fmt.Errorf("%w: the QP's device pairs by itself", verbs.ErrUnsupported)
	}
	return p, nil
}

// pairWith has a QP dial its peer at the listener that has sent REP.
func (r *route) pairWith(qp *verbs.QP, local, peer handshake.Endpoint) error {
	p, err := pairerOf(qp)
	if err != nil {
		return err
	}
	with, proven := r.sock.Load().Peer(), r.sock.Load().proven
	p.PairBy(true, func(over <-chan struct{}) (*samehost.Conn, error) {
		same := func(p samehost.Peer) bool { return p == with }
		c, err := r.dir.DialIn(unix.SOCK_SEQPACKET, same, r.place, entriesFor(r.remote)...)
		if err != nil {
			return nil, err
		}
		s := &socket{Conn: c, met: true}
		if proven {
			if err := s.until(over, func() error { return s.proveToListener(r.key, false) }); err != nil {
				s.Close()
				return nil, err
			}
		}
		if err := s.send(&handshake.Message{Kind: handshake.KindPair, From: local, To: peer}); err != nil {
			s.Close()
			return nil, err
		}
		return c, nil
	})
	return nil
}

// pairKey names two QPs, that of the dialer first.
type pairKey struct{ from, to end }

type end struct {
	gid verbs.GID
	qpn uint32
}

func keyOf(from, to handshake.Endpoint) pairKey {
	return pairKey{end{from.GID, from.QPN}, end{to.GID, to.QPN}}
}

// awaited is a connection for a QP that is to come from a process.
type awaited struct {
	l      *listener
	key    pairKey
	from   samehost.Peer
	proven bool                // and it has the key
	conn   chan *samehost.Conn // one waits at most
}

// await has the connection that begins with PAIR given to a QP. forget must be called
// when the QP is not connected any more.
func (l *listener) await(qp *verbs.QP, from *socket, key pairKey) (*awaited, error) {
	p, err := pairerOf(qp)
	if err != nil {
		return nil, err
	}
	a := &awaited{l: l, key: key, from: from.Peer(), proven: from.proven, conn: make(chan *samehost.Conn, 1)}
	l.mu.Lock()
	l.pairs[key] = a
	l.mu.Unlock()
	p.PairBy(false, func(over <-chan struct{}) (*samehost.Conn, error) {
		select { // ends with the connection, or with the QP's wait for it
		case c := <-a.conn:
			return c, nil
		case <-over:
			return nil, net.ErrClosed
		}
	})
	return a, nil
}

// forget may be called more than once, and for nil.
func (a *awaited) forget() {
	if a == nil {
		return
	}
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	if a.l.pairs[a.key] == a {
		delete(a.l.pairs, a.key)
	}
	select {
	case c := <-a.conn:
		c.Close()
	default:
	}
}

// pair gives a connection that began with PAIR to the QP that it is for, and reports
// whether there is one.
func (l *listener) pair(sock *socket, m handshake.Message) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.pairs[keyOf(m.From, m.To)]
	if a == nil || a.from != sock.Peer() || a.proven && !sock.proven {
		return false
	}
	select {
	case a.conn <- sock.Conn:
		return true
	default:
		return false
	}
}

// meeting is what a listener has in a directory.
type meeting struct {
	l   *listener
	dir *samehost.Directory
	cfg samehost.ListenConfig

	mu     sync.Mutex
	ln     *samehost.Listener // nil as long as the directory cannot be used; guarded by mu
	closed bool               // guarded by mu
}

// refresh gives the listener the names that it should have now, and reports whether it
// lacks one that somebody else has.
func (m *meeting) refresh() (lacks bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	const tries = 2
	for range tries {
		if m.closed || m.ln == nil && m.open() != nil {
			return false
		}
		want, err := m.l.entriesOf()
		if err != nil {
			return false
		}
		gone, err := m.ln.SetNames(want)
		if !gone {
			return errors.Is(err, syscall.EADDRINUSE)
		}
		m.ln.Close() // the directory was emptied, or is another one
		m.ln = nil
	}
	return false
}

func (m *meeting) open() error {
	ln, err := m.dir.Listen(m.cfg)
	if err != nil {
		return err
	}
	if err := ln.Serve(func(c *samehost.Conn) { m.l.shake(&socket{Conn: c, met: true, at: ln.ID()}) }); err != nil {
		ln.Close()
		return err
	}
	m.ln = ln
	return nil
}

func (m *meeting) close() {
	meetings.remove(m)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if m.ln != nil {
		m.ln.Close()
	}
}

// meetings are the listeners of the process that are in a directory. What they have there
// is looked after by a timer: their addresses come and go, directories appear, and
// names become free.
var meetings rounds

type rounds struct {
	mu    sync.Mutex
	all   map[*meeting]struct{} // guarded by mu
	timer *time.Timer           // nil while there are none; guarded by mu
	count int                   // of timers that were started: an older one does nothing; guarded by mu
}

const (
	roundTime = 2 * time.Second
	lackTime  = 100 * time.Millisecond // while somebody else has a name that we want
)

func (r *rounds) add(m *meeting) {
	next := roundTime
	if m.refresh() {
		next = lackTime
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = make(map[*meeting]struct{})
	}
	r.all[m] = struct{}{}
	if r.timer == nil || next < roundTime {
		r.startTimer(next)
	}
}

// startTimer has the next round begin. mu is held.
func (r *rounds) startTimer(after time.Duration) {
	if r.timer != nil {
		r.timer.Stop()
	}
	r.count++
	count := r.count
	r.timer = time.AfterFunc(after, func() { r.round(count) })
}

func (r *rounds) remove(m *meeting) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, m)
	if len(r.all) == 0 && r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
}

func (r *rounds) round(count int) {
	r.mu.Lock()
	var list []*meeting
	if r.timer != nil && r.count == count {
		for m := range r.all {
			list = append(list, m)
		}
	}
	r.mu.Unlock()
	next := roundTime
	for _, m := range list {
		if m.refresh() {
			next = lackTime
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer != nil && r.count == count {
		r.startTimer(next)
	}
}
