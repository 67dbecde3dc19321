package link

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
	"github.com/seed-b9b531af/ramjet/ring"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
)

// devices are those that a link runs over: one with immediates and inline data of any
// length, one with little of the latter, and one without immediates besides.
var devices = []string{soft.DeviceName, soft.TestDeviceName, soft.TestNoImmName}

// patience bounds what a test waits for.
const patience = 10 * time.Second

// arrival is a frame that has arrived, and its payload or the piece of the ring that has it.
type arrival struct {
	Header
	payload []byte
	kept    *heldPiece // nil: payload is a copy
}

// user takes what arrives on one end of a link, and speaks for it.
type user struct {
	t      testing.TB
	link   *Link
	send   sync.Mutex
	got    []arrival
	keep   func(h Header, p []byte) bool // nil: nothing is kept
	mu     sync.Mutex
	broken error // guarded by mu
	ending sync.Once
}

func (u *user) Frame(h Header, payload []byte) error {
	a := arrival{Header: h}
	if u.keep != nil && u.keep(h, payload) {
		a.kept = &heldPiece{p: payload}
		a.kept.token = u.link.Retain(a.kept)
	} else {
		a.payload = bytes.Clone(payload)
	}
	u.got = append(u.got, a)
	return nil
}

func (u *user) Fail(cause error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.broken == nil {
		u.broken = cause
	}
}

func (u *user) brokenBy() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.broken
}

// heldPiece is a piece of the ring, or what it was moved out to.
type heldPiece struct {
	p     []byte
	token ring.Token
	moved bool
	stays bool // somebody is at it
}

func (k *heldPiece) MoveOut() bool {
	if k.stays {
		return false
	}
	k.p, k.moved = bytes.Clone(k.p), true
	return true
}

func (a *arrival) bytes() []byte {
	if a.kept != nil {
		return a.kept.p
	}
	return a.payload
}

// free gives back what a frame kept of the ring.
func (u *user) free(a *arrival) {
	if a.kept != nil && !a.kept.moved {
		u.link.Free(a.kept.token)
	}
}

func openDevice(t testing.TB, name string) *verbs.Context {
	t.Helper()
	dev, err := verbs.Open(name)
	require.NoError(t, err)
	t.Cleanup(func() { dev.Close() })
	return dev
}

// pair returns the two ends of a link over a device. It ends with the test.
func pair(t testing.TB, device string, ringSize uint32) (dialed, accepted *user) {
	t.Helper()
	dev := openDevice(t, device)
	ends := [2]*user{{t: t}, {t: t}}
	for _, u := range ends {
		l, err := New(Config{Device: dev, Release: func() {}, RingSize: ringSize, Slots: 256, Send: &u.send}, u)
		require.NoError(t, err)
		u.link = l
		t.Cleanup(u.end)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0") // its port is nobody else's
	require.NoError(t, err)
	defer tcp.Close()
	at := netip.MustParseAddrPort(tcp.Addr().String())
	fabric := softcm.New(softcm.Config{Device: device})
	ln, err := fabric.Listen(at, rcm.ListenConfig{})
	require.NoError(t, err)
	defer ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conns, errs := [2]rcm.Conn{}, [2]error{}
	var work sync.WaitGroup
	work.Go(func() {
		req, err := ln.Accept(ctx)
		if errs[1] = err; err == nil {
			conns[1], errs[1] = req.Accept(ctx, ends[1].link.QP(), ends[1].link.ConnParam(nil))
		}
	})
	route, err := fabric.Resolve(ctx, at)
	require.NoError(t, err)
	conns[0], errs[0] = route.Connect(ctx, ends[0].link.QP(), ends[0].link.ConnParam(nil))
	work.Wait()
	for i, u := range ends {
		require.NoError(t, errs[i])
		t.Cleanup(func() { conns[i].Disconnect() })
		peer := ends[1-i].link.Params()
		require.NoError(t, peer.Check())
		require.NoError(t, u.link.Connect(peer))
	}
	for _, u := range ends {
		u.send.Lock()
		_, err := u.link.Greet(Header{Kind: 7})
		u.send.Unlock()
		require.NoError(t, err)
	}
	for _, u := range ends {
		u.until("the greeting", func() bool { return len(u.got) == 1 })
		u.got = nil
	}
	return ends[0], ends[1]
}

// end ends this end of the link.
func (u *user) end() {
	u.ending.Do(func() {
		u.link.Fail()
		for u.link.Poll().Completions > 0 {
		}
		u.link.Close()
	})
}

// until polls until done.
func (u *user) until(what string, done func() bool) {
	u.t.Helper()
	for end := time.Now().Add(patience); !done(); {
		b := u.link.Poll()
		require.NoError(u.t, b.Err, what)
		require.True(u.t, time.Now().Before(end), "waited for %s", what)
	}
}

// trySend sends a frame if there is room for all of it.
func (u *user) trySend(h Header, p []byte) bool {
	u.send.Lock()
	defer u.send.Unlock()
	if u.link.Room(len(p)) < len(p) {
		return false
	}
	require.NoError(u.t, u.link.Send(h, p))
	return true
}

// payloadOf is what frame i carries.
func payloadOf(i, n int) []byte { return bytes.Repeat([]byte{byte(i), byte(i >> 8), 0x5a}, n/3+1)[:n] }

func over(t *testing.T, f func(t *testing.T, device string)) {
	for _, device := range devices {
		t.Run(fmt.Sprint("over ", device), func(t *testing.T) { f(t, device) })
	}
}
