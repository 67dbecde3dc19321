package mux

import "github.com/seed-b9b531af/ramjet/rnet/internal/link"

// Stats are the statistics of a mux since it was made.
type Stats struct {
	Streams       int    // that there are
	StreamsOpened uint64 // that there ever were
	BytesIn       uint64 // payload of data frames
	FramesOut     uint64 // of data
	BytesOut      uint64
	CreditStalls  uint64 // sends that had to wait for the peer's ring
	WindowsSent   uint64
	Link          link.Stats
}

// Stats returns them. It takes the locks of the mux for a moment each.
func (m *Mux) Stats() Stats {
	st := Stats{
		BytesIn: m.arrived.bytes.Load(), Link: m.link.Stats(),
	}
	st.Streams, st.StreamsOpened = m.streams.counts()
	m.out.mu.Lock()
	st.FramesOut, st.BytesOut = m.out.frames, m.out.bytes
	st.CreditStalls, st.WindowsSent = m.out.stalls, m.out.control.windows
	m.out.mu.Unlock()
	return st
}

// Len returns how many streams there are.
func (m *Mux) Len() int { return m.streams.len() }

// Slots returns how many streams the listening side has given addresses to.
func (m *Mux) Slots() int { return int(m.addrs.slots.Load()) }

// SomeStreams returns up to most streams, in the order of their slots.
func (m *Mux) SomeStreams(most int) []*Stream { return m.streams.some(most) }

// StreamStats are the statistics of a stream.
type StreamStats struct {
	BytesIn    uint64 // arrived
	BytesOut   uint64 // sent
	Unread     int    // arrived and not read
	Unsent     int    // written by the handler of an event loop, and waits for room
	SendWindow int    // bytes that the peer lets us send now
}

// Stats returns them. It takes the locks of the stream for a moment.
func (st *Stream) Stats() (stats StreamStats) {
	st.recv.mu.Lock()
	stats.BytesIn, stats.Unread = st.recv.flow.Arrived(), st.recv.flow.Buffered()
	sink := st.sink
	st.recv.mu.Unlock()
	if sink != nil {
		inbound, outbound := sink.Buffered()
		stats.Unread += inbound
		stats.Unsent = outbound
	}
	st.m.out.mu.Lock()
	stats.BytesOut = st.send.window.Sent()
	stats.SendWindow = int(max(st.send.granted.Load(), st.send.window.Granted()) - stats.BytesOut)
	st.m.out.mu.Unlock()
	return stats
}
