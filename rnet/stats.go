package rnet

import (
	"net/netip"
	"slices"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// Stats are the statistics of the process at one moment. They have a form in
// JSON, in which other programs read them (docs/observability.md).
type Stats struct {
	Sessions    []SessionStats  `json:"sessions"`    // that live, the oldest first
	Listeners   []ListenerStats `json:"listeners"`   // that are open, the oldest first
	Loops       []LoopStats     `json:"loops"`       // event loops of package rgnet that run, the oldest first
	Devices     []DeviceStats   `json:"devices"`     // sums since the start
	Dials       []DialCount     `json:"dials"`       // by transport and reason, since the start
	PinnedBytes int64           `json:"pinnedBytes"` // registered memory
	PinLimit    int64           `json:"pinLimit"`    // its cap, 0: none; see verbs.SetPinLimit
}

// DialCount is how many dials went one way for one reason.
type DialCount struct {
	Transport Transport `json:"transport"` // that the dials got, or were refused
	Reason    string    `json:"reason"`    // why nothing faster, "none" if it is the fastest
	Dials     uint64    `json:"dials"`     // that went this way for this reason
}

// Counters count what a session has done since it was opened, or several have.
// They only grow.
type Counters struct {
	StreamsOpened uint64 `json:"streamsOpened"` // by either side
	FramesIn      uint64 `json:"framesIn"`      // frames that arrived, of any kind
	BytesIn       uint64 `json:"bytesIn"`       // payload of data in them
	FramesOut     uint64 `json:"framesOut"`     // frames of data sent
	BytesOut      uint64 `json:"bytesOut"`      // their payload
	// waits that polling ended, added 64 at a time while they come in a row; on an event loop:
	// polls that brought something
	PollHits uint64 `json:"pollHits"`
	// waits that polling did not end, and that slept; on an event loop: times that it stopped
	// polling the session
	PollMisses  uint64 `json:"pollMisses"`
	ThreadWaits uint64 `json:"threadWaits"` // sleeps of a thread
	Parks       uint64 `json:"parks"`       // sleeps of a goroutine
	// times that the engine was woken, or on a network the owner of the poll lock in its place
	Wakeups      uint64 `json:"wakeups"`
	CreditStalls uint64 `json:"creditStalls"` // sends that had to wait for the peer's ring
	CreditsSent  uint64 `json:"creditsSent"`  // credit messages
	WindowsSent  uint64 `json:"windowsSent"`  // window updates
	Spills       uint64 `json:"spills"`       // pieces moved out of the ring for a slow reader
}

// HitRatio returns the share of waits that polling ended, 0 to 1; 0 if there
// was none.
func (c *Counters) HitRatio() float64 {
	if waits := c.PollHits + c.PollMisses; waits > 0 {
		return float64(c.PollHits) / float64(waits)
	}
	return 0
}

func (c *Counters) add(o *Counters) {
	c.StreamsOpened += o.StreamsOpened
	c.FramesIn += o.FramesIn
	c.BytesIn += o.BytesIn
	c.FramesOut += o.FramesOut
	c.BytesOut += o.BytesOut
	c.PollHits += o.PollHits
	c.PollMisses += o.PollMisses
	c.ThreadWaits += o.ThreadWaits
	c.Parks += o.Parks
	c.Wakeups += o.Wakeups
	c.CreditStalls += o.CreditStalls
	c.CreditsSent += o.CreditsSent
	c.WindowsSent += o.WindowsSent
	c.Spills += o.Spills
}

// SessionStats are the statistics of one session since it was opened.
type SessionStats struct {
	Number    uint64    `json:"session"`   // 1 is the first of the process
	Transport Transport `json:"transport"` // Soft or RDMA
	Device    string    `json:"device"`    // with the port where it has several
	// its driver has never run on such a device (verbs.DeviceAttr)
	Experimental bool           `json:"experimental,omitempty"`
	LocalAddr    netip.AddrPort `json:"local"`  // of the session's connection, not of a stream
	RemoteAddr   netip.AddrPort `json:"remote"` // the same of the peer
	// the Unix socket at which it was made; the addresses mean nothing then
	Unix     string    `json:"unix,omitempty"`
	PeerPID  int       `json:"peerPID"`  // process id that the peer says it has
	Dialed   bool      `json:"dialed"`   // this process opened it
	Opened   time.Time `json:"opened"`   // when it was connected
	Streams  int       `json:"streams"`  // open now
	RingSize int       `json:"ringSize"` // of the receive ring, in bytes
	RingHeld int       `json:"ringHeld"` // bytes of it that readers have not taken
	Counters
}

// StreamStats are the statistics of one connection.
type StreamStats struct {
	Session  uint64 `json:"session"`  // SessionStats.Number
	ID       uint32 `json:"stream"`   // in frames of the session
	BytesIn  uint64 `json:"bytesIn"`  // arrived, read or not
	BytesOut uint64 `json:"bytesOut"` // sent
	// arrived and not read; by a handler of package rgnet: not taken
	Unread         int            `json:"unread"`
	Unsent         int            `json:"unsent"`         // written by such a handler, and waits for room
	SendWindow     int            `json:"sendWindow"`     // bytes that the peer lets us send now
	LocalAddr      netip.AddrPort `json:"local"`          // as Conn.LocalAddr
	RemoteAddr     netip.AddrPort `json:"remote"`         // as Conn.RemoteAddr
	Unix           string         `json:"unix,omitempty"` // of the session
	Transport      Transport      `json:"transport"`      // of the session
	PeerPID        int            `json:"peerPID"`        // of the session
	SessionStreams int            `json:"sessionStreams"` // streams that share the session
}

// ListenerStats are the statistics of one listener since it was opened.
type ListenerStats struct {
	Addr     netip.AddrPort `json:"addr"`           // as Listener.Addr; none at a Unix socket
	Unix     string         `json:"unix,omitempty"` // the Unix socket, if it is at one
	Sessions int            `json:"sessions"`       // that live
	Waiting  int            `json:"waiting"`        // streams that wait for Accept
	Streams  uint64         `json:"streams"`        // that peers have opened
	TCP      uint64         `json:"tcp"`            // connections that came over TCP, or as plain ones at a Unix socket
	Denied   uint64         `json:"denied"`         // peers that may not open a session
	Failed   uint64         `json:"failed"`         // sessions that did not come about for other reasons
}

// LoopStats are the statistics of one event loop of package rgnet since it was
// started.
type LoopStats struct {
	Number      uint64 `json:"loop"`        // 1 is the first of the process
	Sessions    int    `json:"sessions"`    // that it serves now
	Iterations  uint64 `json:"iterations"`  // times that gnet let it work
	Sleeps      uint64 `json:"sleeps"`      // times that it had nothing to do, and left the waiting to gnet
	ThreadWaits uint64 `json:"threadWaits"` // times that it slept on its thread instead
}

// DeviceStats are what the sessions of a transport over one device came to
// since the start of the process, those that have ended included.
type DeviceStats struct {
	Transport      Transport `json:"transport"`      // Soft or RDMA
	Device         string    `json:"device"`         // with the port where it has several
	Sessions       int       `json:"sessions"`       // that live
	Streams        int       `json:"streams"`        // open now
	SessionsOpened uint64    `json:"sessionsOpened"` // by either side
	Counters
	// RNRs is how many requests found no receive at their peers. A kernel
	// device counts for all processes, and each try.
	RNRs        uint64 `json:"rnrs"`
	RNRsCounted bool   `json:"rnrsCounted"` // false if the device does not count
}

// ReadStats returns the statistics of the process. It takes the locks of each
// session for a moment.
func ReadStats() Stats {
	st := Stats{
		Sessions: []SessionStats{}, Listeners: []ListenerStats{}, Loops: []LoopStats{}, Dials: []DialCount{},
		PinnedBytes: verbs.PinnedBytes(), PinLimit: verbs.PinLimit(),
	}
	live, sums := liveSessions.read()
	for _, s := range live {
		one := s.readStats()
		st.Sessions = append(st.Sessions, one)
		sums.at(s).addLive(&one)
	}
	st.Devices = sums.list()
	for _, l := range liveListeners.list() {
		st.Listeners = append(st.Listeners, l.readStats())
	}
	for _, p := range mux.Pollers() {
		st.Loops = append(st.Loops, LoopStats(p.Stats()))
	}
	for _, c := range decided.Counts() {
		st.Dials = append(st.Dials, DialCount{Transport: Transport(c.Transport.String()), Reason: c.Reason.String(), Dials: c.N})
	}
	return st
}

// ReadStreams returns the statistics of up to most open connections over
// sessions, those of the oldest session first; none if most is not positive. It
// takes the locks of each for a moment.
func ReadStreams(most int) []StreamStats {
	list := []StreamStats{}
	live, _ := liveSessions.read()
	for _, s := range live {
		for _, st := range s.mux.SomeStreams(most - len(list)) {
			list = append(list, s.streamStats(st))
		}
	}
	return list
}

func (s *session) readStats() SessionStats {
	in, waits := s.mux.Stats(), &s.mux.PollLock().Counters
	return SessionStats{
		Number: s.number, Transport: Transport(s.transport.String()), Device: s.device, Experimental: s.experimental,
		LocalAddr: s.mux.LocalAddr(), RemoteAddr: s.mux.RemoteAddr(), Unix: s.unix.name(),
		PeerPID: int(s.mux.Peer().PID), Dialed: s.listener == nil, Opened: s.opened,
		Streams: in.Streams, RingSize: s.over.RingSize(), RingHeld: in.Link.Held,
		Counters: Counters{
			StreamsOpened: in.StreamsOpened,
			FramesIn:      in.Link.Frames, BytesIn: in.BytesIn,
			FramesOut: in.FramesOut, BytesOut: in.BytesOut,
			PollHits: waits.PollHits.Load(), PollMisses: waits.PollMisses.Load(),
			ThreadWaits: waits.ThreadWaits.Load(), Parks: waits.Parks.Load(), Wakeups: waits.Wakeups.Load(),
			CreditStalls: in.CreditStalls, CreditsSent: in.Link.CreditsSent,
			WindowsSent: in.WindowsSent, Spills: in.Link.MovedOut,
		},
	}
}

// Stats returns the statistics of the connection.
func (c *Conn) Stats() StreamStats { return c.s.streamStats(&c.st) }

func (s *session) streamStats(st *mux.Stream) StreamStats {
	in := st.Stats()
	return StreamStats{
		Session: s.number, ID: st.ID(),
		BytesIn: in.BytesIn, BytesOut: in.BytesOut, Unread: in.Unread, Unsent: in.Unsent, SendWindow: in.SendWindow,
		LocalAddr: st.LocalAddr(), RemoteAddr: st.RemoteAddr(), Unix: s.unix.name(),
		Transport: Transport(s.transport.String()), PeerPID: int(s.mux.Peer().PID), SessionStreams: s.mux.Len(),
	}
}

func (l *Listener) readStats() ListenerStats {
	l.mu.Lock()
	st := l.lost
	st.Sessions, st.Waiting, st.Streams = len(l.sessions), l.queued(), l.pushed
	fabrics := slices.Clone(l.fabrics)
	l.mu.Unlock()
	if l.atUnixSocket() {
		st.Unix = l.addr.String()
	} else {
		st.Addr = addrPortOf(l.addr)
	}
	st.TCP = l.overTCP.Load()
	st.Failed += l.failed.Load()
	for _, f := range fabrics {
		st.count(f.Stats())
	}
	return st
}

// count adds what a listener on a fabric has seen.
func (st *ListenerStats) count(seen rcm.ListenStats) {
	st.Denied += seen.Denied
	st.Failed += seen.Malformed + seen.TimedOut + seen.Overflows
}

// Decision is the result of a dial.
type Decision struct {
	Time      time.Time     // when it was decided; zero if all dials were on a session that lived
	Transport Transport     // what it got, or was refused
	Device    string        // that it goes over, with the port where it has several; empty over TCP
	Reason    string        // why nothing faster, "none" if it is the fastest
	Meaning   string        // what the reason means
	Remedy    string        // what you can do about it, if anything
	Took      time.Duration // 0 on a session that lived already
	Err       error         // what failed, if anything
	Repeats   int           // further dials right after it that went the same way
}

// Explain returns what the last dials to address came to, the newest last:
// which transport each took, and why not a faster one. The address is to be
// spelled as it was dialed. It is empty if there was none. Eight decisions are
// kept of an address, and those of about a thousand addresses.
func Explain(address string) []Decision {
	var list []Decision
	for _, d := range decided.Last(address) {
		list = append(list, Decision{
			Time: d.At, Transport: Transport(d.Transport.String()), Device: d.Device, Reason: d.Reason.String(),
			Meaning: d.Reason.Meaning(), Remedy: d.Reason.Remedy(), Took: d.Took, Err: d.Err, Repeats: d.Repeats,
		})
	}
	slices.Reverse(list)
	return list
}

// String says it in one line.
func (d Decision) String() string {
	text := string(d.Transport)
	if d.Transport == RDMA && d.Device != "" {
		text += " over " + d.Device
	}
	fastest := d.Reason == fallback.None.String()
	if !fastest {
		text += ": " + d.Reason + ": " + d.Meaning
	}
	if d.Err != nil {
		text += " (" + d.Err.Error() + ")"
	}
	if d.Remedy != "" && !fastest {
		text += "; " + d.Remedy
	}
	return text
}
