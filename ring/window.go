package ring

import "fmt"

// MaxWindow is the largest window of a stream in bytes.
const MaxWindow = 1 << 30

// SendWindow is the sender's side of a stream's flow control: how far the
// receiver lets it send, as an absolute position. The zero SendWindow is shut
// until Init or Grant.
type SendWindow struct {
	sent    uint64
	granted uint64 // sent <= granted <= sent+MaxWindow
}

// Init starts the window at position 0 with window bytes granted, 0 to
// MaxWindow.
func (w *SendWindow) Init(window uint32) error {
	if window > MaxWindow {
		return fmt.Errorf("%w: window of %d bytes, at most %d", ErrSize, window, MaxWindow)
	}
	*w = SendWindow{granted: uint64(window)}
	return nil
}

// Avail returns the bytes that may be sent now.
func (w *SendWindow) Avail() int { return int(w.granted - w.sent) }

// Take counts n bytes as sent. More than Avail is a bug of the caller and
// panics.
func (w *SendWindow) Take(n int) {
	if n < 0 || uint64(n) > w.granted-w.sent {
		panic("ring: Take beyond the window")
	}
	w.sent += uint64(n)
}

// Grant takes the position up to which the receiver lets us send. A stale one
// is ignored; one that opens the window beyond MaxWindow is ErrCredit.
func (w *SendWindow) Grant(limit uint64) error {
	if limit <= w.granted {
		return nil
	}
	if limit-w.sent > MaxWindow {
		return w.lie(limit)
	}
	w.granted = limit
	return nil
}

func (w *SendWindow) lie(limit uint64) error {
	return fmt.Errorf("%w: window up to %d granted, %d sent", ErrCredit, limit, w.sent)
}

// Sent returns the bytes sent so far.
func (w *SendWindow) Sent() uint64 { return w.sent }

// Granted returns the position up to which the receiver lets us send.
func (w *SendWindow) Granted() uint64 { return w.granted }

// RecvWindow is the receiver's side of a stream's flow control. The zero
// RecvWindow takes nothing until Init.
type RecvWindow struct {
	arrived  uint64
	consumed uint64 // consumed <= arrived <= granted
	granted  uint64 // position that the sender was last told
	window   uint32
}

// Init starts at position 0 with window bytes granted, 1 to MaxWindow.
func (w *RecvWindow) Init(window uint32) error {
	*w = RecvWindow{granted: uint64(window)}
	return w.Resize(window)
}

// Resize makes window, 1 to MaxWindow, the size from the next update on. What
// was granted already stays granted.
func (w *RecvWindow) Resize(window uint32) error {
	if window == 0 || window > MaxWindow {
		return fmt.Errorf("%w: window of %d bytes, want 1 to %d", ErrSize, window, MaxWindow)
	}
	w.window = window
	return nil
}

// Arrive counts n bytes as arrived. ErrOverrun if n is negative or goes beyond
// what was granted; then nothing has changed.
func (w *RecvWindow) Arrive(n int) error {
	if n < 0 || uint64(n) > w.granted-w.arrived {
		return w.overrun(n)
	}
	w.arrived += uint64(n)
	return nil
}

func (w *RecvWindow) overrun(n int) error {
	return fmt.Errorf("%w: %d bytes at %d of a stream, %d granted", ErrOverrun, n, w.arrived, w.granted)
}

// Consume counts n of the bytes that arrived as read by the application. More
// than Buffered is a bug of the caller and panics.
func (w *RecvWindow) Consume(n int) {
	if n < 0 || uint64(n) > w.arrived-w.consumed {
		panic("ring: Consume of what has not arrived")
	}
	w.consumed += uint64(n)
}

// UpdateDue reports whether so much was consumed since the last update that the
// sender should be told: a quarter of the window. A sender that has used up its
// window is therefore always told once everything was consumed.
func (w *RecvWindow) UpdateDue() bool {
	return int64(w.consumed+uint64(w.window)-w.granted) >= int64(w.window+3)/4
}

// TakeUpdate returns the position up to which the sender may send, to be sent
// to it, and remembers it as told. It never goes back.
func (w *RecvWindow) TakeUpdate() (limit uint64) {
	w.granted = max(w.granted, w.consumed+uint64(w.window))
	return w.granted
}

// Untold returns how many bytes were consumed that the sender was not told of.
func (w *RecvWindow) Untold() int { return max(0, int(int64(w.consumed+uint64(w.window)-w.granted))) }

// Granted returns the position up to which the sender was last told it may send.
func (w *RecvWindow) Granted() uint64 { return w.granted }

// Buffered returns the bytes that arrived and were not consumed yet.
func (w *RecvWindow) Buffered() int { return int(w.arrived - w.consumed) }

// Arrived returns the bytes that arrived so far.
func (w *RecvWindow) Arrived() uint64 { return w.arrived }

// Consumed returns the bytes that were consumed so far.
func (w *RecvWindow) Consumed() uint64 { return w.consumed }
