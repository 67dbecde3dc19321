package soft

import (
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/random"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"golang.org/x/sys/unix"
)

// A message of a datagram QP to a device of another process goes over a connection to the
// socket of that device, on which both have looked who the other is. Sending never waits:
// what finds no room is lost.

// datagramRoutes are the connections to devices of other processes. They close with
// the last datagram QP, and without one none is opened.
type datagramRoutes struct {
	table atomic.Pointer[map[verbs.GID]*datagramRoute] // replaced as a whole, under mu

	mu     sync.Mutex
	qps    int          // guarded by mu: datagram QPs of the device
	groups *knownGroups // guarded by mu, with what it holds: nil without QPs
}

// datagramRoute is a connection to a device, or the knowledge that there is none.
type datagramRoute struct {
	conn  *samehost.Conn // nil: nobody was there
	raw   syscall.RawConn
	until time.Time // for so long nobody is taken to be there
}

// maxRoutes is how many routes are kept, and nobodyTime how long a device that is not
// there is not dialed again.
const (
	maxRoutes  = 256
	nobodyTime = 10 * time.Millisecond
)

// begin is called for each datagram QP before it can send, and end when it cannot any
// more.
func (r *datagramRoutes) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.qps++; r.qps == 1 {
		r.groups = &knownGroups{byGID: make(map[verbs.GID]*knownGroup), ended: make(chan struct{})}
	}
}

// end reports whether it was the last one.
func (r *datagramRoutes) end() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.qps--; r.qps != 0 {
		return false
	}
	if table := r.table.Swap(nil); table != nil {
		for _, route := range *table {
			route.close()
		}
	}
	close(r.groups.ended)
	r.groups = nil
	return true
}

// send sends a message, or loses it.
func (r *datagramRoutes) send(to verbs.GID, message []byte) {
	old := r.route(to)
	if old != nil && old.send(message) {
		return
	}
	if route := r.open(to, old); route != nil {
		route.send(message) // it may be lost
	}
}

// route returns what is known of a device, or nil.
func (r *datagramRoutes) route(to verbs.GID) *datagramRoute {
	if table := r.table.Load(); table != nil {
		return (*table)[to]
	}
	return nil
}

// open dials a device to which old leads no more, and returns the new route to it, also
// if another sender has dialed meanwhile.
func (r *datagramRoutes) open(to verbs.GID, old *datagramRoute) *datagramRoute {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.qps == 0 {
		return nil // a search for members has outlived the QPs
	}
	if now := r.route(to); now != old {
		return now
	}
	route, err := dialDatagrams(to)
	if err != nil {
		if !gone(err) {
			return nil
		}
		route = &datagramRoute{until: time.Now().Add(nobodyTime)}
	}
	table := make(map[verbs.GID]*datagramRoute)
	if before := r.table.Load(); before != nil {
		maps.Copy(table, *before)
	}
	if old != nil {
		old.close()
		delete(table, to)
	}
	makeRoom(table)
	table[to] = route
	r.table.Store(&table)
	return route
}

// makeRoom takes routes out of a table that is full: those to nobody, or else any.
func makeRoom(table map[verbs.GID]*datagramRoute) {
	if len(table) < maxRoutes {
		return
	}
	maps.DeleteFunc(table, func(_ verbs.GID, route *datagramRoute) bool { return route.conn == nil })
	for gid, route := range table {
		if len(table) < maxRoutes {
			return
		}
		route.close()
		delete(table, gid)
	}
}

// send reports whether there is nothing more to do: the message has gone, or is lost.
func (route *datagramRoute) send(message []byte) bool {
	if route.conn == nil {
		return time.Now().Before(route.until)
	}
	err := sendPacket(route.raw, message)
	return err == nil || isFull(err)
}

func (route *datagramRoute) close() {
	if route.conn != nil {
		route.conn.Close()
	}
}

func dialDatagrams(to verbs.GID) (*datagramRoute, error) {
	conn, err := dialDevice(to)
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		err = sendPacket(raw, protocol.EncodeBare(protocol.KindDatagrams))
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &datagramRoute{conn: conn, raw: raw}, nil
}

// serveDatagrams delivers what comes over a connection until its end.
func (l *listener) serveDatagrams(conn *samehost.Conn) {
	if !l.keepDatagrams(conn) {
		conn.Close()
		return
	}
	raw, err := conn.SyscallConn()
	reset := false
	for buf := make([]byte, protocol.DatagramHeaderSize+protocol.MaxDatagram); err == nil; {
		var n int
		var fds []int
		// ends with a packet, hang-up, endDatagrams or close
		n, fds, err = samehost.Receive(raw, buf)
		if errors.Is(err, unix.ECONNRESET) && !reset {
			// Said once, before what is there: the peer has hung up, and has not read
			// our welcome.
			reset, err = true, nil
			continue
		}
		if err != nil {
			break
		}
		var h protocol.Datagram
		var payload []byte
		if h, payload, err = protocol.ParseDatagram(buf[:n]); len(fds) != 0 {
			samehost.CloseReceived(fds...)
			err = protocol.Malformed("datagram with descriptors")
		}
		if err == nil && (h.To.GID == l.dev.gid || h.To.GID.IsMulticast()) {
			l.dev.deliver(&h, payload)
		}
	}
	l.mu.Lock()
	delete(l.datagrams, conn)
	l.mu.Unlock()
	conn.Close()
}

// A group is found by other processes by the sockets that mark its members' devices:
// "@ramjet-group-", the GID of the group, a hyphen, the GID of the device, a hyphen, and what
// keeps strangers from having taken the name. Nobody connects to them.
const groupPrefix = "ramjet-group-"

func markGroup(gid, device verbs.GID) (*samehost.Listener, error) {
	var end [8]byte
	random.Read(end[:])
	return samehost.Listen(samehost.ListenConfig{
		Type: unix.SOCK_SEQPACKET, Name: "@" + groupPrefix + hex.EncodeToString(gid[:]) + "-" + hex.EncodeToString(device[:]) + "-" + hex.EncodeToString(end[:]),
	})
}

// memberOf returns the group and the device that a mark names.
func memberOf(name string) (group, device verbs.GID, ok bool) {
	rest, ok := strings.CutPrefix(name, "@"+groupPrefix)
	parts := strings.Split(rest, "-")
	if !ok || len(parts) != 3 {
		return group, device, false
	}
	for i, gid := range []*verbs.GID{&group, &device} {
		if len(parts[i]) != hex.EncodedLen(len(gid)) {
			return group, device, false
		}
		if _, err := hex.Decode(gid[:], []byte(parts[i])); err != nil {
			return group, device, false
		}
	}
	return group, device, true
}

// knownGroups is what is known of the members elsewhere of the groups that are sent to. The
// kernel is asked about all of them at once, and again and again while something is sent.
type knownGroups struct {
	byGID   map[verbs.GID]*knownGroup
	looks   int           // that have begun
	looking bool          // one of them is not over
	until   time.Time     // for so long the members are taken to be the same
	waiting int           // messages, of all groups
	ended   chan struct{} // closed when there are no QPs any more
}

type knownGroup struct {
	devices []verbs.GID // its first elements never change
	first   int         // the number of the first look that shows all members
	waiting [][]byte    // messages from before that is over
}

// due reports whether it is time for another look, which the caller is to begin then.
func (k *knownGroups) due(g *knownGroup) bool {
	if k.looking || k.looks >= g.first && time.Now().Before(k.until) {
		return false
	}
	k.looking = true
	k.looks++
	return true
}

// complete reports whether all members of a group are known.
func (k *knownGroups) complete(g *knownGroup) bool {
	return k.looks > g.first || k.looks == g.first && !k.looking
}

// For so long the members are taken to be the same, and so many messages wait for the first look.
const (
	groupTime     = 100 * time.Millisecond
	maxGroupQueue = 64
	maxQueued     = 1024 // for all groups of a device
	maxGroups     = 1024
)

// forwardToGroup sends to the members of a group everywhere, its own among them.
func (d *device) forwardToGroup(h *protocol.Datagram, message []byte) {
	d.deliver(h, message[protocol.DatagramHeaderSize:])
	if !strangers.Load() {
		for _, other := range openDevices() {
			if other != d {
				other.deliver(h, message[protocol.DatagramHeaderSize:])
			}
		}
	}
	for _, gid := range d.membersElsewhere(h.To.GID, message) {
		d.routes.send(gid, message)
	}
}

// membersElsewhere returns the devices of other processes that are known to have members
// of a group. Until somebody has looked for all of them the message waits for the others.
func (d *device) membersElsewhere(gid verbs.GID, message []byte) []verbs.GID {
	r := &d.routes
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.groups
	g := k.byGID[gid]
	if g == nil {
		if len(k.byGID) >= maxGroups {
			clear(k.byGID)
			k.waiting = 0
		}
		g = &knownGroup{first: k.looks + 1}
		k.byGID[gid] = g
	}
	if k.due(g) {
		d.listener.handlers.Go(func() { d.lookForMembers(k) }) // ends with the kernel's answer, or the QPs
	}
	if !k.complete(g) && len(g.waiting) < maxGroupQueue && k.waiting < maxQueued {
		g.waiting = append(g.waiting, slices.Clone(message))
		k.waiting++
	}
	return g.devices
}

// eachName is how the kernel is asked; tests ask somebody else.
var eachName = samehost.EachName

// lookForMembers looks until there is no group any more for which nobody has looked.
func (d *device) lookForMembers(k *knownGroups) {
	for again := true; again; {
		found := make(map[verbs.GID][]verbs.GID)
		err := eachName(unix.Geteuid(), k.ended, func(name string) {
			group, member, ok := memberOf(name)
			if !ok || member == d.gid || deviceOf(member) != nil && !strangers.Load() || slices.Contains(found[group], member) {
				return
			}
			found[group] = append(found[group], member)
			for _, message := range d.routes.addMember(k, group, member) {
				d.routes.send(member, message)
			}
		})
		again = d.routes.endLook(k, found, err)
	}
}

// addMember is called for each member that is found, and returns the messages that wait for it.
func (r *datagramRoutes) addMember(k *knownGroups, group, member verbs.GID) [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := k.byGID[group]
	if g == nil || slices.Contains(g.devices, member) {
		return nil
	}
	g.devices = append(g.devices, member)
	return g.waiting
}

// endLook forgets the members that were not found, unless the look has failed, and reports
// whether the next one has begun.
func (r *datagramRoutes) endLook(k *knownGroups, found map[verbs.GID][]verbs.GID, err error) (again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k.looking = false
	k.until = time.Now().Add(groupTime)
	for gid, g := range k.byGID {
		if !k.complete(g) {
			again = r.groups == k
			continue
		}
		if err == nil { // a kernel that does not tell has members in this process only
			g.devices = found[gid]
		}
		k.waiting -= len(g.waiting)
		g.waiting = nil
	}
	if again {
		k.looking = true
		k.looks++
	}
	return again
}

// AttachMulticast makes the QP a member of a group.
func (q *datagramQP) AttachMulticast(gid verbs.GID, _ uint16) error {
	q.life.Lock()
	defer q.life.Unlock()
	if q.destroyed {
		return verbs.ErrClosed
	}
	t := &q.dev.datagrams
	t.Lock()
	defer t.Unlock()
	g := t.groups[gid]
	if g == nil {
		mark, err := markGroup(gid, q.dev.gid)
		if err != nil {
			return err
		}
		g = &group{mark: mark}
		t.groups[gid] = g
	}
	if !slices.Contains(g.members, q) {
		g.members = append(g.members, q)
	}
	return nil
}

// DetachMulticast takes it out again.
func (q *datagramQP) DetachMulticast(gid verbs.GID, _ uint16) error {
	if !q.dev.datagrams.leave(gid, q) {
		return verbs.ErrInvalid
	}
	return nil
}

// leaveGroups takes a QP out of all groups.
func (d *device) leaveGroups(q *datagramQP) {
	d.datagrams.RLock()
	gids := slices.Collect(maps.Keys(d.datagrams.groups))
	d.datagrams.RUnlock()
	for _, gid := range gids {
		d.datagrams.leave(gid, q)
	}
}

// leave reports whether the QP was a member.
func (t *datagramTable) leave(gid verbs.GID, q *datagramQP) bool {
	t.Lock()
	g := t.groups[gid]
	if g == nil || !slices.Contains(g.members, q) {
		t.Unlock()
		return false
	}
	g.members = slices.DeleteFunc(g.members, func(m *datagramQP) bool { return m == q })
	last := len(g.members) == 0
	if last {
		delete(t.groups, gid)
	}
	t.Unlock()
	if last {
		g.mark.Close() // may take as long as a stranger who has connected to it likes, up to a second
	}
	return true
}

// isFull reports whether a socket had no room.
func isFull(err error) bool { return errors.Is(err, unix.EAGAIN) }
