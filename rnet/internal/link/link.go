package link

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/wait"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// User takes what a link brings.
type User interface {
	// Frame takes a frame that has arrived. It is called in Poll and Collect, with the
	// receive lock held. payload is memory that the peer may still change. In Poll it is
	// valid until Frame returns, unless it is kept (Retain); what came in Collect is
	// valid until Release. An error ends the link.
	Frame(h Header, payload []byte) error
	// Fail says that the link cannot go on. It has a goroutine of its own.
	Fail(cause error)
}

// Config says what a link is made of.
type Config struct {
	Device *verbs.Context
	// Release is called when nothing uses Device any more.
	Release func()
	// RingSize is how long the receive ring is to be, a power of two, and Slots how many
	// receives for data there are to be. A device that has less gives less.
	RingSize uint32
	Slots    uint32
	// Send is the send lock.
	Send *sync.Mutex
}

// Limits of what the two ends of a link may have.
const (
	MinRing  = 64 << 10
	MaxRing  = 1 << 30
	MinSlots = 16
	MaxSlots = 1 << 14

	// DefaultSlots are with controlSlots a power of two, to which queues are rounded up.
	DefaultSlots = 2048 - controlSlots

	// MaxChargedRing bounds the ring of a peer whose memory is charged to the process that
	// writes to it first, as on the software HCA: this one.
	MaxChargedRing = 64 << 20
)

// ErrRing is a ring of the peer that may cost this process more than it allows.
var ErrRing = errors.New("the peer's ring is too large for this process")

// controlSlots are receives beyond those for data: credit messages need no
// slot credit. At most one is sent for each quarter of the ring and one for
// each quarter of the slots, and a peer cannot use more than the whole of
// both before it has read them, so 8 can be under way. Another 8 may lie in the batch that is being
// taken in: they count as soon as they were looked at, so that as many can follow, and are posted again at its end. And
// fewer than controlUnposted, with the one of Greet, may have been used up before. The send queue has as many places
// beyond those for data, for the same messages.
const (
	controlSlots    = 16 + controlUnposted
	controlUnposted = 8
)

// Link is one end of an RC queue pair that carries frames. Its methods say who may
// call them; those of set-up and end are called by one goroutine, before and after all
// others.
type Link struct {
	user   User
	has    sizes
	memory memory
	ch     *verbs.CompChannel
	cq     *verbs.CQ
	qp     *verbs.QP
	peer   Params

	failed atomic.Bool // Fail was called

	sender

	// Of the owner of the poll lock.
	wcs      []verbs.WC // grows to PollBatch where that much comes at a time
	credit   bool       // the batch brought credit
	violated bool       // the peer broke the protocol: nothing it writes counts any more
	receives receiveQueue

	in receiveRing

	given given
}

// given is what was given back to the peer. Who sends looks at it each time, so it has a
// cache line in which nothing is written more often.
type given struct {
	_        [64]byte
	released atomic.Uint64 // bytes of the ring; written under the receive lock
	posted   atomic.Uint64 // receives posted for data; written under the poll lock
}

// New makes all of a link but the connection. If it fails nothing is left, and Release
// has been called.
func New(cfg Config, user User) (l *Link, err error) {
	l = &Link{user: user}
	l.memory.device, l.memory.release = cfg.Device, cfg.Release
	l.sendMu = cfg.Send
	l.in.size, l.has.slots = cfg.RingSize, cfg.Slots
	l.wcs = make([]verbs.WC, firstBatch)
	l.memory.users.Store(1)
	half := l // the result is nil by then
	defer func() {
		if err != nil {
			half.Close()
		}
	}()
	attr := l.memory.device.Attr()
	if err = l.has.fit(&attr); err != nil {
		return nil, fmt.Errorf("device %s: %w", attr.Name, err)
	}
	if l.memory.pd, err = l.memory.device.AllocPD(); err != nil {
		return nil, err
	}
	receives, sends := l.has.queues()
	if l.has.emulation != nil {
		if err = l.has.emulation.alloc(l.memory.pd, receives); err != nil {
			return nil, err
		}
	}
	if err = l.in.alloc(l.memory.pd, &l.has, &l.bounce); err != nil {
		return nil, err
	}
	if l.ch, err = l.memory.device.CreateCompChannel(); err != nil {
		return nil, err
	}
	// The poll lock is held by who polls, arms and posts receives, the send lock by who sends.
	if l.cq, err = l.memory.device.CreateCQ(verbs.CQAttr{CQE: receives + sends, SingleThreaded: true}, l.ch); err != nil {
		return nil, err
	}
	l.qp, err = l.memory.pd.CreateQP(verbs.QPInitAttr{
		Type: verbs.QPTypeRC, SendCQ: l.cq, RecvCQ: l.cq, SingleThreaded: true, PlaceAtPoll: true,
		Cap: verbs.QPCap{MaxSendWR: sends, MaxRecvWR: receives, MaxSendSGE: 2, MaxRecvSGE: 1, MaxInline: l.has.inline},
	})
	if err != nil {
		return nil, err
	}
	if err = l.in.rx.Init(l.in.size); err != nil {
		return nil, err
	}
	return l, l.receives.init(l.qp, &l.has)
}

// QP returns the queue pair, for package rcm to connect.
func (l *Link) QP() *verbs.QP { return l.qp }

// ConnParam returns what both ends ask of the connection.
func (l *Link) ConnParam(private []byte) rcm.ConnParam {
	receives, _ := l.has.queues()
	p := rcm.ConnParam{
		PrivateData: private,
		Access:      verbs.AccessRemoteWrite,
		Prepare:     func(*verbs.QP) error { return l.receives.fill(receives, &l.given) },
	}
	if l.has.probes {
		p.Access |= verbs.AccessRemoteRead
		p.InitiatorDepth, p.ResponderResources = 1, 1
	}
	return p
}

// Connect takes what the peer has said of itself: from here on the link can send.
func (l *Link) Connect(peer Params) error {
	remote, charged := l.qp.Driver().(remoteMemory)
	if most := max(MaxChargedRing, l.in.size); charged {
		if peer.RingSize > most {
			return fmt.Errorf("%w: %d bytes, it allows %d, or as much as its own RingSize", ErrRing, peer.RingSize, most)
		}
		remote.LimitRemote(uint64(most)) // the ring need not be all of its region
	}
	l.peer = peer
	l.has.probes = l.has.probes && peer.Probes
	if err := l.tx.Init(peer.RingSize); err != nil {
		return err
	}
	l.remote.init(remote, &l.peer)
	if err := l.txSlots.Init(int(peer.Slots)); err != nil {
		return err
	}
	l.peerPosted.Store(uint64(peer.Slots))
	l.told.posted = uint64(l.has.slots)
	l.has.inline = l.qp.Attr().Cap.MaxInline
	if !l.has.bounce() {
		return nil
	}
	return l.bounce.grow(l.memory.pd, peer.RingSize)
}

// Fail ends the link: its QP goes to ERR. Poll goes on to deliver what arrived before,
// until it returns nothing any more.
func (l *Link) Fail() {
	l.failed.Store(true)
	l.qp.Fail()
}

// Close frees the link, after the last Poll. The receive ring outlives it as long as
// a piece of it is kept, and the device as long as there is a Buffer.
func (l *Link) Close() {
	l.sendMu.Lock()
	l.stopped = true
	registered := []*verbs.MR{l.bounce.mr, l.heads}
	l.bounce, l.heads = bounceBuffer{}, nil
	if l.has.emulation != nil {
		registered = append(registered, l.has.emulation.mr)
	}
	l.sendMu.Unlock()
	if l.qp != nil {
		l.qp.Close()
	}
	l.sendMu.Lock()
	l.qpClosed = true
	l.sendMu.Unlock()
	if l.cq != nil {
		l.cq.Close()
	}
	if l.ch != nil {
		l.ch.Close()
	}
	for _, mr := range registered {
		if mr != nil {
			mr.Close()
		}
	}
	l.freeBuffers()
	if l.in.mr == nil || l.in.end() {
		l.freeRing()
	}
}

// Arm makes the next arrival an event of Channel, see verbs.CQ.Arm, and Disarm
// withdraws that.
func (l *Link) Arm() error { return l.cq.Arm(false) }

// Disarm withdraws Arm, as far as that is possible.
func (l *Link) Disarm() { l.cq.Disarm() }

// Channel returns what an owner of the poll lock sleeps on.
func (l *Link) Channel() *verbs.CompChannel { return l.ch }

// Host is what a device offers when both ends are on one host.
type Host interface {
	wait.Peer
	// PeerIsLocal reports whether the peer is in this process.
	PeerIsLocal() bool
	// HasArrival reports whether a poll would find something. It costs less, and takes
	// no lock.
	HasArrival() bool
}

// Host returns what is known of the peer on this host, nil if it is on another.
func (l *Link) Host() Host {
	h, _ := l.qp.Driver().(Host)
	return h
}

// RingSize returns the length of the receive ring.
func (l *Link) RingSize() int { return int(l.in.size) }

// MaxPayload returns the most payload of a frame.
func (l *Link) MaxPayload() int { return l.has.piece }

// OnWire reports whether what was sent is on its way only, and lost if the process
// ends: see Track.
func (l *Link) OnWire() bool { return l.has.onWire }

// WakesThreads reports whether the device wakes a thread that waits for it faster than
// a goroutine.
func (l *Link) WakesThreads() bool { return l.memory.device.Attr().Caps.Has(verbs.CapThreadWait) }

// Immediates reports whether the device has them. Where it has none, as on iWARP, the
// end that accepts must not send before the other has (Arrived).
func (l *Link) Immediates() bool { return l.has.emulation == nil }

// Stats are the statistics of a link.
type Stats struct {
	Frames      uint64 // that have arrived
	Released    uint64 // bytes of the receive ring given back so far
	Held        int    // bytes of the receive ring that are kept
	CreditsSent uint64 // credit messages
	MovedOut    uint64 // pieces moved out of the ring
}

// Stats returns them. It takes the receive lock and the send lock for a moment.
func (l *Link) Stats() (st Stats) {
	l.in.mu.Lock()
	st.Frames, st.Released, st.Held, st.MovedOut = l.in.frames, l.given.released.Load(), l.in.rx.Retained(), l.in.movedOut
	l.in.mu.Unlock()
	l.sendMu.Lock()
	st.CreditsSent = l.creditsSent
	l.sendMu.Unlock()
	return st
}
