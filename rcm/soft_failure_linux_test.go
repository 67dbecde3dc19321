package rcm

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	_ "github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/stretchr/testify/require"
)

func TestADialerHearsWhyItWasDropped(t *testing.T) {
	addr := at("127.0.0.1", freePort(t))
	l := onSoft().listen(t, addr, ListenConfig{HandshakeTimeout: time.Millisecond})
	r, err := Soft().Resolve(within(t), addr)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return l.Stats().TimedOut == 1 }, time.Minute, time.Millisecond)
	_, err = r.Connect(within(t), onSoft().newSide(t).qp(t), ConnParam{})
	require.ErrorIs(t, err, ErrTimeout)
}

func TestAcceptNoticesADialerThatGoesAway(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(s speaker)
		want error
	}{
		{"hangs up", func(s speaker) { s.Close() }, syscall.ECONNRESET},
		{"disconnects", func(s speaker) { s.say((&message{kind: kindDisconnect}).appendTo(nil)) }, syscall.ECONNRESET},
		{"says nothing", func(speaker) {}, ErrTimeout},
		{"says something else", func(s speaker) { s.say(requestTo(at("127.0.0.1", 1))) }, ErrMalformed},
		{"says garbage", func(s speaker) { s.say([]byte("garbage")) }, ErrMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := at("127.0.0.1", freePort(t))
			l := onSoft().listen(t, addr, ListenConfig{HandshakeTimeout: 300 * time.Millisecond})
			// The dialer has a QP, so that the device does not find out first.
			end, err := localEndpoint(onSoft().newSide(t).qp(t))
			require.NoError(t, err)
			req := message{kind: kindRequest, from: end, src: at("127.0.0.1", 40000), dst: addr}
			s := speakTo(t, addr)
			s.say(req.appendTo(nil))
			r, err := l.Accept(within(t))
			require.NoError(t, err)
			c.do(s)
			qp := onSoft().newSide(t).qp(t)
			_, err = r.Accept(within(t), qp, ConnParam{})
			require.ErrorIs(t, err, c.want)
			a, err := qp.Query()
			require.NoError(t, err)
			require.Equal(t, verbs.QPStateErr, a.State)
			_, err = r.Accept(within(t), qp, ConnParam{})
			require.ErrorIs(t, err, verbs.ErrInvalid, "a request has one answer")
		})
	}
}

func TestAcceptFailsIfThePeersDeviceIsGone(t *testing.T) {
	addr := at("127.0.0.1", freePort(t))
	l := onSoft().listen(t, addr, ListenConfig{HandshakeTimeout: 300 * time.Millisecond})
	speakTo(t, addr).say(requestTo(addr)) // with a GID that nobody has
	r, err := l.Accept(within(t))
	require.NoError(t, err)
	_, err = r.Accept(within(t), onSoft().newSide(t).qp(t), ConnParam{})
	require.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, ErrTimeout), err)
}

func TestConnectSurvivesAnAcceptorThatSpeaksNonsense(t *testing.T) {
	for name, packet := range map[string][]byte{
		"garbage":         bytes.Repeat([]byte{0xff}, 300),
		"another version": {'R', 'J', 'C', 'M', 2, byte(kindReply), 0, 8},
		"an RTU":          (&message{kind: kindReady}).appendTo(nil),
	} {
		t.Run(name, func(t *testing.T) {
			addr := at("127.0.0.1", freePort(t))
			l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: softName(addr)})
			require.NoError(t, err)
			defer l.Close()
			dialed := onSoft().dialAsync(t, within(t), addr, ConnParam{})
			c, err := l.Accept()
			require.NoError(t, err)
			defer c.Close()
			_, err = c.Write(packet)
			require.NoError(t, err)
			err = await(t, dialed) // ends with the packet
			require.Error(t, err)
			require.True(t, errors.Is(err, ErrMalformed) || errors.Is(err, errVersion), err)
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
	p := onSoft().newPair(t, ConnParam{}, ConnParam{})
	_, err := p.near.(*softConn).sock.Write([]byte("garbage"))
	require.NoError(t, err)
	await(t, p.far.Disconnected()) // ends with the garbage
	require.ErrorIs(t, p.far.Err(), ErrMalformed)
	require.ErrorIs(t, p.far.Err(), syscall.ECONNRESET)
	await(t, p.near.Disconnected()) // ends with the hang-up that follows
	require.ErrorIs(t, p.near.Err(), syscall.ECONNRESET)
}
