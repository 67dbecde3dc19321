// Package endpoint is what the examples for verbs users have in common: opening a
// device, telling the other end where one is, taking a QP through its states, and
// waiting for a completion.
package endpoint

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/examples/internal/program"
	"github.com/seed-b9b531af/ramjet/verbs"
	_ "github.com/seed-b9b531af/ramjet/verbs/soft"   // "soft0"
	_ "github.com/seed-b9b531af/ramjet/verbs/uverbs" // devices of the kernel
)

// Endpoint is an open device with a protection domain and a completion queue.
type Endpoint struct {
	*verbs.Context
	PD      *verbs.PD
	Channel *verbs.CompChannel
	CQ      *verbs.CQ
	GID     verbs.GIDEntry
	LID     uint16 // of the port, in an InfiniBand subnet

	interrupted atomic.Bool
}

// Open opens a device. Of its GIDs it takes that of an IPv4 address, if there is one.
func Open(device string) (*Endpoint, error) {
	ctx, err := verbs.Open(device)
	if err != nil {
		return nil, err
	}
	e := &Endpoint{Context: ctx}
	if err := e.prepare(); err != nil {
		return nil, errors.Join(err, ctx.Close())
	}
	return e, nil
}

func (e *Endpoint) prepare() error {
	port, err := e.QueryPort(1)
	if err != nil {
		return err
	}
	e.LID = port.LID
	gids, err := e.QueryGIDs(1)
	if err != nil {
		return err
	}
	if len(gids) == 0 {
		return fmt.Errorf("%s has no GID", e.Name())
	}
	e.GID = gids[0]
	for _, g := range gids {
		if g.Type == verbs.GIDTypeRoCEv2 && netip.AddrFrom16(g.GID).Is4In6() {
			e.GID = g
		}
	}
	if e.PD, err = e.AllocPD(); err != nil {
		return err
	}
	if e.Channel, err = e.CreateCompChannel(); err != nil {
		return err
	}
	e.CQ, err = e.CreateCQ(verbs.CQAttr{CQE: 1024}, e.Channel)
	return err
}

// NewQP makes a QP; srq may be nil.
func (e *Endpoint) NewQP(typ verbs.QPType, srq *verbs.SRQ, depth int) (*verbs.QP, error) {
	sizes := verbs.QPCap{MaxSendWR: depth, MaxSendSGE: 1}
	if srq == nil {
		sizes.MaxRecvWR, sizes.MaxRecvSGE = depth, 1
	}
	return e.PD.CreateQP(verbs.QPInitAttr{Type: typ, SendCQ: e.CQ, RecvCQ: e.CQ, SRQ: srq, Cap: sizes})
}

// Address is what one end tells the other.
type Address struct {
	GID  verbs.GID
	LID  uint16
	QPN  uint32
	Addr uint64 // of memory that the other may use, with its key
	RKey uint32
}

// AddressOf is the address of a QP; mr may be nil.
func (e *Endpoint) AddressOf(qp *verbs.QP, mr *verbs.MR) Address {
	a := Address{GID: e.GID.GID, LID: e.LID, QPN: qp.Num()}
	if mr != nil {
		a.Addr, a.RKey = mr.Addr(), mr.RKey()
	}
	return a
}

// Exchange tells the other end of conn where we are, and returns where it is.
func Exchange(conn net.Conn, mine Address) (theirs Address, err error) {
	if err := binary.Write(conn, binary.LittleEndian, mine); err != nil {
		return theirs, err
	}
	return theirs, binary.Read(conn, binary.LittleEndian, &theirs)
}

// Meet waits until the other end has come as far, from where on it may take its time.
func Meet(conn net.Conn) error {
	_, err := conn.Write([]byte{1})
	return cmp.Or(err, second(io.ReadFull(conn, make([]byte, 1))), conn.SetReadDeadline(time.Time{}))
}

func second(_ int, err error) error { return err }

// HungUp reports whether the other end has closed conn, on which it says nothing.
func HungUp(conn net.Conn) bool {
	defer conn.SetReadDeadline(time.Time{})
	_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond)) // a closed one has hung up too
	_, err := conn.Read(make([]byte, 1))
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// Vector is the way to a peer. On InfiniBand the LID leads there; RoCE has none,
// and goes by the GID.
func (e *Endpoint) Vector(to Address) verbs.AddressVector {
	return verbs.AddressVector{DLID: to.LID, DGID: to.GID, SGIDIndex: uint8(e.GID.Index), HopLimit: 64, IsGlobal: true, Port: 1}
}

// ConnectRC takes an RC QP from RESET to RTS towards a peer, which may do with our
// memory what access says.
func (e *Endpoint) ConnectRC(qp *verbs.QP, peer Address, access verbs.Access) error {
	err := qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1, Access: access},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess)
	if err != nil {
		return err
	}
	err = qp.Modify(verbs.QPAttr{
		State: verbs.QPStateRTR, AV: e.Vector(peer), PathMTU: verbs.MTU1024, DestQPN: peer.QPN, MaxDestRdAtomic: 1, MinRNRTimer: 12,
	}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|
		verbs.QPAttrMaxDestRdAtomic|verbs.QPAttrMinRNRTimer)
	if err != nil {
		return err
	}
	return qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS, Timeout: 18, RetryCount: 7, RNRRetry: 7, MaxRdAtomic: 1},
		verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCount|verbs.QPAttrRNRRetry|verbs.QPAttrSQPSN|verbs.QPAttrMaxRdAtomic)
}

// ReadyUD takes a UD QP from RESET to RTS.
func ReadyUD(qp *verbs.QP, qkey uint32) error {
	err := qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: qkey},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrQKey)
	if err == nil {
		err = qp.Modify(verbs.QPAttr{State: verbs.QPStateRTR}, verbs.QPAttrState)
	}
	if err == nil {
		err = qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS}, verbs.QPAttrState|verbs.QPAttrSQPSN)
	}
	return err
}

// Wait returns the next completion. It sleeps: between the poll that has found
// nothing and the sleep the CQ is armed, and polled once more. At the deadline the error
// wraps os.ErrDeadlineExceeded; the zero time means none.
func (e *Endpoint) Wait(deadline time.Time) (verbs.WC, error) {
	var wc [1]verbs.WC
	for {
		if e.interrupted.Load() {
			return wc[0], errors.New("interrupted")
		}
		n, err := e.CQ.Poll(wc[:])
		if err == nil && n == 0 {
			if err = e.CQ.Arm(false); err == nil {
				n, err = e.CQ.Poll(wc[:])
			}
		}
		if err != nil || n > 0 {
			return wc[0], cmp.Or(err, wc[0].Err())
		}
		// ends with a completion, the deadline, an interrupt or Close
		if err := e.Channel.Wait(deadline); err != nil {
			return wc[0], err
		}
	}
}

// WaitFor is Wait as long as the other end of conn, which says nothing on it meanwhile, is there.
// Devices of the kernel do not tell of an end that is gone, and who only receives from an SRQ is
// told by none.
func (e *Endpoint) WaitFor(conn net.Conn) (verbs.WC, error) {
	for gone := false; ; {
		wc, err := e.Wait(time.Now().Add(look))
		switch {
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return wc, err
		case gone:
			return wc, errors.New("the other end has hung up")
		}
		gone = HungUp(conn) // what it did before may still complete
	}
}

// look is how often WaitFor looks for the other end.
const look = 200 * time.Millisecond

// Interrupt ends the Wait that runs, and all that come.
func (e *Endpoint) Interrupt() {
	e.interrupted.Store(true)
	e.Channel.Close()
}

// greeting is how long a client may take to meet the server: those that come after it wait. A
// variable for tests.
var greeting = 10 * time.Second

// Serve listens, announces its address, and calls each for the connections that
// come, one after the other, until ctx ends. One that fails does not keep the next waiting.
func Serve(ctx context.Context, addr string, out io.Writer, each func(net.Conn) error) error {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { ln.Close() })()
	defer ln.Close()
	fmt.Fprintf(out, "%s%s\n", child.Announcement, ln.Addr())
	for {
		conn, err := ln.Accept() // ends with a peer, or with ctx
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		end := context.AfterFunc(ctx, func() { conn.Close() })
		_ = conn.SetReadDeadline(time.Now().Add(greeting)) // if it is closed, each says so
		err = each(conn)
		end()
		conn.Close()
		if err != nil && ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "client %s: %v\n", conn.RemoteAddr(), err)
		}
	}
}

// Both runs the client against a server in a process of its own, or in that of addr
// if that is not empty.
func Both(ctx context.Context, device, addr string, client func(addr string) error) error {
	if addr != "" {
		return client(addr)
	}
	return program.WithServer(ctx, client, "-device", device)
}
