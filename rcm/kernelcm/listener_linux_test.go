package kernelcm

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

func TestConnectFindsOutThatNobodyListens(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		// ends with the peer's reject
		err := <-f.DialAsync(t, cmtest.Within(t), f.Addr(t), rcm.ConnParam{})
		require.ErrorIs(t, err, rcm.ErrNoListener)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	})
}

func TestListenNeedsAnAddressOfADevice(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		for _, host := range []netip.Addr{bareAddr(t), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1")} {
			_, err := f.Listen(netip.AddrPortFrom(host, cmtest.FreePort(t)), rcm.ListenConfig{})
			require.ErrorIs(t, err, rcm.ErrNoRoute, host)
		}
		_, err := New(Config{}).Listen(f.Addr(t), rcm.ListenConfig{Device: "mlx5_9"})
		require.ErrorIs(t, err, rcm.ErrNoRoute)
		_, err = f.Listen(f.Addr(t), rcm.ListenConfig{Device: "mlx5_9"})
		require.ErrorIs(t, err, verbs.ErrInvalid, "the fabric is on another device")
	})
}

// TestAListenerMayStandBesideTCP is about the port number: RoCE has port
// numbers of its own, iWARP's are those of TCP.
func TestAListenerMayStandBesideTCP(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		tcp, err := net.Listen("tcp", ":0")
		require.NoError(t, err)
		defer tcp.Close()
		port := uint16(tcp.Addr().(*net.TCPAddr).Port)
		l, err := f.Listen(cmtest.At("::", port), rcm.ListenConfig{})
		if f.IWARP {
			require.ErrorIs(t, err, syscall.EADDRINUSE)
			require.ErrorContains(t, err, f.Device+" is an iWARP device, and TCP port")
			return
		}
		require.NoError(t, err)
		defer l.Close()
		dialed := f.DialAsync(t, cmtest.Within(t), netip.AddrPortFrom(f.Host, port), rcm.ConnParam{})
		r, err := l.Accept(cmtest.Within(t))
		require.NoError(t, err)
		require.NoError(t, r.Reject(nil))
		require.ErrorIs(t, cmtest.Await(t, dialed), syscall.ECONNREFUSED) // ends with the REJ
	})
}

func TestAnotherProgramsWildcardHoldsThePort(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		// TCP must not have the port, or siw could not listen there.
		tcp, err := net.Listen("tcp", ":0")
		require.NoError(t, err)
		port := uint16(tcp.Addr().(*net.TCPAddr).Port)
		tcp.Close()
		// As C programs listen that do not name an address.
		wildcard, err := newCMID(portSpaceTCP)
		require.NoError(t, err)
		defer wildcard.destroy()
		require.NoError(t, wildcard.bind(cmtest.At("::", port)))
		require.NoError(t, wildcard.listen(1))
		_, err = f.Listen(netip.AddrPortFrom(f.Host, port), rcm.ListenConfig{})
		require.ErrorIs(t, err, syscall.EADDRINUSE)
	})
}

func TestAnIPv6OnlyWildcardServesNoIPv4(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		port := cmtest.FreePort(t)
		l := f.MustListen(t, cmtest.At("::", port), rcm.ListenConfig{V6Only: true})
		dialed := f.DialAsync(t, cmtest.Within(t), netip.AddrPortFrom(f.Host, port), rcm.ConnParam{})
		if f.Host.Is6() {
			r, err := l.Accept(cmtest.Within(t))
			require.NoError(t, err)
			require.NoError(t, r.Reject(nil))
		}
		var rejected *rcm.RejectedError
		// ends with the REJ of the program or the kernel
		require.ErrorAs(t, cmtest.Await(t, dialed), &rejected)
		require.Equal(t, uint64(f.Host.BitLen()/128), l.Stats().Requests)
	})
}

func TestAWildcardListenerServesNewAddresses(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		port := cmtest.FreePort(t)
		l := f.MustListen(t, cmtest.At("::", port), rcm.ListenConfig{})
		added := f.Host.Next().Next()
		spec := netip.PrefixFrom(added, f.Host.BitLen()).String() + " dev " + interfaceOf(t, f.Host)
		if f.Host.Is6() {
			cmtest.Run(t, "ip addr add "+spec+" nodad")
		} else {
			cmtest.Run(t, "ip addr add "+spec)
		}
		t.Cleanup(func() { cmtest.Run(t, "ip addr del "+spec) })
		served := make(chan error, 1)
		go func() {
			r, err := l.Accept(cmtest.Within(t))
			if err == nil {
				err = r.Reject([]byte("served"))
			}
			served <- err
		}()
		require.Eventually(t, func() bool {
			r, err := f.Resolve(cmtest.Within(t), netip.AddrPortFrom(added, port))
			if err != nil {
				require.ErrorIs(t, err, rcm.ErrNoRoute)
				return false
			}
			_, err = r.Connect(cmtest.Within(t), f.NewSide(t).QP(t), rcm.ConnParam{})
			var rejected *rcm.RejectedError
			require.ErrorAs(t, err, &rejected)
			return strings.HasPrefix(string(rejected.PrivateData), "served")
		}, time.Minute, 100*time.Millisecond)
		require.NoError(t, cmtest.Await(t, served)) // has ended
	})
}

// interfaceOf returns the interface that has an address.
func interfaceOf(t testing.TB, host netip.Addr) string {
	t.Helper()
	interfaces, err := net.Interfaces()
	require.NoError(t, err)
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		require.NoError(t, err)
		for _, a := range addrs {
			if strings.HasPrefix(a.String(), host.String()+"/") {
				return i.Name
			}
		}
	}
	t.Fatal("no interface has ", host)
	return ""
}

func TestAcceptFailsIfTheDialerHasGone(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		l := f.MustListen(t, addr, rcm.ListenConfig{})
		ctx, cancel := context.WithCancel(t.Context())
		dialed := f.DialAsync(t, ctx, addr, rcm.ConnParam{})
		r, err := l.Accept(cmtest.Within(t))
		require.NoError(t, err)
		cancel()
		require.ErrorIs(t, cmtest.Await(t, dialed), context.Canceled) // ends with cancel
		t.Run("Accept", func(t *testing.T) {
			if f.IWARP {
				require.NoError(t, r.Reject(nil))
				t.Skip("iWARP: siw keeps the TCP connection until the handshake times out, and is not told before")
			}
			// The kernel takes the dialer's disconnect in its own time.
			require.Eventually(t, func() bool {
				_, err := r.(*request).id.qpAttr(uint32(verbs.QPStateRTR))
				return err != nil
			}, cmtest.Timeout, time.Millisecond)
			_, err = r.Accept(cmtest.Within(t), f.NewSide(t).QP(t), rcm.ConnParam{})
			require.ErrorIs(t, err, syscall.ECONNRESET)
		})
	})
}

// silentDialer sends a request and never says more. It is for devices whose
// handshake the program ends, not the kernel.
func silentDialer(f *cmtest.Fabric, t *testing.T, addr netip.AddrPort) {
	t.Helper()
	r := f.MustResolve(t, addr).(*route)
	t.Cleanup(func() { r.Close() })
	qp := f.NewSide(t).QP(t)
	p, err := handshake.Complete(rcm.ConnParam{}, qp, rcm.MaxRequestData)
	require.NoError(t, err)
	require.NoError(t, r.id.connect(connParam(&p, qp, handshake.ReadDepth{})))
}

func TestSilentDialersHoldUpNobody(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		if f.IWARP {
			t.Skip("iWARP: the kernel ends the dialer's handshake by itself")
		}
		addr := f.Addr(t)
		l := f.MustListen(t, addr, rcm.ListenConfig{})
		const silent = 5
		outcome := make(chan error, silent)
		for range silent {
			silentDialer(f, t, addr)
			r, err := l.Accept(cmtest.Within(t))
			require.NoError(t, err)
			r.(*request).timeout = 500 * time.Millisecond
			qp := f.NewSide(t).QP(t)
			go func() {
				_, err := r.Accept(cmtest.Within(t), qp, rcm.ConnParam{})
				outcome <- err
			}()
		}
		dialed := f.DialAsync(t, cmtest.Within(t), addr, rcm.ConnParam{})
		r, err := l.Accept(cmtest.Within(t))
		require.NoError(t, err)
		c, err := r.Accept(cmtest.Within(t), f.NewSide(t).QP(t), rcm.ConnParam{})
		require.NoError(t, err)
		require.NoError(t, cmtest.Await(t, dialed)) // ends with the handshake
		require.NoError(t, c.Disconnect())
		for range silent {
			// each ends with the handshake timeout
			require.ErrorIs(t, cmtest.Await(t, outcome), rcm.ErrTimeout)
		}
	})
}

func TestAcceptOfASilentDialerEndsWithItsContext(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		if f.IWARP {
			t.Skip("iWARP: the kernel ends the dialer's handshake by itself")
		}
		addr := f.Addr(t)
		l := f.MustListen(t, addr, rcm.ListenConfig{HandshakeTimeout: time.Minute})
		accept := func(ctx context.Context) error {
			silentDialer(f, t, addr)
			r, err := l.Accept(cmtest.Within(t))
			require.NoError(t, err)
			_, err = r.Accept(ctx, f.NewSide(t).QP(t), rcm.ConnParam{})
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, accept(ctx), rcm.ErrTimeout)
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		require.ErrorIs(t, accept(ctx), context.Canceled)
	})
}

func TestAListenerOutOfDescriptorsKeepsItsIDs(t *testing.T) {
	if !cmtest.HaveDevices() {
		t.Skip(cmtest.HowToFindDevices)
	}
	f := cmtest.FabricsOn(t, on)[0] // devices have no part in it
	addr := f.Addr(t)
	l := f.MustListen(t, addr, rcm.ListenConfig{})
	r, qp := f.MustResolve(t, addr), f.NewSide(t).QP(t)
	giveBack := cmtest.UseUpDescriptors(t)
	time.Sleep(rescan + rescan/4)              // it has tried to look round
	giveBackMore := cmtest.UseUpDescriptors(t) // it may have been looking round before, and have had some
	_, err := r.Connect(cmtest.Within(t), qp, rcm.ConnParam{})
	giveBackMore()
	giveBack()
	require.ErrorIs(t, err, rcm.ErrBusy, "somebody listens, but cannot take the request")
	require.Equal(t, rcm.ListenStats{Overflows: 1}, l.Stats())
}

func TestAFloodOfRequestsIsRefusedAtOnce(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		// Nobody serves this listener, as if the goroutine were far behind. Ids
		// that stand for nothing do for requests.
		l := listener{busy: true, backlog: handshake.NewBacklog[*request](netip.AddrPort{}, rcm.ListenConfig{})}
		request := func() *cmID {
			id, err := newCMID(portSpaceTCP)
			require.NoError(t, err)
			l.event(nil, cmEvent{kind: eventConnectRequest, conn: id})
			return id
		}
		alive := func(id *cmID) bool {
			_, err := id.query()
			return err == nil
		}
		for range maxPending {
			request()
		}
		require.True(t, alive(l.pending[maxPending-1].conn))
		require.False(t, alive(request()))
		require.Equal(t, rcm.ListenStats{Overflows: 1}, l.Stats())
		pending := l.pending
		l.shutDown()
		for _, ev := range pending {
			require.False(t, alive(ev.conn))
		}
		require.False(t, alive(request()), "it is closed")
	})
}

// An address may leave a device and come to another before the listener has looked at
// what the first one said as it went.
func TestRemovalOfADeviceLeavesTheListenerOnAnother(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		l := f.MustListen(t, f.Addr(t), rcm.ListenConfig{}).(*listener)
		gone, err := newCMID(portSpaceTCP)
		require.NoError(t, err)
		l.event(gone, cmEvent{kind: eventDeviceRemoval})
		l.working.Wait() // ends when gone is closed
		l.opening.Lock()
		defer l.opening.Unlock()
		require.NotNil(t, l.ids[f.Host])
		_, err = l.ids[f.Host].query()
		require.NoError(t, err)
		_, err = gone.query()
		require.Error(t, err)
	})
}

func TestTheReaderMayDestroyTheLastID(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		id, err := newCMID(portSpaceTCP)
		require.NoError(t, err)
		destroyed := make(chan struct{})
		id.handle(func(cmEvent) {
			id.destroy()
			close(destroyed)
		})
		require.NoError(t, id.resolveAddr(netip.Addr{}, netip.AddrPortFrom(f.Host, 9000), 1000))
		cmtest.Await(t, destroyed) // ends with ADDR_RESOLVED
	})
}

func TestAQPOfAnotherDeviceIsRefused(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		f.MustListen(t, addr, rcm.ListenConfig{})
		_, err := f.MustResolve(t, addr).Connect(cmtest.Within(t), (&cmtest.Fabric{Device: "soft0"}).NewSide(t).QP(t), rcm.ConnParam{})
		require.ErrorIs(t, err, verbs.ErrInvalid)
		require.ErrorContains(t, err, "QP on soft0, the connection is on "+f.Device)
	})
}
