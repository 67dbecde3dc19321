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
	"github.com/seed-b9b531af/ramjet/rnet/internal/wait"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// A session is one RC QP between two processes, with a receive ring on each
// side, that carries many streams (Conns). docs/architecture.md tells who
// does what; in short:
//
//	txMu     orders everything that is sent: ring space, slots, SQ, control
//	pollLock is owned by the one goroutine that polls the CQ: a Conn's reader
//	         or writer that has nothing better to do, or the engine
//	rxMu     guards the receive ring's accounts: its owner places messages,
//	         readers free what they kept
//
// Lock order: pollLock, rxMu, txMu, Conn.recvMu.
type session struct {
	cfg    sessionConfig
	dialed bool // we opened it; the dialing side opens the streams
	// dedicated sessions carry one stream and end with it.
	dedicated bool
	transport fallback.Transport
	dev       *device
	device    string // its name, and the port where it has several
	pd        *verbs.PD
	// domainUsers keep pd and dev open: the session, and each Conn that has
	// memory of Reserve.
	domainUsers atomic.Int32
	ch          *verbs.CompChannel
	cq          *verbs.CQ
	qp          *verbs.QP
	rxMR        *verbs.MR
	conn        rcm.Conn
	peer        hello
	log         *slog.Logger
	number      uint64 // among the sessions of the process
	token       uint64
	opened      time.Time

	localAddr, remoteAddr netip.AddrPort
	addrs                 addrs
	noAddrs               bool       // the peer was told that there are no more; written by who gives them
	space                 *addrSpace // from which addrs are; nil on the dialing side

	streams table
	accept  func(*Conn) bool // listening side: takes an opened stream
	onOpen  func()           // told of each that an event loop takes
	onEnd   func(*session)   // called once, when no stream can be added any more

	sender
	receiver
	pollLock wait.Lock
	cpus     peerOnHost // nil where the peer is not on this host
	threads  bool       // the device wakes threads faster than goroutines
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
	slots      uint32 // receives posted for data
	window     uint32 // receive window of a stream
	maxStreams uint32

	sessionWindow uint32
}

// The most payload of one frame. Pieces of maxPayload overlap the two copies of
// the software HCA; to a device on a network fewer requests count for more.
const (
	maxPayload  = 16 << 10
	wirePayload = 64 << 10
)

// controlSlots are receives beyond those for data: credit messages need no
// slot credit. At most one is sent for each quarter of the ring and one for
// each quarter of the slots, and a peer cannot use more than the whole of
// both before it has read them, so 8 can be under way. Another 8 may have been
// used up and not been posted again. The send queue has as many places beyond
// those for data, for the same messages.
const controlSlots = 16

const (
	sendQueueLen = 4096 // WRs, on a device whose queues are ordinary memory
	wireQueueLen = 1024 // WRs, on one that has its own
	minQueueLen  = 64
	wireInline   = 220 // bytes inline, on the latter: each place of the queue has room for so many
	pollBatch    = 32
)

func newToken() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// newSession makes all of a session but the connection: QP, CQ, receive ring.
func newSession(deviceName string, cfg sessionConfig, log *slog.Logger) (s *session, err error) {
	s = &session{cfg: cfg, log: log, device: deviceName, token: newToken(), opened: time.Now(), done: make(chan struct{})}
	s.batch = pollBatch
	s.domainUsers.Store(1)
	half := s // the result is nil by then
	defer func() {
		if err != nil {
			half.free()
		}
	}()
	if s.dev, err = acquireDevice(deviceName); err != nil {
		return nil, err
	}
	attr := s.dev.ctx.Attr()
	if err = s.fit(&attr); err != nil {
		return nil, fmt.Errorf("device %s: %w", deviceName, err)
	}
	if s.pd, err = s.dev.ctx.AllocPD(); err != nil {
		return nil, err
	}
	receives, sends := s.queues()
	if s.notices != nil {
		if err = s.notices.alloc(s.pd, receives); err != nil {
			return nil, err
		}
	}
	if err = s.allocRing(); err != nil {
		return nil, err
	}
	if s.ch, err = s.dev.ctx.CreateCompChannel(); err != nil {
		return nil, err
	}
	if s.cq, err = s.dev.ctx.CreateCQ(verbs.CQAttr{CQE: receives + sends}, s.ch); err != nil {
		return nil, err
	}
	s.qp, err = s.pd.CreateQP(verbs.QPInitAttr{
		Type: verbs.QPTypeRC, SendCQ: s.cq, RecvCQ: s.cq,
		Cap: verbs.QPCap{MaxSendWR: sends, MaxRecvWR: receives, MaxSendSGE: 2, MaxRecvSGE: 1, MaxInline: s.inline},
	})
	if err != nil {
		return nil, err
	}
	if err = s.rx.Init(s.cfg.ringSize); err != nil {
		return nil, err
	}
	if err = s.rxSlots.Init(int(s.cfg.slots)); err != nil {
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
	var flags uint16
	if s.probes {
		flags |= helloProbes
	}
	if s.notices != nil && s.notices.place >= shortMessage {
		flags |= helloShort
	}
	return &hello{
		minVersion: protocolVersion, maxVersion: protocolVersion, flags: flags,
		ringAddr: s.rxMR.Addr(), ringKey: s.rxMR.RKey(), ringSize: s.cfg.ringSize,
		slots: s.cfg.slots, window: s.cfg.window, streams: s.cfg.maxStreams, sessionWindow: s.cfg.sessionWindow,
		pid: uint32(os.Getpid()), token: s.token,
	}
}

// connParam is what both sides ask of the connection.
func (s *session) connParam() rcm.ConnParam {
	p := rcm.ConnParam{
		PrivateData: s.hello().marshal(),
		Access:      verbs.AccessRemoteWrite,
		Prepare:     func(*verbs.QP) error { return s.postReceives() },
	}
	if s.probes {
		p.Access |= verbs.AccessRemoteRead
		p.InitiatorDepth, p.ResponderResources = 1, 1
	}
	return p
}

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
	s.probes = s.probes && h.flags&helloProbes != 0
	s.streams.limit = int(min(s.cfg.maxStreams, h.streams))
	return s.initSender()
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

// fail ends the session: its QP goes to ERR, its streams get ECONNRESET
// unless they had come to their end, and the engine frees everything.
func (s *session) fail(cause error) {
	s.failOnce.Do(func() {
		s.cause = cause
		s.failed.Store(true)
		if cause != nil && !errors.Is(cause, errSessionIdle) && !errors.Is(cause, net.ErrClosed) {
			s.log.Debug("rnet: session failed", "peer", s.remoteAddr, "device", s.device, "pid", s.peer.pid, "err", cause)
		}
		s.qp.Fail()
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

// shutdown is the engine's last act, after the CQ was drained: no one leads
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

// free closes what newSession made. The receive ring outlives it as long as a
// reader keeps a piece of it.
func (s *session) free() {
	s.txMu.Lock()
	s.txDead = true
	registered := []*verbs.MR{s.stage.mr, s.heads}
	s.stage, s.heads = stage{}, nil
	if s.notices != nil {
		registered = append(registered, s.notices.mr)
	}
	s.txMu.Unlock()
	if s.qp != nil {
		s.qp.Close()
	}
	s.txMu.Lock()
	s.qpClosed = true
	s.txMu.Unlock()
	if s.cq != nil {
		s.cq.Close()
	}
	if s.ch != nil {
		s.ch.Close()
	}
	for _, mr := range registered {
		if mr != nil {
			mr.Close()
		}
	}
	s.sweepOuts()
	s.returnAddrs()
	if s.rxMR != nil {
		s.releaseRing()
		return
	}
	s.freeDomain()
}

// freeDomain closes what the session's memory lived in, when the last piece of
// it is gone.
func (s *session) freeDomain() {
	if s.domainUsers.Add(-1) > 0 {
		return
	}
	if s.pd != nil {
		s.pd.Close()
	}
	if s.dev != nil {
		s.dev.release()
	}
}
