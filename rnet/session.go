package rnet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
	"github.com/seed-b9b531af/ramjet/rnet/internal/settings"
)

// A session connects two processes: a mux, the link that it runs over, and the
// connection that package rcm made for it.
type session struct {
	mux          *mux.Mux
	over         *link.Link
	transport    fallback.Transport
	dev          *device
	device       string // its name, and the port where it has several
	experimental bool   // verbs.DeviceAttr has it
	conn         rcm.Conn
	log          *slog.Logger
	number       uint64 // among the sessions of the process
	attached     bool   // it holds attachable; set by start
	opened       time.Time

	unix *unixAddrs // of its connections; nil: they have those of a network

	listener *Listener      // whose session it is, nil on the dialing side
	onEnd    func(*session) // called when no stream can be added any more
}

// newSession makes all of a session but the connection. kind says what is not in cfg.
func newSession(deviceName string, cfg settings.Session, kind mux.Config, log *slog.Logger) (*session, error) {
	s := &session{log: log}
	var err error
	if s.dev, err = acquireDevice(deviceName); err != nil {
		return nil, err
	}
	kind.Sizes, kind.Profile = cfg.Sizes, cfg.Profile
	s.mux = mux.New(kind, s)
	s.over, err = link.New(link.Config{
		Device: s.dev.ctx, Release: s.dev.release, RingSize: cfg.RingSize, Slots: link.DefaultSlots, Send: s.mux.SendLock(),
	}, s.mux)
	if err != nil {
		return nil, err
	}
	s.mux.Use(s.over)
	return s, nil
}

// goesOver says over which port of its device the session is.
func (s *session) goesOver(port uint8) {
	attr := s.dev.ctx.Attr()
	s.device = portName(attr.Name, attr.PhysPorts, port)
	s.experimental = attr.Experimental
}

// portName is what a port of a device is called: as the device, if that has no
// other.
func portName(device string, ports int, port uint8) string {
	if ports == 1 {
		return device
	}
	return fallback.Device{Name: device, Port: port}.String()
}

// connParam is what both sides ask of the connection.
func (s *session) connParam() rcm.ConnParam { return s.over.ConnParam(s.mux.Hello()) }

// learn takes the peer's hello.
func (s *session) learn(private []byte) error {
	err := s.mux.Learn(private)
	switch {
	case errors.Is(err, mux.ErrVersion):
		return fallback.Because(fallback.VersionMismatch, err)
	case errors.Is(err, mux.ErrHello):
		return fallback.Because(fallback.HandshakeGarbage, err)
	case errors.Is(err, link.ErrRing):
		return fallback.Because(fallback.NoMemory, err)
	}
	return err
}

// connected notes the connection.
func (s *session) connected(conn rcm.Conn) {
	s.conn, s.opened = conn, time.Now()
	liveSessions.add(s)
}

// start lets the session live on its connection, after it has tried it out. If it does
// not work all is freed.
func (s *session) start(ctx context.Context) error {
	if err := s.mux.Greet(ctx, s.conn.Err); err != nil {
		return err
	}
	attachable.hold() // not before: its descriptors may be the last ones
	s.attached = true
	s.mux.Start()
	s.conn.AfterDisconnect(s.disconnected)
	return nil
}

// disconnected fails the session when the peer has ended the connection, or died.
func (s *session) disconnected() {
	err := s.conn.Err()
	if errors.Is(err, net.ErrClosed) {
		return // that was Ended
	}
	if errors.Is(err, rcm.ErrDisconnected) {
		err = fmt.Errorf("%w: the peer ended the session", syscall.ECONNRESET)
	}
	s.mux.Fail(err)
}

// open makes a stream to the peer. The error is net.ErrClosed if the session
// is ending; the caller makes another session then. With mux.ErrNoSlot it may be
// called again, see openWhenTold.
func (s *session) open() (*Conn, error) {
	c := newConn(s)
	if err := s.mux.Open(&c.st); err != nil {
		return nil, err
	}
	return c, nil
}

// openWhenTold is open, but waits where the listening side has to give an
// address first, for setUpTime at most.
func (s *session) openWhenTold(ctx context.Context, o openOptions) (*Conn, error) {
	open := s.open
	if o.open != nil {
		open = func() (*Conn, error) { return o.open(s) }
	}
	c, err := open()
	if !errors.Is(err, mux.ErrNoSlot) {
		return c, err
	}
	ctx, cancel := context.WithTimeout(ctx, setUpTime)
	defer cancel()
	var over <-chan time.Time
	if o.hs != nil {
		over = o.hs.Over()
	}
	for {
		freed := s.mux.AwaitSlot()
		if c, err = open(); !errors.Is(err, mux.ErrNoSlot) {
			return c, err
		}
		select {
		case <-freed:
			// ended by the owner of the poll lock: addresses, a GO_AWAY, or the end of a
			// stream; or the end of the session
		case <-ctx.Done():
			return nil, fallback.Because(fallback.Admission, fmt.Errorf("%w: %w", err, ctx.Err()))
		case <-over:
			if !o.hs.GoOn(true) { // the listener lives
				return nil, fallback.Because(fallback.Admission, fmt.Errorf("%w: %w", o.hs.Err(), err))
			}
		}
	}
}

// Incoming makes the Conn of a stream that the peer opens.
func (s *session) Incoming() mux.Incoming { return (*incoming)(newConn(s)) }

// incoming is a Conn as the mux sees it that makes its stream.
type incoming Conn

func (in *incoming) Stream() *mux.Stream { return &in.st }

func (in *incoming) Accept() bool {
	l := in.s.listener
	return l.loops == nil && l.push((*Conn)(in)) // if there were loops, the stream's has ended
}

// Served counts a stream that the peer has opened and an event loop serves.
func (s *session) Served() { s.listener.countStream() }

// Leaving is called by the mux when no stream can be added any more.
func (s *session) Leaving() {
	if s.onEnd != nil {
		s.onEnd(s)
	}
}

// Failed is called by the mux when it has come to its end.
func (s *session) Failed(cause error) {
	if cause != nil && !errors.Is(cause, mux.ErrIdle) && !errors.Is(cause, net.ErrClosed) {
		// The handler is the program's, and who calls Failed may poll for other sessions.
		go s.log.Debug("rnet: session failed", "peer", s.mux.RemoteAddr(), "device", s.device, "pid", s.mux.Peer().PID, "err", cause)
	}
}

// Ended is called by the mux when all streams are over.
func (s *session) Ended() {
	s.conn.Disconnect()
	liveSessions.remove(s)
}

// Take gives the mux addresses for its streams, on the listening side.
func (s *session) Take(want, share int) (netip.AddrPort, int) {
	return s.listener.space.Take(s.mux.RemoteAddr().Addr(), s.transport == fallback.Soft, want, share)
}

// Give takes back what Take gave.
func (s *session) Give(list []mux.SlotAddrs) { s.listener.space.Give(s.mux.RemoteAddr().Addr(), list) }
