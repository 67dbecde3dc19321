package softcm

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestResolveFindsTheListenerThatServesTheAddress(t *testing.T) {
	for _, c := range []struct {
		name, listen string
		v6Only       bool
		dial         string
		found        bool
	}{
		{"exact", "127.0.0.1", false, "127.0.0.1", true},
		{"another loopback address", "127.0.0.1", false, "127.0.0.2", false},
		{"wildcard", "0.0.0.0", false, "127.0.0.2", true},
		{"wildcard does not serve IPv6", "0.0.0.0", false, "::1", false},
		{"dual wildcard serves IPv4", "::", false, "127.0.0.1", true},
		{"dual wildcard serves IPv6", "::", false, "::1", true},
		{"IPv6 wildcard does not serve IPv4", "::", true, "127.0.0.1", false},
		{"IPv6 wildcard serves IPv6", "::", true, "::1", true},
		{"exact IPv6", "::1", false, "::1", true},
		{"unspecified target is loopback", "127.0.0.1", false, "0.0.0.0", true},
		{"unspecified IPv6 target is loopback", "::1", false, "::", true},
		{"mapped target", "127.0.0.1", false, "::ffff:127.0.0.1", true},
		{"mapped listener", "::ffff:127.0.0.1", false, "127.0.0.1", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			port := cmtest.FreePort(t)
			onSoft().MustListen(t, cmtest.At(c.listen, port), rcm.ListenConfig{V6Only: c.v6Only})
			r, err := New(Config{}).Resolve(cmtest.Within(t), cmtest.At(c.dial, port))
			if !c.found {
				require.ErrorIs(t, err, rcm.ErrNoListener)
				return
			}
			require.NoError(t, err)
			require.Equal(t, "soft0", r.Device())
			require.Equal(t, port, r.RemoteAddr().Port())
			require.True(t, r.RemoteAddr().Addr().IsLoopback())
			require.True(t, r.LocalAddr().IsLoopback())
			require.NoError(t, r.Close())
			require.NoError(t, r.Close())
		})
	}
}

func TestResolvePrefersTheMostSpecificListener(t *testing.T) {
	port := cmtest.FreePort(t)
	v6 := onSoft().MustListen(t, cmtest.At("::", port), rcm.ListenConfig{V6Only: true})
	v4 := onSoft().MustListen(t, cmtest.At("0.0.0.0", port), rcm.ListenConfig{})
	exact := onSoft().MustListen(t, cmtest.At("127.0.0.3", port), rcm.ListenConfig{})
	for _, c := range []struct {
		dial string
		want rcm.Listener
	}{{"127.0.0.3", exact}, {"127.0.0.4", v4}, {"::1", v6}} {
		before := handshakes(c.want)
		r, err := New(Config{}).Resolve(cmtest.Within(t), cmtest.At(c.dial, port))
		require.NoError(t, err)
		require.Eventually(t, func() bool { return handshakes(c.want) == before+1 }, time.Minute, time.Millisecond, c.dial)
		require.NoError(t, r.Close())
	}
}

// A listener of both families has the names of both, or none.
func TestListenerOfBothFamiliesSharesNoName(t *testing.T) {
	for _, other := range []string{"0.0.0.0", "::"} {
		port := cmtest.FreePort(t)
		has := onSoft().MustListen(t, cmtest.At(other, port), rcm.ListenConfig{V6Only: true})
		_, err := New(Config{}).Listen(cmtest.At("::", port), rcm.ListenConfig{})
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		require.NoError(t, has.Close())
		onSoft().MustListen(t, cmtest.At("::", port), rcm.ListenConfig{})
		_, err = New(Config{}).Listen(cmtest.At(other, port), rcm.ListenConfig{V6Only: true})
		require.ErrorIs(t, err, syscall.EADDRINUSE)
	}
}

func handshakes(l rcm.Listener) int {
	s := l.(*listener)
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.shaking)
}

func TestResolveServesEveryAddressOfTheHost(t *testing.T) {
	list, err := net.InterfaceAddrs()
	require.NoError(t, err)
	port := cmtest.FreePort(t)
	onSoft().MustListen(t, cmtest.At("::", port), rcm.ListenConfig{})
	for _, a := range list {
		ip, _ := netip.AddrFromSlice(a.(*net.IPNet).IP)
		r, err := New(Config{}).Resolve(cmtest.Within(t), netip.AddrPortFrom(ip, port))
		require.NoError(t, err, ip)
		require.NoError(t, r.Close())
	}
}

func TestResolveSaysWhyItCannot(t *testing.T) {
	port := cmtest.FreePort(t)
	onSoft().MustListen(t, cmtest.At("0.0.0.0", port), rcm.ListenConfig{})
	for _, c := range []struct {
		name string
		addr netip.AddrPort
		want error
	}{
		{"address of another host", cmtest.At("192.0.2.1", port), rcm.ErrNoRoute},
		{"address with a zone", netip.AddrPortFrom(netip.MustParseAddr("fe80::1%lo"), port), rcm.ErrNoRoute},
		{"port 0", cmtest.At("127.0.0.1", 0), rcm.ErrNoRoute},
		{"no address", netip.AddrPort{}, rcm.ErrNoRoute},
		{"nobody listens", cmtest.At("127.0.0.1", cmtest.FreePort(t)), rcm.ErrNoListener},
		{"nobody listens, in terms of TCP", cmtest.At("127.0.0.1", cmtest.FreePort(t)), syscall.ECONNREFUSED},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := New(Config{}).Resolve(cmtest.Within(t), c.addr)
			require.ErrorIs(t, err, c.want)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := New(Config{}).Resolve(ctx, cmtest.At("127.0.0.1", port))
	require.ErrorIs(t, err, context.Canceled)
}

// It is not taken for one of another host, whoever the rules let in and wherever they are met.
func TestNobodyListensAtAnAddressOfThisHost(t *testing.T) {
	host, err := addressesOfHost()
	require.NoError(t, err)
	for ip := range host {
		for _, dir := range []string{"", t.TempDir(), "/missing"} {
			f := New(Config{Directory: dir, Allow: Rules{Users: []uint32{friend}, Key: testKey}})
			_, err := f.Resolve(cmtest.Within(t), netip.AddrPortFrom(ip, cmtest.FreePort(t)))
			require.ErrorIs(t, err, rcm.ErrNoListener, ip)
			require.NotErrorIs(t, err, rcm.ErrNoRoute, ip)
		}
	}
}

func TestAFullQueueOfTheKernelIsBusyAtOnce(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	fd, err := openSocket()
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: nameOf(addr)}))
	require.NoError(t, unix.Listen(fd, 0))
	speakTo(t, addr) // takes the one place there is

	_, err = New(Config{}).Resolve(hasty{cmtest.Within(t), t}, addr)
	require.ErrorIs(t, err, rcm.ErrBusy)
}

// hasty is the context of a call that must not wait.
type hasty struct {
	context.Context
	t *testing.T
}

func (h hasty) Done() <-chan struct{} {
	h.t.Error("a look that waits")
	return h.Context.Done()
}

func TestSocketsOfAnotherKindAreNotListeners(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: nameOf(addr)})
	require.NoError(t, err)
	defer l.Close()
	_, err = New(Config{}).Resolve(cmtest.Within(t), addr)
	require.ErrorIs(t, err, rcm.ErrNoListener)
}

func TestRejectedErrorMeansWhatItsReasonSays(t *testing.T) {
	for _, c := range []struct {
		reason int
		is     error
		text   string
	}{
		{rcm.ReasonNoResources, rcm.ErrBusy, "backlog is full"},
		{rcm.ReasonTimeout, rcm.ErrTimeout, "handshake timed out"},
		{rcm.ReasonInvalidService, rcm.ErrNoListener, "nobody listens"},
		{rcm.ReasonConsumer, syscall.ECONNREFUSED, "refused by the program"},
		{rcm.ReasonInvalidVersion, syscall.ECONNREFUSED, "protocol version not supported"},
		{rcm.ReasonPeerDenied, rcm.ErrPeerDenied, "denied by policy"},
		{10, syscall.ECONNREFUSED, "reason 10"},
	} {
		err := error(&rcm.RejectedError{Reason: c.reason})
		require.ErrorIs(t, err, c.is)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.Equal(t, "rejected by peer: "+c.text, err.Error())
		for _, other := range []error{rcm.ErrBusy, rcm.ErrTimeout, rcm.ErrNoListener, rcm.ErrPeerDenied, rcm.ErrDisconnected} {
			require.Equal(t, other == c.is, errors.Is(err, other))
		}
	}
}
