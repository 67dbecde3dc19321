package mux

// An event loop has a Poller, and calls it from its one goroutine. Sessions are given to
// the poller when they are made; from then on nobody else polls them. What happens to
// their streams the poller tells the streams' sinks, during Poll, Arm and Attach, so on
// the loop's goroutine, one at a time. See docs/gnet.md.

// Owner is the event loop as its poller sees it.
type Owner interface {
	// Wake makes the loop call Poll soon. Any goroutine may call it, often,
	// and with locks held: it does not wait.
	Wake()
	// Accept returns the sink of a stream that a peer has opened, nil to
	// refuse it. It may be called by any goroutine; the sink's Opened comes
	// from the loop's.
	Accept(*LoopStream) Sink
}

// Sink is told what happens to one stream.
type Sink interface {
	// Opened comes first.
	Opened()
	// Readable brings bytes. They are valid until it returns.
	Readable(p []byte)
	// Writable follows after a Write that did not take everything.
	Writable()
	// Ended says that no more bytes come: io.EOF after the peer's last, or
	// why the stream broke. The stream is to be closed then.
	Ended(err error)
	// Buffered returns how many bytes the sink holds: that came and were not
	// taken by the handler, and that wait for room. Any goroutine may ask,
	// with locks held.
	Buffered() (inbound, outbound int)
}
