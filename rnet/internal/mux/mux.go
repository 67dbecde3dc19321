package mux

import (
	"encoding/binary"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/internal/random"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
	"github.com/seed-b9b531af/ramjet/rnet/internal/wait"
)

// User is told what happens to a mux. Its methods must not wait.
type User interface {
	// Incoming returns what is to be a stream that the peer opens. The owner of the poll lock
	// calls it.
	Incoming() Incoming
	// Served tells of one that an event loop has taken instead.
	Served()
	// Leaving says that no stream can be added any more, by us or by the peer. It may come more
	// than once, and by any goroutine.
	Leaving()
	// Failed says why the mux has come to its end. It comes once, before Leaving.
	Failed(cause error)
	// Ended says that everything has been taken in and all streams are over. What the mux
	// is made of is freed after it.
	Ended()
	// Take gives out addresses for up to want streams, on the listening side, at
	// consecutive ports, and returns the first and how many; 0 if there are none left.
	// share is the part of the free ones that it may have: 1 of share.
	Take(want, share int) (netip.AddrPort, int)
	// Give takes back what Take gave out.
	Give([]SlotAddrs)
}

// Incoming is a stream that the peer opens, together with what its user adds to it.
type Incoming interface {
	// Stream returns the stream, which is a zero one.
	Stream() *Stream
	// Accept takes the stream when it is open; false refuses it. The owner of the poll lock
	// calls it.
	Accept() bool
}

// Sizes are what a mux has for what it receives; the peer has its own.
type Sizes struct {
	Window        uint32 // of a stream
	SessionWindow uint32 // of all streams together
	Streams       uint32 // how many there may be at once
}

// Config says what a mux is like.
type Config struct {
	Sizes
	Profile fallback.Profile
	Dialed  bool    // we dialed: our side opens the streams
	Alone   bool    // it carries one stream and ends with it
	Poller  *Poller // of the event loop that serves it, nil if none does
}

// A Mux carries many streams over a link. docs/architecture.md tells who does what; in
// short:
//
//	pollLock is owned by the one goroutine that polls the link: a stream's reader
//	         or writer that has nothing better to do, or the engine
//	out.mu   is the send lock, also the link's: it orders everything that is sent
//
// Lock order: pollLock, the link's receive lock, out.mu, receiveHalf.mu.
type Mux struct {
	cfg   Config
	user  User
	link  *link.Link
	peer  Hello
	token uint64

	local, remote netip.AddrPort
	addrs         addrs

	streams   table
	goingAway atomic.Bool // the peer opens no more streams, or lets us open none
	draining  atomic.Bool // the peer is yet to say that it opens no more; see Drain

	out      sender
	sent     sentQueue
	share    receiverShare // of the session window
	arrived  arrived
	pollLock wait.Lock
	host     link.Host // nil where the peer is not on this host
	threads  bool      // the device wakes threads faster than goroutines
	loop     looped

	failOnce sync.Once
	cause    error // why it failed; set before failed
	failed   atomic.Bool
	closing  atomic.Bool   // the engine must leave
	done     chan struct{} // closed when the engine has left and all is freed

	idle        timedDeadline // closes the mux when nobody uses it
	flushChecks atomic.Int32  // how often expire has put it off
}

// New makes a mux, which is to be given a link (Use).
func New(cfg Config, user User) *Mux {
	m := &Mux{cfg: cfg, user: user, token: newToken(), done: make(chan struct{})}
	m.out.mux = m
	m.share.init(cfg.SessionWindow)
	m.loop.batch = link.PollBatch
	if cfg.Poller != nil {
		m.loop.handed = make(chan struct{})
	}
	return m
}

func newToken() uint64 {
	var b [8]byte
	random.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// SendLock returns the send lock, for the link.
func (m *Mux) SendLock() *sync.Mutex { return &m.out.mu }

// Use gives the mux its link, of which it is the user, and which it closes. Its caller owns
// the poll lock until Start.
func (m *Mux) Use(l *link.Link) {
	m.link, m.out.link = l, l
	m.out.control.link, m.out.control.received = l, &m.share
	m.sent.link, m.sent.mu = l, &m.out.mu
	m.threads = l.WakesThreads()
	cfg := wait.Config{Profile: m.cfg.Profile, Thread: m.threads, Wire: l.OnWire(), Accepts: !m.cfg.Dialed, Leads: m.cfg.Dialed}
	if m.host = l.Host(); m.host != nil {
		cfg.Peer = m.host
	}
	m.pollLock.Init((*polled)(m), l.Channel(), cfg)
}

// Hello returns what the peer has to know.
func (m *Mux) Hello() []byte {
	h := Hello{
		MinVersion: protocolVersion, MaxVersion: protocolVersion, Link: m.link.Params(),
		Window: m.cfg.Window, Streams: m.cfg.Streams, SessionWindow: m.cfg.SessionWindow,
		PID: uint32(os.Getpid()), Token: m.token,
	}
	return h.Marshal()
}

// Learn takes the peer's hello: from here on the mux can send. The error wraps ErrVersion
// if the two have no version in common.
func (m *Mux) Learn(private []byte) error {
	h, err := ParseHello(private)
	if err != nil {
		return err
	}
	m.peer = h
	m.streams.limit = int(min(m.cfg.Streams, h.Streams))
	if err := m.out.share.window.Init(h.SessionWindow); err != nil {
		return err
	}
	return m.link.Connect(h.Link)
}

// SetAddrs says what the two ends of the connection are called.
func (m *Mux) SetAddrs(local, remote netip.AddrPort) { m.local, m.remote = local, remote }

// LocalAddr returns the address of our end.
func (m *Mux) LocalAddr() netip.AddrPort { return m.local }

// RemoteAddr returns that of the peer.
func (m *Mux) RemoteAddr() netip.AddrPort { return m.remote }

// Start lets the mux live: what comes is taken in from here on, by its event loop or by
// whoever waits.
func (m *Mux) Start() {
	local := m.PeerIsLocal()
	m.out.mu.Lock()
	m.out.control.local = local
	m.out.mu.Unlock()
	go m.engine()
	if m.cfg.Poller == nil {
		m.pollLock.Start(local)
		return
	}
	m.pollLock.CallEngine()
	m.cfg.Poller.add(m)
}

// Fail ends the mux: its link fails, its streams get ECONNRESET
// unless they had come to their end, and the engine frees everything.
func (m *Mux) Fail(cause error) {
	m.failOnce.Do(func() {
		m.cause = cause
		m.failed.Store(true)
		m.user.Failed(cause)
		m.link.Fail()
		m.idle.stop()
		m.user.Leaving()
		m.closing.Store(true)
		m.pollLock.End()
	})
}

// Err returns why the mux has failed, nil if it has not.
func (m *Mux) Err() error {
	if !m.failed.Load() {
		return nil
	}
	return m.cause
}

// Abandon gives up a mux that was never started.
func (m *Mux) Abandon() {
	m.closing.Store(true)
	close(m.done)
	m.free()
}

// shutdown is the engine's last step, after the CQ was drained: nobody polls any more,
// so nothing that is freed here is in use.
func (m *Mux) shutdown() {
	for _, st := range m.streams.shutNow() {
		st.abort(syscall.ECONNRESET)
	}
	m.streams.clear()
	m.out.end()
	m.out.control.sweepSoon()
	m.sent.wake()
	m.user.Ended()
	close(m.done)
	m.free()
}

func (m *Mux) free() {
	m.link.Close()
	if given := m.addrs.list.Load(); !m.cfg.Dialed && given != nil {
		m.user.Give(*given)
	}
}

// PollLock returns the poll lock.
func (m *Mux) PollLock() *wait.Lock { return &m.pollLock }

// Link returns the link.
func (m *Mux) Link() *link.Link { return m.link }

// Config returns what New was given.
func (m *Mux) Config() Config { return m.cfg }

// Done returns a channel that is closed when the mux has ended.
func (m *Mux) Done() <-chan struct{} { return m.done }

// Peer returns what the peer has said of itself.
func (m *Mux) Peer() Hello { return m.peer }

// Token returns the number by which the two ends of a mux in one process can be matched.
func (m *Mux) Token() uint64 { return m.token }

// PeerIsLocal reports whether the peer is in this process.
func (m *Mux) PeerIsLocal() bool { return m.host != nil && m.host.PeerIsLocal() }
