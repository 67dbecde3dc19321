package verbsperf

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/seed-b9b531af/ramjet/internal/freeport"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/kernelcm"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// The client connects one QP after the other to the server's listener. Its private data
// are the server's token, which it has by TCP, and the number of the QP.
const (
	tokenSize = 16
	dataSize  = tokenSize + 2
)

// fabricOf connects QPs of the device.
func fabricOf(dev *verbs.Context) rcm.Fabric {
	if dev.Attr().Transport == verbs.TransportSoft {
		return softcm.New(softcm.Config{Device: dev.Name()})
	}
	return kernelcm.New(kernelcm.Config{Device: dev.Name(), Port: 1})
}

// listener is the server's.
type listener struct {
	rcm.Listener
	token []byte
}

// listen listens at an address of the device: that at which the client has come by TCP if
// it is one, or another.
func (m *meeting) listen() (*listener, error) {
	reached, _ := m.control.conn.LocalAddr().(*net.TCPAddr)
	addrs := []netip.Addr{reached.AddrPort().Addr().Unmap()}
	more, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	for _, a := range more {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && !prefix.Addr().IsLinkLocalUnicast() {
			addrs = append(addrs, prefix.Addr())
		}
	}
	var errs []error
	for _, addr := range addrs {
		at, err := freeport.Address(addr.String())
		if err != nil {
			errs = append(errs, err)
			continue
		}
		ln, err := fabricOf(m.dev).Listen(netip.MustParseAddrPort(at), rcm.ListenConfig{HandshakeTimeout: patience})
		if err == nil {
			token := make([]byte, tokenSize)
			rand.Read(token)
			return &listener{ln, token}, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("%s has no address at which QPs can be connected with -rcm: %w", m.dev.Name(), errors.Join(errs...))
}

// accept connects the QPs with those that the client connects. Others are rejected.
func (ln *listener) accept(ctx context.Context, s *side) error {
	for range s.qps {
		ctx, stop := context.WithTimeout(ctx, patience)
		err := ln.acceptQP(ctx, s) // ends with the client's request, or the time
		stop()
		if err != nil {
			return err
		}
	}
	return nil
}

func (ln *listener) acceptQP(ctx context.Context, s *side) error {
	for {
		request, err := ln.Accept(ctx)
		if err != nil {
			return err
		}
		data := request.PrivateData()
		if len(data) < dataSize || subtle.ConstantTimeCompare(data[:tokenSize], ln.token) != 1 || request.Device() != s.ctx.Name() {
			_ = request.Reject(nil) // who has gone need not be told
			if ctx.Err() != nil {
				return context.Cause(ctx) // Accept returns those that are there all the same
			}
			continue
		}
		i := len(s.conns)
		if n := binary.LittleEndian.Uint16(data[tokenSize:]); int(n) != i {
			return errors.Join(fmt.Errorf("the client connects QP %d, not %d", n, i), request.Reject(nil))
		}
		conn, err := request.Accept(ctx, s.qps[i], s.param(i, nil))
		if err != nil {
			return err
		}
		s.conns = append(s.conns, conn)
		return nil
	}
}

// dial connects the QPs to the server's listener.
func (s *side) dial(ctx context.Context) error {
	if len(s.peer.Token) != tokenSize {
		return errors.New("the server has said no token")
	}
	for i := range s.qps {
		ctx, stop := context.WithTimeout(ctx, patience)
		err := s.dialQP(ctx, i) // ends with the server's answer, or the time
		stop()
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *side) dialQP(ctx context.Context, i int) error {
	route, err := fabricOf(s.ctx).Resolve(ctx, s.peer.Listener)
	if err != nil {
		return err
	}
	conn, err := route.Connect(ctx, s.qps[i], s.param(i, binary.LittleEndian.AppendUint16(s.peer.Token, uint16(i))))
	if err != nil {
		return err
	}
	s.conns = append(s.conns, conn)
	return nil
}

// param says how QP i is connected.
func (s *side) param(i int, data []byte) rcm.ConnParam {
	return rcm.ConnParam{
		PrivateData: data, MinRNRTimer: minRNRTimer, Timeout: ackTimeout,
		ResponderResources: s.serves(), InitiatorDepth: s.reads(), Access: s.access(),
		Prepare: func(*verbs.QP) error { return s.ready(i) },
	}
}
