package softcm

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs"
	_ "github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/stretchr/testify/require"
)

func TestADialerIsToldWhyItWasDropped(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := onSoft().MustListen(t, addr, rcm.ListenConfig{HandshakeTimeout: time.Millisecond})
	r, err := New(Config{}).Resolve(cmtest.Within(t), addr)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return l.Stats().TimedOut == 1 }, time.Minute, time.Millisecond)
	_, err = r.Connect(cmtest.Within(t), onSoft().NewSide(t).QP(t), rcm.ConnParam{})
	require.ErrorIs(t, err, rcm.ErrTimeout)
}

func TestAcceptNoticesADialerThatGoesAway(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(s speaker)
		want error
	}{
		{"hangs up", func(s speaker) { s.Close() }, syscall.ECONNRESET},
		{"disconnects", func(s speaker) { s.say((&handshake.Message{Kind: handshake.KindDisconnect}).AppendTo(nil)) }, syscall.ECONNRESET},
		{"says nothing", func(speaker) {}, rcm.ErrTimeout},
		{"says something else", func(s speaker) { s.say(requestTo(cmtest.At("127.0.0.1", 1))) }, rcm.ErrMalformed},
		{"says garbage", func(s speaker) { s.say([]byte("garbage")) }, rcm.ErrMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
			l := onSoft().MustListen(t, addr, rcm.ListenConfig{HandshakeTimeout: 300 * time.Millisecond})
			// The dialer has a QP, so that the device does not find out first.
			end, err := localEndpoint(onSoft().NewSide(t).QP(t))
			require.NoError(t, err)
			req := handshake.Message{Kind: handshake.KindRequest, From: end, Src: cmtest.At("127.0.0.1", 40000), Dst: addr}
			s := speakTo(t, addr)
			s.say(req.AppendTo(nil))
			r, err := l.Accept(cmtest.Within(t))
			require.NoError(t, err)
			c.do(s)
			qp := onSoft().NewSide(t).QP(t)
			_, err = r.Accept(cmtest.Within(t), qp, rcm.ConnParam{})
			require.ErrorIs(t, err, c.want)
			a, err := qp.Query()
			require.NoError(t, err)
			require.Equal(t, verbs.QPStateErr, a.State)
			_, err = r.Accept(cmtest.Within(t), qp, rcm.ConnParam{})
			require.ErrorIs(t, err, verbs.ErrInvalid, "a request has one answer")
		})
	}
}

func TestAcceptFailsIfThePeersDeviceIsGone(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := onSoft().MustListen(t, addr, rcm.ListenConfig{HandshakeTimeout: 300 * time.Millisecond})
	speakTo(t, addr).say(requestTo(addr)) // with a GID that nobody has
	r, err := l.Accept(cmtest.Within(t))
	require.NoError(t, err)
	_, err = r.Accept(cmtest.Within(t), onSoft().NewSide(t).QP(t), rcm.ConnParam{})
	require.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, rcm.ErrTimeout), err)
}

func TestConnectSurvivesAnAcceptorThatSpeaksNonsense(t *testing.T) {
	for name, packet := range map[string][]byte{
		"garbage":         bytes.Repeat([]byte{0xff}, 300),
		"another version": {'R', 'J', 'C', 'M', 2, byte(handshake.KindReply), 0, 8},
		"an RTU":          (&handshake.Message{Kind: handshake.KindReady}).AppendTo(nil),
	} {
		t.Run(name, func(t *testing.T) {
			addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
			l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: nameOf(addr)})
			require.NoError(t, err)
			defer l.Close()
			dialed := onSoft().DialAsync(t, cmtest.Within(t), addr, rcm.ConnParam{})
			c, err := l.Accept()
			require.NoError(t, err)
			defer c.Close()
			_, err = c.Write(packet)
			require.NoError(t, err)
			err = cmtest.Await(t, dialed) // ends with the packet
			require.Error(t, err)
			require.True(t, errors.Is(err, rcm.ErrMalformed) || errors.Is(err, handshake.ErrVersion), err)
		})
	}
}

func TestConnectionsHaveDifferentSourceAddresses(t *testing.T) {
	seen := make(map[netip.AddrPort]bool)
	for range 1000 {
		a := netip.AddrPortFrom(netip.IPv6Loopback(), sourcePort())
		require.False(t, seen[a], a)
		require.True(t, a.Port() >= 32768 && a.Port() <= 60999, a)
		seen[a] = true
	}
}

func TestGarbageOnAConnectionEndsIt(t *testing.T) {
	p := onSoft().NewPair(t, rcm.ConnParam{}, rcm.ConnParam{})
	_, err := p.Near.(*conn).sock.Write([]byte("garbage"))
	require.NoError(t, err)
	cmtest.Await(t, p.Far.Disconnected()) // ends with the garbage
	require.ErrorIs(t, p.Far.Err(), rcm.ErrMalformed)
	require.ErrorIs(t, p.Far.Err(), syscall.ECONNRESET)
	cmtest.Await(t, p.Near.Disconnected()) // ends with the hang-up that follows
	require.ErrorIs(t, p.Near.Err(), syscall.ECONNRESET)
}
