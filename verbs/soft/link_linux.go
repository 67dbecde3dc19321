package soft

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
	"golang.org/x/sys/unix"
)

// link is what a QP has to its peer beside shared memory.
type link interface {
	// lookup returns the peer's region of a key. Without a region, known says
	// whether that is the peer's answer or has to be asked for.
	lookup(key uint32) (r *remote, known bool)
	// ask has the peer asked for a key; the answer calls qp.learn.
	ask(key uint32)
	// tell takes the peer's QP to ERR.
	tell(kind protocol.FaultKind)
	// notify has the peer look at what it waits for. A peer that is behind with what it was
	// told may not be told: it looks again by itself (onTimer).
	notify()
	// drain has the peer take what is in its ring, though nobody polls there. As notify; who
	// waits for the room asks again.
	drain()
	// leave says that the QP, which has failed, did so in good order.
	leave()
	pid() int
	// close ends the pair; the peer's QP fails. It returns when nothing of the
	// link is left; the caller holds no lock.
	close()
}

// localLink joins two QPs of this process.
type localLink struct {
	peer *qp
	twin *localLink // the peer's link to us
	by   *connector // of our QP, nil without a connection manager
	once sync.Once  // to tell it of the end
}

func (l *localLink) lookup(key uint32) (*remote, bool) {
	r := l.peer.dev.region(key)
	if r == nil || !r.lets(l.peer) {
		return nil, true
	}
	return remoteOf(r), true
}

func (l *localLink) ask(uint32)                   {}
func (l *localLink) tell(kind protocol.FaultKind) { l.peer.peerFault(l.twin, kind) }
func (l *localLink) notify()                      { l.peer.onProgress() }
func (l *localLink) drain()                       { l.peer.drain() }
func (l *localLink) leave()                       { l.twin.ended(nil) }
func (l *localLink) pid() int                     { return os.Getpid() }

func (l *localLink) close() {
	l.tell(protocol.FaultGone)
	l.twin.ended(io.EOF)
}

// ended tells the connection manager of our QP what the peer has done, the first time. The
// peer does not wait for it.
func (l *localLink) ended(err error) {
	if l.by != nil {
		l.once.Do(func() { go l.by.ended(err) })
	}
}

// socketLink joins two QPs of different processes. One goroutine reads it (serve) while
// something is said, and none for the rest of the time: then the socket is watched together
// with all others of the process. Whoever has something to say writes.
type socketLink struct {
	q    *qp
	conn *samehost.Conn
	raw  syscall.RawConn
	peer Peer
	by   *connector // nil without a connection manager
	half int        // of what may be unread in the socket: bytes, as the kernel counts them

	in  *inbound // ours, for which the peer has this link
	seg *segment // that of in, kept until serve ends

	mu    sync.Mutex
	given map[*region]uint32 // guarded by mu: regions that the peer has, with the places of their keys; nil: it is gone
	free  []uint32           // guarded by mu: places that were used
	used  uint32             // guarded by mu: how many places ever were

	reader linkReader
	closed atomic.Bool   // close was called
	served chan struct{} // closed when serve has ended
}

// linkReader says who reads a link.
type linkReader struct {
	mu      sync.Mutex
	rests   bool   // nobody does: wake will be called; guarded by mu
	shut    bool   // the socket is closed, which ends the one who reads; guarded by mu
	unwatch func() // set by the one who reads when he first rests; guarded by mu
	alone   bool   // the socket cannot be watched; of the one who reads
}

func newSocketLink(q *qp, conn *samehost.Conn, peer Peer) (*socketLink, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	size := 0
	if failed := raw.Control(func(fd uintptr) {
		size, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
	}); failed != nil {
		err = failed
	}
	if err != nil {
		return nil, err
	}
	return &socketLink{q: q, conn: conn, raw: raw, peer: peer, half: size / 2, given: make(map[*region]uint32), served: make(chan struct{})}, nil
}

func (l *socketLink) lookup(uint32) (*remote, bool) { return nil, false }
func (l *socketLink) ask(key uint32)                { l.mustSend(protocol.EncodeKey(protocol.KindKeyRequest, key)) }
func (l *socketLink) tell(kind protocol.FaultKind)  { l.mustSend(protocol.EncodeFault(kind)) }
func (l *socketLink) notify()                       { l.mention(protocol.EncodeBare(protocol.KindNotify)) }
func (l *socketLink) drain()                        { l.mention(protocol.EncodeBare(protocol.KindDrain)) }
func (l *socketLink) leave()                        { l.mustSend(protocol.EncodeBare(protocol.KindLeave)) }
func (l *socketLink) pid() int                      { return l.peer.PID }

func (l *socketLink) close() {
	l.closed.Store(true)
	l.shut()
	<-l.served // ends because reads from a closed socket fail
}

// mention sends what the peer can do without, while less than half of the
// socket is full: the rest is for what it cannot do without. A peer that does not run
// for a while does not read either, and is not dead.
func (l *socketLink) mention(b []byte) {
	room := false
	_ = l.raw.Control(func(fd uintptr) { // fails on a closed socket, which sendPacket finds too
		unread, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		room = err != nil || unread < l.half // who is not told may try: sendPacket does not wait
	})
	if room {
		_ = sendPacket(l.raw, b) // a peer that is gone needs no word
	}
}

// mustSend gives up a peer that does not read: such a peer would wait forever for what it does not
// get.
func (l *socketLink) mustSend(b []byte, fds ...int) {
	if sendPacket(l.raw, b, fds...) != nil {
		l.shut()
	}
}

// shut closes the socket, at which serve ends.
func (l *socketLink) shut() {
	l.conn.Close()
	l.reader.mu.Lock()
	defer l.reader.mu.Unlock()
	l.reader.shut = true
	if l.reader.rests {
		l.reader.rests = false
		go l.serve() // ends, see above
	}
}

// sendPacket never blocks. It is an error if the packet did not go.
func sendPacket(raw syscall.RawConn, b []byte, fds ...int) error {
	var rights []byte
	if len(fds) != 0 {
		rights = unix.UnixRights(fds...)
	}
	if err := sys.Refused("sendmsg"); err != nil {
		return os.NewSyscallError("sendmsg", err)
	}
	var sent error
	err := raw.Control(func(fd uintptr) {
		for {
			_, sent = unix.SendmsgN(int(fd), b, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			if sent != unix.EINTR {
				return
			}
		}
	})
	if err != nil {
		return err
	}
	return os.NewSyscallError("sendmsg", sent)
}

// readPacket waits for a packet. The descriptors are the caller's.
func readPacket(conn syscall.Conn) (protocol.Message, []int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return protocol.Message{}, nil, err
	}
	var buf [protocol.MaxMessage]byte
	// ends with a packet, the peer's hang-up, a deadline or Close
	n, fds, err := samehost.Receive(raw, buf[:])
	if err != nil {
		return protocol.Message{}, nil, err
	}
	m, err := protocol.ParseMessage(buf[:n])
	if err != nil {
		samehost.CloseReceived(fds...)
		return protocol.Message{}, nil, err
	}
	return m, fds, nil
}

// quiet is for how long nothing is said before serve rests, twice that at most. A goroutine that
// waits costs some 5 KiB, and one that is begun again some microseconds, which a message of
// the many while keys are exchanged, or the SEND buffer is full, should not take longer.
const quiet = 20 * time.Millisecond

// serve reads what the peer says until it hangs up, which is its death or the
// end of its QP, or until close. It returns earlier when nothing is said: then wake goes on.
func (l *socketLink) serve() {
	for {
		switch err := l.read(); {
		case err != errQuiet:
			l.end(err)
			return
		case l.rest():
			return
		}
	}
}

// wake is called when something is said, or the peer has hung up.
func (l *socketLink) wake() {
	l.reader.mu.Lock()
	rested := l.reader.rests
	l.reader.rests = false
	l.reader.mu.Unlock()
	if rested {
		l.serve()
	}
}

// rest leaves the socket to wake. It returns false if the caller has to read on: the socket was
// closed, or cannot be watched.
func (l *socketLink) rest() bool {
	l.reader.mu.Lock()
	defer l.reader.mu.Unlock()
	if l.reader.shut {
		return false
	}
	if l.reader.unwatch == nil {
		unwatch, err := l.conn.Watch(l.wake)
		if err != nil {
			l.reader.alone = true // there was no descriptor, or no memory
			return false
		}
		l.reader.unwatch = unwatch
	}
	l.reader.rests = true
	return true
}

// errQuiet is a while in which nothing is said.
var errQuiet = errors.New("nothing is said")

// read reads until nothing is said for a while, or the end.
func (l *socketLink) read() error {
	for {
		var deadline time.Time
		if !l.reader.alone {
			deadline = time.Now().Add(quiet)
		}
		_ = l.conn.SetReadDeadline(deadline) // fails only on a closed socket, where reads fail too
		for heard := false; ; heard = true {
			m, fds, err := readPacket(l.conn)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				if !heard {
					return errQuiet
				}
				break
			}
			if err != nil {
				return err
			}
			err = l.handle(m, fds)
			samehost.CloseReceived(fds...)
			if err != nil {
				return err
			}
		}
	}
}

// end ends the link for err.
func (l *socketLink) end(err error) {
	l.conn.Close()
	l.reader.mu.Lock()
	unwatch := l.reader.unwatch
	l.reader.mu.Unlock()
	if unwatch != nil {
		unwatch()
	}
	l.mu.Lock()
	given := l.given
	l.given = nil
	l.mu.Unlock()
	for r := range given {
		r.forget(l)
	}
	l.seg.release()
	l.q.peerFault(l, protocol.FaultGone)
	close(l.served)
	if l.by != nil && !l.closed.Load() {
		if err == errLeft {
			err = nil
		}
		l.by.ended(err)
	}
}

// errLeft is the end of a pair in good order.
var errLeft = errors.New("the peer has left")

// handle acts on one packet; the error ends the pair.
func (l *socketLink) handle(m protocol.Message, fds []int) error {
	if want := m.Kind == protocol.KindKeyAnswer && m.Answer.Good; (want && len(fds) != 1) || (!want && len(fds) != 0) {
		return protocol.Malformed("kind %d with %d descriptors", m.Kind, len(fds))
	}
	switch m.Kind {
	case protocol.KindKeyRequest:
		l.answer(m.Key)
	case protocol.KindKeyAnswer:
		asked, longest := l.q.hasAsked(l, m.Answer.Key)
		if !asked {
			return protocol.Malformed("answer about a key that nobody asked for")
		}
		var r *remote
		var err error
		if m.Answer.Good {
			r, err = l.q.dev.mapRemote(m.Answer, fds[0], longest)
		}
		l.q.learn(l, m.Answer.Key, r, err)
	case protocol.KindKeyGone:
		l.q.sendMu.Lock()
		if l.q.link == l {
			l.q.dropRemote(m.Key)
		}
		l.q.unlock()
	case protocol.KindFault:
		l.q.peerFault(l, m.Fault)
	case protocol.KindNotify:
		l.q.onProgress()
	case protocol.KindDrain:
		l.q.drain()
	case protocol.KindLeave:
		return errLeft
	default:
		return protocol.Malformed("kind %d on a pair", m.Kind)
	}
	return nil
}

// answer gives the peer the region of a key, if it may have it.
func (l *socketLink) answer(key uint32) {
	r := l.q.dev.region(key)
	if r != nil && r.lets(l.q) {
		if place, fresh, ok := l.placeFor(r); ok {
			if r.give(l, place) {
				return
			}
			if fresh { // else the peer has it since an earlier answer, and the region knows of that
				l.takeBack(r)
			}
		}
	}
	l.mustSend(protocol.EncodeKeyAnswer(protocol.KeyAnswer{Key: key}))
}

// placeFor finds a place for the key of a region, a fresh one if the peer does not have the
// region yet; ok is false if there is none, or no memory for it.
func (l *socketLink) placeFor(r *region) (place uint32, fresh, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if place, ok := l.given[r]; ok {
		return place, false, true
	}
	switch n := len(l.free); {
	case l.given == nil:
		return 0, false, false
	case n > 0:
		place, l.free = l.free[n-1], l.free[:n-1]
	case l.used == protocol.KeySlots:
		return 0, false, false
	default:
		place = l.used
		if at := protocol.KeysAt + int(place)*4; at%protocol.PageSize == 0 && sys.Populate(l.seg.mem[at:at+protocol.PageSize]) != nil {
			return 0, false, false
		}
		l.used++
	}
	l.given[r] = place
	return place, true, true
}

// takeBack frees the place of a region that the peer has no more, or has not
// got.
func (l *socketLink) takeBack(r *region) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if place, ok := l.given[r]; ok {
		delete(l.given, r)
		l.in.grants.remove(r)
		l.free = append(l.free, place)
	}
}

// hasAsked reports whether the peer owes an answer about a key, and how long its region may
// be. To map what nobody has asked for would let the peer choose how much is mapped.
func (q *qp) hasAsked(l link, key uint32) (asked bool, longest uint64) {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	_, asked = q.asked[key]
	return asked && q.link == l, q.longest
}

// learn takes the answer about a key: a region, an error of our own, or a
// refusal.
func (q *qp) learn(l link, key uint32, r *remote, err error) {
	q.sendMu.Lock()
	_, asked := q.asked[key]
	if q.link != l || !asked {
		if r != nil {
			r.close()
		}
		q.sendMu.Unlock()
		return
	}
	if delete(q.asked, key); len(q.asked) == 0 {
		q.asked = nil // most QPs have asked about all keys then
	}
	if r != nil {
		r.valid = &q.out.Header.Keys[r.place]
		q.addRemote(r)
	} else {
		if q.refused == nil {
			q.refused = make(map[uint32]error)
		}
		q.refused[key] = err
	}
	q.drive()
	q.unlock()
}

// peerFault moves the QP to ERR because of what the peer says over l, or because
// of its silence.
func (q *qp) peerFault(l link, kind protocol.FaultKind) {
	f := failure{peerKnows: true}
	switch kind {
	case protocol.FaultGone:
		f.send = verbs.WCRetryExcErr
	case protocol.FaultAccess:
		f.event, f.raise = verbs.EventQPAccessErr, true
	case protocol.FaultRequest:
		f.event, f.raise = verbs.EventQPReqErr, true
	case protocol.FaultTooLong:
		f.recv = verbs.WCLocLenErr
	case protocol.FaultReceiveTooShort:
		f.send = verbs.WCRemInvReqErr
	case protocol.FaultReceiver:
		f.send = verbs.WCRemOpErr
	}
	q.sendMu.Lock()
	if q.link == l {
		q.losePeer(f)
	}
	q.unlock()
}

// drain takes what has arrived, at the peer's request.
func (q *qp) drain() {
	q.recvMu.Lock()
	in := q.in
	q.recvMu.Unlock()
	if in != nil {
		in.drain()
	}
}

// notifyPeer tells the peer that something has changed in our segment.
func (q *qp) notifyPeer() {
	q.sendMu.Lock()
	l := q.link
	q.sendMu.Unlock()
	if l != nil {
		l.notify()
	}
}
