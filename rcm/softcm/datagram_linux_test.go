package softcm

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/stretchr/testify/require"
)

// datagramFabric is that of a listener for datagrams, by whose name speakers find it.
var datagramFabric = &fabric{datagrams: true}

func askAt(t testing.TB, addr netip.AddrPort) speaker {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: datagramFabric.name(addr)})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return speaker{c, t}
}

func lookupOf(addr netip.AddrPort) []byte {
	m := handshake.Message{Kind: handshake.KindLookup, Src: cmtest.At("127.0.0.1", 40000), Dst: addr, Private: []byte("hello")}
	return m.AppendTo(nil)
}

func TestAListenerForDatagramsTakesLookupsOnly(t *testing.T) {
	f := onSoft()
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := f.MustListenDatagram(t, addr, rcm.ListenConfig{})
	await := handshake.Message{Kind: handshake.KindAwait, Dst: addr}
	for n, packet := range [][]byte{
		requestTo(addr),
		await.AppendTo(nil), // there is no hand-over
		lookupOf(cmtest.At("127.0.0.2", addr.Port())),
		[]byte("GET / HTTP/1.1"),
	} {
		s := askAt(t, addr)
		s.say(packet)
		s.awaitEnd()
		require.EqualValues(t, n+1, l.Stats().Malformed)
	}
	require.Zero(t, l.Stats().Requests)

	s := askAt(t, addr)
	s.say(lookupOf(addr))
	r, err := l.Accept(cmtest.Within(t))
	require.NoError(t, err)
	require.Equal(t, cmtest.At("127.0.0.1", 40000), r.RemoteAddr())
	require.Equal(t, "hello", string(r.PrivateData()))
	require.NotZero(t, r.Peer().PID)
	require.NoError(t, r.Reject([]byte("no")))
	require.Equal(t, handshake.Message{Kind: handshake.KindReject, Reason: rcm.ReasonConsumer, Private: []byte("no")}, s.read())
}

func TestAListenerForConnectionsTakesNoLookup(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := onSoft().MustListen(t, addr, rcm.ListenConfig{})
	s := speakTo(t, addr)
	s.say(lookupOf(addr))
	s.awaitEnd()
	require.EqualValues(t, 1, l.Stats().Malformed)
}

func TestAnAddressMayHaveAListenerOfEachKind(t *testing.T) {
	f := onSoft()
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	f.MustListen(t, addr, rcm.ListenConfig{})
	_, err := f.ResolveDatagram(cmtest.Within(t), addr)
	require.ErrorIs(t, err, rcm.ErrNoListener)
	f.MustListenDatagram(t, addr, rcm.ListenConfig{})
	require.NoError(t, f.MustResolveDatagram(t, addr).Close())
}

func TestALookupFailsIfTheListenerBreaksTheProtocol(t *testing.T) {
	reply := handshake.Message{Kind: handshake.KindReply, From: testEnd}
	for name, answer := range map[string][]byte{
		"another message": reply.AppendTo(nil),
		"garbage":         []byte("220 mail ESMTP"),
		"nothing":         nil,
	} {
		t.Run(name, func(t *testing.T) {
			f := onSoft()
			addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
			l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: datagramFabric.name(addr)})
			require.NoError(t, err)
			defer l.Close()
			served := make(chan error, 1)
			go func() {
				c, err := l.AcceptUnix()
				if err == nil {
					_, err = c.Read(make([]byte, 1024))
				}
				if err == nil && answer != nil {
					_, err = c.Write(answer)
				}
				if c != nil {
					err = errors.Join(err, c.Close())
				}
				served <- err
			}()
			d := f.NewDatagrams(t)
			_, err = f.MustResolveDatagram(t, addr).Lookup(cmtest.Within(t), d.QP, rcm.DatagramParam{})
			if answer == nil {
				require.ErrorIs(t, err, errHungUp)
			} else {
				require.ErrorIs(t, err, rcm.ErrMalformed)
			}
			require.NoError(t, cmtest.Await(t, served))
		})
	}
}

func TestSilentPeersOfAListenerForDatagramsAreDropped(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := onSoft().MustListenDatagram(t, addr, rcm.ListenConfig{HandshakeTimeout: time.Millisecond})
	s := askAt(t, addr)
	require.Equal(t, handshake.Message{Kind: handshake.KindReject, Reason: rcm.ReasonTimeout}, s.read())
	require.EqualValues(t, 1, l.Stats().TimedOut)
}

func TestThereAreNoDatagramsAtAUnixSocket(t *testing.T) {
	f := New(Config{}).(*fabric).At(UnixSocket{})
	_, err := f.ResolveDatagram(cmtest.Within(t), cmtest.At("127.0.0.1", 1))
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = f.ListenDatagram(cmtest.At("127.0.0.1", 1), rcm.ListenConfig{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = f.ResolveGroup(cmtest.Within(t), netip.MustParseAddr("239.1.2.3"))
	require.ErrorIs(t, err, errors.ErrUnsupported)
}
