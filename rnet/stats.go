package rnet

import (
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// sessionCounters count what is not counted under a lock.
type sessionCounters struct {
	pollHits     atomic.Uint64
	threadWaits  atomic.Uint64
	wakeups      atomic.Uint64
	creditStalls atomic.Uint64
	creditsSent  atomic.Uint64
	windowsSent  atomic.Uint64
	spills       atomic.Uint64
}

// Stats are the statistics of the process at one moment.
type Stats struct {
	Sessions    []SessionStats
	Dials       []DialCount // by transport and reason, since the start
	PinnedBytes int64       // registered memory
	PinLimit    int64       // its cap, 0: none; see verbs.SetPinLimit
}

// DialCount is how many dials went one way for one reason.
type DialCount struct {
	Transport Transport
	Reason    string // why nothing faster, "none" if it is the fastest
	Dials     uint64
}

// SessionStats are the statistics of one session since it was opened.
type SessionStats struct {
	Transport  Transport
	Device     string
	LocalAddr  net.Addr
	RemoteAddr net.Addr
	PeerPID    int
	Dialed     bool // this process opened it
	Opened     time.Time
	Streams    int // open now

	FramesIn, BytesIn   uint64
	FramesOut, BytesOut uint64
	PollHits            uint64 // waits that polling ended
	ThreadWaits         uint64 // waits on a thread
	Wakeups             uint64 // times that the engine was woken
	CreditStalls        uint64 // sends that had to wait for the peer's ring
	CreditsSent         uint64 // credit messages
	WindowsSent         uint64 // window updates
	Spills              uint64 // pieces moved out of the ring for a slow reader
}

// StreamStats are the statistics of one connection.
type StreamStats struct {
	ID             uint32
	BytesIn        uint64 // arrived
	BytesOut       uint64 // sent
	Unread         int    // arrived and not read
	SendWindow     int    // bytes that the peer lets us send now
	LocalAddr      net.Addr
	RemoteAddr     net.Addr
	Transport      Transport
	PeerPID        int
	SessionStreams int // streams that share the session
}

// ReadStats returns the statistics of the process. It takes the locks of each
// session for a moment.
func ReadStats() Stats {
	st := Stats{PinnedBytes: verbs.PinnedBytes(), PinLimit: verbs.PinLimit()}
	for _, s := range liveSessions.list() {
		st.Sessions = append(st.Sessions, s.readStats())
	}
	for _, c := range decided.Counts() {
		st.Dials = append(st.Dials, DialCount{Transport: Transport(c.Transport.String()), Reason: c.Reason.String(), Dials: c.N})
	}
	return st
}

func (s *session) readStats() SessionStats {
	st := SessionStats{
		Transport: Transport(s.transport.String()), Device: s.device,
		LocalAddr: net.TCPAddrFromAddrPort(s.localAddr), RemoteAddr: net.TCPAddrFromAddrPort(s.remoteAddr),
		PeerPID: int(s.peer.pid), Dialed: s.dialed, Opened: s.opened, Streams: s.streams.len(),
		PollHits: s.stats.pollHits.Load(), ThreadWaits: s.stats.threadWaits.Load(), Wakeups: s.stats.wakeups.Load(),
		CreditStalls: s.stats.creditStalls.Load(), CreditsSent: s.stats.creditsSent.Load(),
		WindowsSent: s.stats.windowsSent.Load(), Spills: s.stats.spills.Load(),
	}
	s.rxMu.Lock()
	st.FramesIn, st.BytesIn = s.in.frames, s.in.bytes
	s.rxMu.Unlock()
	s.txMu.Lock()
	st.FramesOut, st.BytesOut = s.framesOut, s.bytesOut
	s.txMu.Unlock()
	return st
}

// Stats returns the statistics of the connection.
func (c *Conn) Stats() StreamStats {
	st := StreamStats{
		ID: c.id, LocalAddr: c.LocalAddr(), RemoteAddr: c.RemoteAddr(),
		Transport: Transport(c.s.transport.String()), PeerPID: int(c.s.peer.pid), SessionStreams: c.s.streams.len(),
	}
	c.recvMu.Lock()
	st.BytesIn, st.Unread = c.flow.Arrived(), c.flow.Buffered()
	c.recvMu.Unlock()
	c.s.txMu.Lock()
	st.BytesOut = c.window.Sent()
	st.SendWindow = int(max(c.granted.Load(), c.window.Granted()) - st.BytesOut)
	c.s.txMu.Unlock()
	return st
}

// Decision is what a dial came to.
type Decision struct {
	Time      time.Time
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
// spelled as it was dialed. It is empty if there was none.
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
