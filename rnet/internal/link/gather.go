package link

import "fmt"

// There is always room in the peer's ring for what is gathered: there was when the frame
// was put in, and Room sends it before it gives room to anything else.

const (
	gatherSize    = 4 << 10 // bytes of one message
	gatherPayload = 512     // a longer payload goes by itself
)

// Gathers reports whether a payload of n bytes more can be sent as one message with
// what was gathered.
func (l *Link) Gathers(n int) bool {
	if l.stopped || n > gatherPayload {
		return false
	}
	n += align(len(l.frames)) + HeaderLen
	return n <= gatherSize && l.txSlots.Avail() > 0 && l.inQueue+l.has.requestsPerMessage() <= l.has.sqLen &&
		n <= l.bounce.room() && n <= max(l.tx.Tail(), l.tx.Room())
}

// Gather adds a frame to those that go as one message: one receive, one work request and
// one descriptor for all of them. Gathers has been asked.
func (l *Link) Gather(h Header, payload []byte) {
	l.putHead(h, len(payload))
	if l.frames == nil {
		l.frames = make([]byte, 0, gatherSize)
	}
	l.frames = append(l.frames[:align(len(l.frames))], l.head[:]...)
	l.frames = append(l.frames, payload...)
}

// Gathered returns the length of what was gathered and not sent yet.
func (l *Link) Gathered() int { return len(l.frames) }

// Flush sends what was gathered.
func (l *Link) Flush() {
	if len(l.frames) == 0 {
		return
	}
	frames := l.frames
	l.frames = l.frames[:0]
	if l.stopped {
		return
	}
	l.head = [HeaderLen]byte(frames)
	if err := l.postMessage(frames[HeaderLen:], piece{}); err != nil {
		go l.user.Fail(fmt.Errorf("rnet: send: %w", err))
	}
}
