package rcm

import (
	"bytes"
	"context"
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

func TestBadParametersLeaveTheQPInReset(t *testing.T) {
	addr := at("127.0.0.1", freePort(t))
	l := listen(t, addr, ListenConfig{})
	s := newSide(t)
	for name, p := range map[string]ConnParam{
		"too much private data": {PrivateData: make([]byte, MaxRequestData+1)},
		"retry count":           {RetryCount: 8},
		"RNR retry":             {RNRRetry: 8},
		"RNR timer":             {MinRNRTimer: 32},
		"timeout":               {Timeout: 32},
	} {
		t.Run(name, func(t *testing.T) {
			qp := s.qp(t)
			r, err := Soft().Resolve(t.Context(), addr)
			require.NoError(t, err)
			_, err = r.Connect(t.Context(), qp, p)
			require.ErrorIs(t, err, verbs.ErrInvalid)
			a, err := qp.Query()
			require.NoError(t, err)
			require.Equal(t, verbs.QPStateReset, a.State)
		})
	}
	require.Zero(t, l.Stats().Requests)
}

func TestARouteIsGoodForOneConnection(t *testing.T) {
	addr := at("127.0.0.1", freePort(t))
	listen(t, addr, ListenConfig{})
	r, err := Soft().Resolve(t.Context(), addr)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	_, err = r.Connect(t.Context(), newSide(t).qp(t), ConnParam{})
	require.ErrorIs(t, err, verbs.ErrInvalid)
}

// dialAsync connects a fresh QP and gives the outcome.
func dialAsync(t testing.TB, ctx context.Context, addr netip.AddrPort, p ConnParam) <-chan error {
	t.Helper()
	qp := newSide(t).qp(t)
	r, err := Soft().Resolve(t.Context(), addr)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		c, err := r.Connect(ctx, qp, p)
		if err == nil {
			c.Disconnect()
		} else if a, queryErr := qp.Query(); queryErr != nil || a.State != verbs.QPStateErr && a.State != verbs.QPStateReset {
			err = errors.Join(err, errors.New("QP is neither in RESET nor in ERR"))
		}
		done <- err
	}()
	return done
}

func TestRejectReachesTheDialer(t *testing.T) {
	addr := at("127.0.0.1", freePort(t))
	l := listen(t, addr, ListenConfig{})
	dialed := dialAsync(t, t.Context(), addr, ConnParam{PrivateData: []byte("may I")})
	r, err := l.Accept(t.Context())
	require.NoError(t, err)
	require.Equal(t, []byte("may I"), r.PrivateData())
	require.NoError(t, r.Reject([]byte("no")))
	err = <-dialed // ends with the REJ
	var rejected *RejectedError
	require.ErrorAs(t, err, &rejected)
	require.Equal(t, RejectedError{PrivateData: []byte("no"), Reason: ReasonConsumer}, *rejected)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NotErrorIs(t, err, ErrNoListener)
}

func TestAListenerThatClosesRefusesWhoWaits(t *testing.T) {
	addr := at("127.0.0.1", freePort(t))
	l := listen(t, addr, ListenConfig{})
	dialed := dialAsync(t, t.Context(), addr, ConnParam{})
	require.Eventually(t, func() bool { return l.Stats().Requests == 1 }, time.Minute, time.Millisecond)
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-dialed, ErrNoListener) // ends with the REJ
}

func TestADialerHearsWhyItWasDropped(t *testing.T) {
	addr := at("127.0.0.1", freePort(t))
	l := listen(t, addr, ListenConfig{HandshakeTimeout: time.Millisecond})
	r, err := Soft().Resolve(t.Context(), addr)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return l.Stats().TimedOut == 1 }, time.Minute, time.Millisecond)
	_, err = r.Connect(t.Context(), newSide(t).qp(t), ConnParam{})
	require.ErrorIs(t, err, ErrTimeout)
}

func TestConnectEndsWithItsContext(t *testing.T) {
	addr := at("127.0.0.1", freePort(t))
	l := listen(t, addr, ListenConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	canceled := dialAsync(t, ctx, addr, ConnParam{})
	require.Eventually(t, func() bool { return l.Stats().Requests == 1 }, time.Minute, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-canceled, context.Canceled) // ends with cancel

	ctx, cancel = context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	err := <-dialAsync(t, ctx, addr, ConnParam{}) // ends with the deadline
	require.ErrorIs(t, err, ErrTimeout)
	require.ErrorIs(t, err, context.DeadlineExceeded)
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
			l := listen(t, addr, ListenConfig{HandshakeTimeout: 300 * time.Millisecond})
			// The dialer has a QP, so that the device does not find out first.
			end, err := localEndpoint(newSide(t).qp(t))
			require.NoError(t, err)
			req := message{kind: kindRequest, from: end, src: at("127.0.0.1", 40000), dst: addr}
			s := speakTo(t, addr)
			s.say(req.appendTo(nil))
			r, err := l.Accept(t.Context())
			require.NoError(t, err)
			c.do(s)
			qp := newSide(t).qp(t)
			_, err = r.Accept(t.Context(), qp, ConnParam{})
			require.ErrorIs(t, err, c.want)
			a, err := qp.Query()
			require.NoError(t, err)
			require.Equal(t, verbs.QPStateErr, a.State)
			_, err = r.Accept(t.Context(), qp, ConnParam{})
			require.ErrorIs(t, err, verbs.ErrInvalid, "a request has one answer")
		})
	}
}

func TestAcceptFailsIfThePeersDeviceIsGone(t *testing.T) {
	addr := at("127.0.0.1", freePort(t))
	l := listen(t, addr, ListenConfig{HandshakeTimeout: 300 * time.Millisecond})
	speakTo(t, addr).say(requestTo(addr)) // with a GID that nobody has
	r, err := l.Accept(t.Context())
	require.NoError(t, err)
	_, err = r.Accept(t.Context(), newSide(t).qp(t), ConnParam{})
	require.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, ErrTimeout), err)
}

func TestAcceptOfARequestEndsWithItsContext(t *testing.T) {
	addr := at("127.0.0.1", freePort(t))
	l := listen(t, addr, ListenConfig{})
	speakTo(t, addr).say(requestTo(addr))
	r, err := l.Accept(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = r.Accept(ctx, newSide(t).qp(t), ConnParam{})
	require.ErrorIs(t, err, context.Canceled)
}

func TestConnectSurvivesAnAcceptorThatSpeaksNonsense(t *testing.T) {
	for name, packet := range map[string][]byte{
		"garbage":         bytes.Repeat([]byte{0xff}, 300),
		"another version": {'R', 'J', 'C', 'M', 2, byte(kindReply), 0, 8},
		"an RTU":          (&message{kind: kindReady}).appendTo(nil),
	} {
		t.Run(name, func(t *testing.T) {
			addr := at("127.0.0.1", freePort(t))
			l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: softName(addr, false)})
			require.NoError(t, err)
			defer l.Close()
			dialed := dialAsync(t, t.Context(), addr, ConnParam{})
			c, err := l.Accept()
			require.NoError(t, err)
			defer c.Close()
			_, err = c.Write(packet)
			require.NoError(t, err)
			err = <-dialed // ends with the packet
			require.Error(t, err)
			require.True(t, errors.Is(err, ErrMalformed) || errors.Is(err, errVersion), err)
		})
	}
}

func TestAFailedPrepareEndsTheHandshake(t *testing.T) {
	broken := errors.New("no receives")
	addr := at("127.0.0.1", freePort(t))
	l := listen(t, addr, ListenConfig{})
	fail := ConnParam{Prepare: func(*verbs.QP) error { return broken }}
	require.ErrorIs(t, <-dialAsync(t, t.Context(), addr, fail), broken)

	dialed := dialAsync(t, t.Context(), addr, ConnParam{})
	r, err := l.Accept(t.Context())
	require.NoError(t, err)
	_, err = r.Accept(t.Context(), newSide(t).qp(t), fail)
	require.ErrorIs(t, err, broken)
	require.ErrorIs(t, <-dialed, syscall.ECONNRESET) // ends with the hang-up
}
