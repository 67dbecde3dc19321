package softcm

import (
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// networkHost is an address that is nobody's (RFC 5737): what listens there is found in
// a directory alone.
var networkHost = netip.MustParseAddr("192.0.2.1")

// meetingAt listens at the address in a new directory.
func meetingAt(t *testing.T) (*listener, *samehost.Directory) {
	dir := samehost.DirectoryAt(t.TempDir())
	if err := dir.Err(); errors.Is(err, unix.ENOSYS) {
		t.Skip("needs openat2 (Linux 5.6):", err)
	}
	ln, err := New(Config{Directory: dir.Path()}).Listen(netip.AddrPortFrom(networkHost, cmtest.FreePort(t)), rcm.ListenConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln.(*listener), dir
}

// say sends a message to the listener by the directory.
func (l *listener) say(t *testing.T, dir *samehost.Directory, m handshake.Message) *socket {
	t.Helper()
	c, err := dir.Dial(unix.SOCK_SEQPACKET, nil, os.Geteuid(), entriesFor(l.addr)...)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	s := &socket{Conn: c}
	require.NoError(t, s.send(&m))
	s.SetReadDeadline(time.Now().Add(cmtest.Timeout))
	return s
}

func hungUp(t *testing.T, s *socket) {
	t.Helper()
	_, err := s.receive()
	require.ErrorIs(t, err, errHungUp)
}

var (
	dialerEnd   = handshake.Endpoint{GID: verbs.GID{1}, QPN: 1}
	acceptorEnd = handshake.Endpoint{GID: verbs.GID{2}, QPN: 2}
)

func TestAPeerFromANetworkHasNoLoopbackAddress(t *testing.T) {
	l, dir := meetingAt(t)
	for _, addrs := range [][2]netip.Addr{
		{netip.MustParseAddr("127.0.0.1"), networkHost},
		{networkHost, netip.MustParseAddr("127.0.0.1")},
		{netip.MustParseAddr("fe80::1"), networkHost},
		{networkHost, netip.MustParseAddr("192.0.2.2")}, // which it does not serve
	} {
		before := l.Stats().Malformed
		hungUp(t, l.say(t, dir, handshake.Message{
			Kind: handshake.KindRequest, From: dialerEnd,
			Src: netip.AddrPortFrom(addrs[0], 1024), Dst: netip.AddrPortFrom(addrs[1], l.addr.Port()),
		}))
		require.Equal(t, before+1, l.Stats().Malformed)
	}
}

// A directory that goes, and comes again, costs a listener nothing but the time until it
// is looked at again.
func TestAListenerComesBackWithItsDirectory(t *testing.T) {
	l, dir := meetingAt(t)
	found := func() bool {
		c, err := dir.Dial(unix.SOCK_SEQPACKET, nil, os.Geteuid(), entriesFor(l.addr)...)
		if err == nil {
			c.Close()
		}
		return err == nil
	}
	require.True(t, found())
	require.NoError(t, os.RemoveAll(dir.Path()))
	require.False(t, found())
	l.meeting.refresh() // as the timer does
	require.NoError(t, os.Mkdir(dir.Path(), 0o755))
	require.Eventually(t, func() bool { l.meeting.refresh(); return found() }, cmtest.Timeout, 10*time.Millisecond)
}
