package softcm

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/internal/passrights"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// These tests speak the protocol by hand: they need no device.

// speaker is a peer that can say anything.
type speaker struct {
	*net.UnixConn
	t testing.TB
}

func speakTo(t testing.TB, addr netip.AddrPort) speaker {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: nameOf(addr)})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return speaker{c, t}
}

func (s speaker) say(packet []byte) {
	s.t.Helper()
	_, err := s.Write(packet)
	require.NoError(s.t, err)
}

func (s speaker) read() handshake.Message {
	s.t.Helper()
	b := make([]byte, 1024)
	n, err := s.Read(b)
	if errors.Is(err, io.EOF) { // the last packet can be behind the end, see samehost.Receive
		n, err = s.Read(b)
	}
	require.NoError(s.t, err)
	m, err := handshake.Parse(b[:n])
	require.NoError(s.t, err)
	return m
}

// awaitEnd waits until the listener has hung up; the wait ends with that.
func (s speaker) awaitEnd() {
	s.t.Helper()
	_, err := s.Read(make([]byte, 1024))
	require.Error(s.t, err)
}

// testEnd is an endpoint that nobody has.
var testEnd = handshake.Endpoint{GID: verbs.GID{0xfe, 15: 1}, QPN: 0x123456, PSN: 0xabcdef}

func requestTo(addr netip.AddrPort) []byte {
	m := handshake.Message{Kind: handshake.KindRequest, From: testEnd, Src: cmtest.At("127.0.0.1", 40000), Dst: addr, Private: []byte("hello")}
	return m.AppendTo(nil)
}

func TestAcceptGivesTheRequestAsItWasSent(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := onSoft().MustListen(t, addr, rcm.ListenConfig{Device: "soft7"})
	s := speakTo(t, addr)
	s.say(requestTo(addr))
	r, err := l.Accept(cmtest.Within(t))
	require.NoError(t, err)
	require.Equal(t, "soft7", r.Device())
	require.Equal(t, []byte("hello"), r.PrivateData())
	require.Equal(t, addr, r.LocalAddr())
	require.Equal(t, cmtest.At("127.0.0.1", 40000), r.RemoteAddr())
	require.Equal(t, rcm.Peer{PID: os.Getpid(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, r.Peer())

	require.NoError(t, r.Reject([]byte("full")))
	require.Equal(t, handshake.Message{Kind: handshake.KindReject, Reason: rcm.ReasonConsumer, Private: []byte("full")}, s.read())
	s.awaitEnd()
	require.ErrorIs(t, r.Reject(nil), verbs.ErrInvalid, "a request has one answer")
	require.Equal(t, rcm.ListenStats{Requests: 1}, l.Stats())
}

func TestCloseHangsUpOnThoseWhoOweTheirRequest(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := onSoft().MustListen(t, addr, rcm.ListenConfig{})
	s := speakTo(t, addr)
	require.Eventually(t, func() bool { return handshakes(l) == 1 }, time.Minute, time.Millisecond)
	require.NoError(t, l.Close())
	s.awaitEnd()
}

func TestGarbageSpeakersAreDroppedAndCounted(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := onSoft().MustListen(t, addr, rcm.ListenConfig{})
	garbage := map[string][]byte{
		"HTTP":                []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		"one byte":            {0},
		"a huge packet":       make([]byte, 1<<16),
		"an answer":           (&handshake.Message{Kind: handshake.KindReply, From: testEnd}).AppendTo(nil),
		"an acknowledgement":  (&handshake.Message{Kind: handshake.KindReady}).AppendTo(nil),
		"a request elsewhere": requestTo(cmtest.At("127.0.0.1", addr.Port()+1)),
		"a request for IPv6":  requestTo(cmtest.At("::1", addr.Port())),
	}
	for name, packet := range garbage {
		s := speakTo(t, addr)
		s.say(packet)
		_, err := s.Read(make([]byte, 1))
		require.Error(t, err, name)
	}
	require.EqualValues(t, len(garbage), l.Stats().Malformed)
	require.Zero(t, l.Stats().Requests)

	s := speakTo(t, addr)
	s.say(requestTo(addr))
	r, err := l.Accept(cmtest.Within(t))
	require.NoError(t, err, "the listener goes on")
	require.NoError(t, r.Reject(nil))
}

func TestAListenerServesWhatCanComeToIt(t *testing.T) {
	for _, c := range []struct {
		listen string
		v6Only bool
		dst    string
		want   bool
	}{
		{"127.0.0.1", false, "127.0.0.1", true},
		{"127.0.0.1", false, "127.0.0.2", false},
		{"0.0.0.0", false, "127.0.0.2", true},
		{"0.0.0.0", false, "::1", false},
		{"::", false, "127.0.0.2", true},
		{"::", false, "::1", true},
		{"::", true, "127.0.0.2", false},
		{"::", true, "::1", true},
	} {
		l := &listener{addr: cmtest.At(c.listen, 9), v6Only: c.v6Only}
		require.Equal(t, c.want, l.serves(cmtest.At(c.dst, 9)), "%+v", c)
		require.False(t, l.serves(cmtest.At(c.dst, 10)), "another port")
	}
}

// openSocket makes a socket that is connected to nothing.
func openSocket() (int, error) {
	return unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
}

func TestDescriptorsOfGarbageSpeakersAreNotKept(t *testing.T) {
	passrights.Missing.Store(true) // the kernel keeps them off by itself
	t.Cleanup(func() { passrights.Missing.Store(false) })
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := onSoft().MustListen(t, addr, rcm.ListenConfig{})
	s := speakTo(t, addr)
	before := leak.Descriptors()
	_, _, err := s.WriteMsgUnix(requestTo(addr), unix.UnixRights(0, 1, 2), nil)
	require.NoError(t, err)
	r, err := l.Accept(cmtest.Within(t))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return leak.Descriptors() <= before+1 }, time.Minute, time.Millisecond,
		"only the accepted socket comes on top")
	require.NoError(t, r.Reject(nil))
}

func TestAnotherVersionIsRejectedByName(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := onSoft().MustListen(t, addr, rcm.ListenConfig{})
	s := speakTo(t, addr)
	req := requestTo(addr)
	req[4] = 9
	s.say(req)
	require.Equal(t, handshake.Message{Kind: handshake.KindReject, Reason: rcm.ReasonInvalidVersion}, s.read())
	require.EqualValues(t, 1, l.Stats().Malformed)
}

func TestSlowPeersHoldUpNobody(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := onSoft().MustListen(t, addr, rcm.ListenConfig{HandshakeTimeout: cmtest.Timeout})
	const slow = 20
	for range slow {
		speakTo(t, addr)
	}
	require.Eventually(t, func() bool { return handshakes(l) == slow }, cmtest.Timeout, time.Millisecond)
	s := speakTo(t, addr)
	s.say(requestTo(addr))
	r, err := l.Accept(cmtest.Within(t))
	require.NoError(t, err)
	require.NoError(t, r.Reject(nil))
	require.Equal(t, slow, handshakes(l), "they have all their time still")
}

func TestSlowPeersAreRejectedWhenTheirTimeIsOver(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := onSoft().MustListen(t, addr, rcm.ListenConfig{HandshakeTimeout: 200 * time.Millisecond})
	var slow []speaker
	for range 20 {
		slow = append(slow, speakTo(t, addr))
	}
	for _, s := range slow {
		require.Equal(t, handshake.Message{Kind: handshake.KindReject, Reason: rcm.ReasonTimeout}, s.read())
	}
	require.EqualValues(t, len(slow), l.Stats().TimedOut)
}

func TestTooManySlowPeersAreRejected(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := onSoft().MustListen(t, addr, rcm.ListenConfig{})
	for range maxHandshakes {
		speakTo(t, addr)
	}
	require.Equal(t, handshake.Message{Kind: handshake.KindReject, Reason: rcm.ReasonNoResources}, speakTo(t, addr).read())
	require.EqualValues(t, 1, l.Stats().Overflows)
}

func TestAcceptPassesOverDialersWhoGaveUp(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := onSoft().MustListen(t, addr, rcm.ListenConfig{})
	gone := speakTo(t, addr)
	gone.say(requestTo(addr))
	require.Eventually(t, func() bool { return l.Stats().Requests == 1 }, time.Minute, time.Millisecond)
	require.NoError(t, gone.Close())
	s := speakTo(t, addr)
	s.say(requestTo(addr))
	r, err := l.Accept(cmtest.Within(t))
	require.NoError(t, err)
	require.NoError(t, r.Reject([]byte("to the second")))
	require.Equal(t, []byte("to the second"), s.read().Private)
}

func TestAListenerOutOfDescriptorsGoesOnLater(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := onSoft().MustListen(t, addr, rcm.ListenConfig{})
	fd, err := openSocket()
	require.NoError(t, err)
	s := os.NewFile(uintptr(fd), "")
	defer s.Close()

	giveBack := cmtest.UseUpDescriptors(t)
	connectErr := unix.Connect(fd, &unix.SockaddrUnix{Name: nameOf(addr)})
	_, resolveErr := New(Config{}).Resolve(cmtest.Within(t), addr)
	giveBack()
	require.NoError(t, connectErr)
	require.ErrorIs(t, resolveErr, syscall.EMFILE)

	_, err = s.Write(requestTo(addr))
	require.NoError(t, err)
	r, err := l.Accept(cmtest.Within(t))
	require.NoError(t, err)
	require.NoError(t, r.Reject(nil))
}
