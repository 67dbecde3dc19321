package softcm

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
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

// mayHave reports whether a name may be one of the listener's, at some time.
func (l *listener) mayHave(entry string) bool {
	if !l.addr.Addr().IsUnspecified() {
		return entry == l.addr.String()
	}
	at, all := strings.CutSuffix(entry, "+")
	target, err := netip.ParseAddrPort(at)
	return all && err == nil && l.serves(target)
}

// directory returns the one in which to meet, nil if there is none.
func (f *fabric) directory() *samehost.Directory {
	if f.meetAt == "" {
		return nil
	}
	if f.rules.anyUser() {
		return samehost.DirectoryOfUnknown(f.meetAt)
	}
	return samehost.DirectoryAt(f.meetAt)
}

// meetElsewhere is meet for an address that is none of this host's namespace.
func (f *fabric) meetElsewhere(dir *samehost.Directory, target netip.AddrPort) (*route, error) {
	r, err := f.meet(dir, target)
	if errors.Is(err, rcm.ErrNoListener) {
		kind := rcm.ErrDirectory
		if !f.asked && errors.Is(dir.Err(), fs.ErrNotExist) {
			kind = rcm.ErrNoRoute
		}
		return nil, fmt.Errorf("%w: %w, and %v", kind, errElsewhere, err)
	}
	return r, err
}

// meet looks for a listener in the directory.
func (f *fabric) meet(dir *samehost.Directory, target netip.AddrPort) (*route, error) {
	list, err := f.dialMet(dir, target)
	if errors.Is(err, rcm.ErrNoListener) {
		return nil, nobodyIn(dir, dir.Err())
	}
	if err != nil {
		return nil, err
	}
	source, err := sourceTowards(target)
	if err != nil {
		for _, c := range list {
			c.sock.Close()
		}
		return nil, nobodyIn(dir, err)
	}
	return f.routeTo(list, source, target), nil
}

// nobodyIn is the ErrNoListener of a directory. why may be nil.
func nobodyIn(dir *samehost.Directory, why error) error {
	if why != nil {
		return fmt.Errorf("%w that is known in %s: %v", rcm.ErrNoListener, dir.Path(), why)
	}
	return fmt.Errorf("%w that is known in %s", rcm.ErrNoListener, dir.Path())
}

// routeTo returns the route to those who were met.
func (f *fabric) routeTo(list []candidate, source netip.Addr, target netip.AddrPort) *route {
	r := &route{
		device: f.device, local: netip.AddrPortFrom(source, sourcePort()), remote: target,
		candidates: list, key: f.rules.Key,
	}
	first := list[0]
	if i := slices.IndexFunc(list, func(c candidate) bool { return c.known }); i >= 0 {
		first = list[i]
	}
	r.sock.Store(first.sock)
	r.known.Store(first.known)
	return r
}

// dialMet connects to the listener that a user has in the directory: ours comes first.
// Others that may not be met, or are busy, are passed over if somebody else is there. With a key
// there may be several candidates, and which of them has the key is not known yet. In the directory
// of a user whom the rules name, only sockets of that user are asked. Elsewhere the owner may be
// anybody, and a socket with a full queue is ignored: a stranger can fill the queue of his own
// socket.
func (f *fabric) dialMet(dir *samehost.Directory, target netip.AddrPort) (list []candidate, err error) {
	names := entriesFor(target)
	sock, failed := asSocket(dir.Dial(unix.SOCK_SEQPACKET, policy(f.allow), os.Geteuid(), names...))
	if failed == nil {
		sock.met = true
		return []candidate{{sock, true}}, nil
	}
	var sockets []func() (*socket, error)
	for _, user := range f.rules.Users {
		sockets = append(sockets, func() (*socket, error) {
			return asSocket(dir.Dial(unix.SOCK_SEQPACKET, everybody, int(user), names...))
		})
	}
	if f.rules.look() {
		for _, place := range dir.Places() {
			sockets = append(sockets, func() (*socket, error) {
				sock, err := asSocket(dir.DialIn(unix.SOCK_SEQPACKET, everybody, place, names...))
				if errors.Is(err, rcm.ErrBusy) {
					err = rcm.ErrNoListener
				}
				return sock, err
			})
		}
	}
	seen := make(map[samehost.SocketID]bool)
	for _, dial := range sockets {
		if len(list) == maxCandidates {
			break
		}
		sock, err := dial()
		if err != nil {
			if errors.Is(failed, rcm.ErrNoListener) {
				failed = err
			}
			continue
		}
		if seen[sock.To()] {
			sock.Close()
			continue
		}
		seen[sock.To()] = true
		sock.met = true
		known := f.knows(sock.Conn)
		switch {
		case len(f.rules.Key) > 0 && !sock.Peer().SameUser():
			list = append(list, candidate{sock, known})
		case known:
			for _, c := range list {
				c.sock.Close()
			}
			return []candidate{{sock, true}}, nil
		default:
			sock.Close()
			if !errors.Is(failed, rcm.ErrPeerDenied) {
				failed = f.denies(sock)
			}
		}
	}
	if len(list) > 0 {
		return list, nil
	}
	return nil, failed
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

// open makes a listener in the directory. mu is held.
func (m *meeting) open() error {
	ln, err := m.dir.Listen(m.cfg)
	if err != nil {
		return err
	}
	return m.serve(ln)
}

// serve serves who comes to a listener in the directory, which is the meeting's, or closed.
// mu is held.
func (m *meeting) serve(ln *samehost.Listener) error {
	if err := ln.Serve(func(c *samehost.Conn) { m.l.shake(&socket{Conn: c, met: true, at: ln.ID()}) }); err != nil {
		ln.Close()
		return err
	}
	m.ln = ln
	return nil
}

func (m *meeting) close() {
	if ln := m.leave(); ln != nil {
		ln.Close()
	}
}

// leave ends the care for the names, and returns the listener that has them, nil if there is
// none. It may be called again.
func (m *meeting) leave() *samehost.Listener {
	meetings.remove(m)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return m.ln
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
