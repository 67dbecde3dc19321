package rnet

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
	"github.com/seed-b9b531af/ramjet/rnet/internal/wait"
)

// A session is a link between two processes that carries many streams (Conns).
// docs/architecture.md tells who does what; in short:
//
//	pollLock is owned by the one goroutine that polls the link: a Conn's reader
//	         or writer that has nothing better to do, or the engine
//	txMu     is the link's send lock: it orders everything that is sent
//
// Lock order: pollLock, the link's receive lock, txMu, Conn.recv.mu.
type session struct {
	cfg    sessionConfig
	dialed bool // we opened it; the dialing side opens the streams
	// dedicated sessions carry one stream and end with it.
	dedicated bool
	transport fallback.Transport
	dev       *device
	device    string // its name, and the port where it has several
	link      *link.Link
	conn      rcm.Conn
	peer      hello
	log       *slog.Logger
	number    uint64 // among the sessions of the process
	attached  bool   // it holds attachable; set by start
	token     uint64
	opened    time.Time

	localAddr, remoteAddr netip.AddrPort
	addrs                 addrs
	noAddrs               bool       // the peer was told that there are no more; written by who gives them
	space                 *addrSpace // from which addrs are; nil on the dialing side

	streams   table
	accept    func(*Conn) bool // listening side: takes an opened stream
	onOpen    func()           // told of each that an event loop takes
	onEnd     func(*session)   // called once, when no stream can be added any more
	goingAway atomic.Bool      // the peer opens no more streams, or lets us open none

	sender
	sharedReceiver
	arrived  arrived
	pollLock wait.Lock
	host     link.Host // nil where the peer is not on this host
	threads  bool      // the device wakes threads faster than goroutines
	looped

	failOnce sync.Once
	cause    error // why it failed; set before failed
	failed   atomic.Bool
	closing  atomic.Bool   // the engine must leave
	done     chan struct{} // closed when the engine has left and all is freed

	idleMu      sync.Mutex
	idleTimer   *time.Timer  // closes the session when nobody uses it
	flushChecks atomic.Int32 // how often expire has put it off

	stats sessionCounters
}

// sessionConfig is what both kinds of sessions are made from.
type sessionConfig struct {
	profile    fallback.Profile
	ringSize   uint32
	window     uint32 // receive window of a stream
	maxStreams uint32

	sessionWindow uint32
}

func newToken() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// newSession makes all of a session but the connection.
func newSession(deviceName string, cfg sessionConfig, log *slog.Logger) (*session, error) {
	s := &session{cfg: cfg, log: log, device: deviceName, token: newToken(), opened: time.Now(), done: make(chan struct{})}
	s.batch = link.PollBatch
	var err error
	if s.dev, err = acquireDevice(deviceName); err != nil {
		return nil, err
	}
	s.link, err = link.New(link.Config{
		Device: s.dev.ctx, Release: s.dev.release, RingSize: cfg.ringSize, Slots: link.DefaultSlots, Send: &s.txMu,
	}, s)
	if err != nil {
		return nil, err
	}
	s.initWaiting()
	return s, nil
}

// goesOver says over which port of its device the session is.
func (s *session) goesOver(port uint8) {
	attr := s.dev.ctx.Attr()
	s.device = portName(attr.Name, attr.PhysPorts, port)
}

// portName is what a port of a device is called: as the device, if that has no
// other.
func portName(device string, ports int, port uint8) string {
	if ports == 1 {
		return device
	}
	return fallback.Device{Name: device, Port: port}.String()
}

func (s *session) hello() *hello {
	return &hello{
		minVersion: protocolVersion, maxVersion: protocolVersion, link: s.link.Params(),
		window: s.cfg.window, streams: s.cfg.maxStreams, sessionWindow: s.cfg.sessionWindow,
		pid: uint32(os.Getpid()), token: s.token,
	}
}

// connParam is what both sides ask of the connection.
func (s *session) connParam() rcm.ConnParam { return s.link.ConnParam(s.hello().marshal()) }

// learn takes the peer's hello: from here on the session can send.
func (s *session) learn(private []byte) error {
	h, err := parseHello(private)
	if err != nil {
		reason := fallback.HandshakeGarbage
		if errors.Is(err, errVersion) {
			reason = fallback.VersionMismatch
		}
		return fallback.Because(reason, err)
	}
	s.peer = h
	s.streams.limit = int(min(s.cfg.maxStreams, h.streams))
	if err := s.initShare(); err != nil {
		return err
	}
	return s.link.Connect(h.link)
}

// start lets the session live on conn, after it has tried it out. If it does
// not work all is freed.
func (s *session) start(ctx context.Context, conn rcm.Conn) error {
	s.conn = conn
	liveSessions.add(s)
	if err := s.prime(ctx); err != nil {
		s.fail(err)
		s.drain()
		s.shutdown() // the peer may have opened streams already
		return err
	}
	attachable.hold() // not before: its descriptors may be the last ones
	s.attached = true
	go s.engine()
	go s.watch()
	s.release()
	return nil
}

// watch ends with the connection: by the peer, its death, or our Disconnect.
func (s *session) watch() {
	select {
	case <-s.conn.Disconnected():
	case <-s.done:
		return
	}
	err := s.conn.Err()
	if errors.Is(err, rcm.ErrDisconnected) {
		err = fmt.Errorf("%w: the peer ended the session", syscall.ECONNRESET)
	}
	s.fail(err)
}

// Broken is fail, for the link.
func (s *session) Broken(cause error) { s.fail(cause) }

// fail ends the session: its link fails, its streams get ECONNRESET
// unless they had come to their end, and the engine frees everything.
func (s *session) fail(cause error) {
	s.failOnce.Do(func() {
		s.cause = cause
		s.failed.Store(true)
		if cause != nil && !errors.Is(cause, errSessionIdle) && !errors.Is(cause, net.ErrClosed) {
			s.log.Debug("rnet: session failed", "peer", s.remoteAddr, "device", s.device, "pid", s.peer.pid, "err", cause)
		}
		s.link.Fail()
		s.stopIdleTimer()
		if s.onEnd != nil {
			s.onEnd(s)
		}
		s.closing.Store(true)
		s.pollLock.End()
	})
}

// abandon gives up a session that was never started.
func (s *session) abandon() {
	s.closing.Store(true)
	close(s.done)
	s.free()
}

// shutdown is the engine's last act, after the CQ was drained: no one polls
// any more, so what is freed here is not in use.
func (s *session) shutdown() {
	for _, c := range s.streams.shutNow() {
		c.abort(syscall.ECONNRESET)
	}
	s.streams.clear()
	s.wakeSenders()
	if s.conn != nil {
		s.conn.Disconnect()
	}
	liveSessions.remove(s)
	close(s.done)
	s.free()
}

func (s *session) free() {
	s.link.Close()
	s.returnAddrs()
}
