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
		{"says nothing", func(speaker) {}, rcm.ErrTimeout},
		{"says something else", func(s speaker) { s.say(requestTo(cmtest.At("127.0.0.1", 1))) }, rcm.ErrMalformed},
		{"says garbage", func(s speaker) { s.say([]byte("garbage")) }, rcm.ErrMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
			l := onSoft().MustListen(t, addr, rcm.ListenConfig{})
			// The dialer has a QP, so that the device does not find out first.
			end, err := localEndpoint(onSoft().NewSide(t).QP(t))
			require.NoError(t, err)
			req := handshake.Message{Kind: handshake.KindRequest, From: end, Src: cmtest.At("127.0.0.1", 40000), Dst: addr}
			s := speakTo(t, addr)
			s.say(req.AppendTo(nil))
			r, err := l.Accept(cmtest.Within(t))
			require.NoError(t, err)
			c.do(s)
			if c.want == rcm.ErrTimeout {
				l.(*listener).timeout = time.Millisecond // from our REP to its RTU
			}
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
	l := onSoft().MustListen(t, addr, rcm.ListenConfig{})
	speakTo(t, addr).say(requestTo(addr)) // with a GID that nobody has
	r, err := l.Accept(cmtest.Within(t))
	require.NoError(t, err)
	l.(*listener).timeout = 300 * time.Millisecond // there will be no RTU
	_, err = r.Accept(cmtest.Within(t), onSoft().NewSide(t).QP(t), rcm.ConnParam{})
	require.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, rcm.ErrTimeout), err)
}

func TestConnectSurvivesAnAcceptorThatSpeaksNonsense(t *testing.T) {
	for name, packet := range map[string][]byte{
		"garbage":         bytes.Repeat([]byte{0xff}, 300),
		"another version": {'R', 'J', 'C', 'M', 3, byte(handshake.KindReply), 0, 8},
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

// establishedBy plays the dialer of a connection until it is established, and returns the
// acceptor's end.
func establishedBy(t *testing.T, from handshake.Endpoint) (speaker, *conn) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := onSoft().MustListen(t, addr, rcm.ListenConfig{})
	s := speakTo(t, addr)
	s.say((&handshake.Message{Kind: handshake.KindRequest, From: from, Src: cmtest.At("127.0.0.1", 40000), Dst: addr}).AppendTo(nil))
	r, err := l.Accept(cmtest.Within(t))
	require.NoError(t, err)
	s.say((&handshake.Message{Kind: handshake.KindReady}).AppendTo(nil))
	c, err := r.Accept(cmtest.Within(t), onSoft().NewSide(t).QP(t), rcm.ConnParam{})
	require.NoError(t, err)
	require.Equal(t, handshake.KindReply, s.read().Kind)
	return s, c.(*conn)
}

func TestAConnectionEndsWithASocketOverWhichNoPairComesAbout(t *testing.T) {
	elsewhere := handshake.Endpoint{GID: verbs.GID{1}, QPN: 1}
	ofUs, err := localEndpoint(onSoft().NewSide(t).QP(t)) // which does not wait for anybody
	require.NoError(t, err)
	for name, from := range map[string]handshake.Endpoint{"of another process": elsewhere, "of this process, it says": ofUs} {
		for what, do := range map[string]func(s speaker){
			"hangs up": func(s speaker) { s.Close() },
			// fails if it has ended already
			"says garbage": func(s speaker) { s.Write([]byte("garbage")) },
			"says RTU":     func(s speaker) { s.Write((&handshake.Message{Kind: handshake.KindReady}).AppendTo(nil)) },
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				s, c := establishedBy(t, from)
				told := make(chan struct{})
				c.AfterDisconnect(func() { close(told) })
				do(s)
				cmtest.Await(t, c.Disconnected()) // ends with what the peer has done
				cmtest.Await(t, told)             // as above
				require.ErrorIs(t, c.Err(), syscall.ECONNRESET)
				a, err := c.qp.Query()
				require.NoError(t, err)
				require.Equal(t, verbs.QPStateErr, a.State)
				require.NoError(t, c.Disconnect())
				require.ErrorIs(t, c.Err(), syscall.ECONNRESET, "the first cause stays")
			})
		}
	}
}

func TestADisconnectBeforeThePairIsMadeHangsUp(t *testing.T) {
	s, c := establishedBy(t, handshake.Endpoint{GID: verbs.GID{1}, QPN: 1})
	require.NoError(t, c.Disconnect())
	require.NoError(t, c.qp.Close())
	for {
		// ends with the hang-up, after a welcome
		if n, err := s.Read(make([]byte, 1024)); err != nil || n == 0 {
			break
		}
	}
}
