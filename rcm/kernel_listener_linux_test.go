package rcm

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

func TestConnectFindsOutThatNobodyListens(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		err := <-f.dialAsync(t, within(t), f.addr(t), ConnParam{}) // ends with the peer's reject
		require.ErrorIs(t, err, ErrNoListener)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	})
}

func TestListenNeedsAnAddressOfADevice(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		for _, host := range []netip.Addr{bareAddr(t), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1")} {
			_, err := f.Listen(netip.AddrPortFrom(host, freePort(t)), ListenConfig{})
			require.ErrorIs(t, err, ErrNoRoute, host)
		}
		_, err := Kernel().Listen(f.addr(t), ListenConfig{Device: "mlx5_9"})
		require.ErrorIs(t, err, ErrNoRoute)
		_, err = f.Listen(f.addr(t), ListenConfig{Device: "mlx5_9"})
		require.ErrorIs(t, err, verbs.ErrInvalid, "the fabric is on another device")
	})
}

// TestAListenerMayStandBesideTCP is about the port number: RoCE has port
// numbers of its own, iWARP's are those of TCP.
func TestAListenerMayStandBesideTCP(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		tcp, err := net.Listen("tcp", ":0")
		require.NoError(t, err)
		defer tcp.Close()
		port := uint16(tcp.Addr().(*net.TCPAddr).Port)
		l, err := f.Listen(at("::", port), ListenConfig{})
		if f.iwarp {
			require.ErrorIs(t, err, syscall.EADDRINUSE)
			require.ErrorContains(t, err, f.device+" is an iWARP device, and TCP port")
			return
		}
		require.NoError(t, err)
		defer l.Close()
		dialed := f.dialAsync(t, within(t), netip.AddrPortFrom(f.host, port), ConnParam{})
		r, err := l.Accept(within(t))
		require.NoError(t, err)
		require.NoError(t, r.Reject(nil))
		require.ErrorIs(t, await(t, dialed), syscall.ECONNREFUSED) // ends with the REJ
	})
}

func TestAnotherProgramsWildcardHoldsThePort(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		// TCP must not have the port, or siw could not listen there.
		tcp, err := net.Listen("tcp", ":0")
		require.NoError(t, err)
		port := uint16(tcp.Addr().(*net.TCPAddr).Port)
		tcp.Close()
		// As C programs listen that do not name an address.
		wildcard, err := newCMID()
		require.NoError(t, err)
		defer wildcard.destroy()
		require.NoError(t, wildcard.bind(at("::", port)))
		require.NoError(t, wildcard.listen(1))
		_, err = f.Listen(netip.AddrPortFrom(f.host, port), ListenConfig{})
		require.ErrorIs(t, err, syscall.EADDRINUSE)
	})
}

func TestAnIPv6OnlyWildcardServesNoIPv4(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		port := freePort(t)
		l := f.listen(t, at("::", port), ListenConfig{V6Only: true})
		dialed := f.dialAsync(t, within(t), netip.AddrPortFrom(f.host, port), ConnParam{})
		if f.host.Is6() {
			r, err := l.Accept(within(t))
			require.NoError(t, err)
			require.NoError(t, r.Reject(nil))
		}
		var rejected *RejectedError
		require.ErrorAs(t, await(t, dialed), &rejected) // ends with the REJ of the program or the kernel
		require.Equal(t, uint64(f.host.BitLen()/128), l.Stats().Requests)
	})
}

// run runs a program that must succeed.
func run(t testing.TB, line string) {
	t.Helper()
	words := strings.Fields(line)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	require.NoError(t, err, "%s: %s", line, out)
}

func TestAWildcardListenerServesNewAddresses(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		port := freePort(t)
		l := f.listen(t, at("::", port), ListenConfig{})
		added := f.host.Next().Next()
		spec := netip.PrefixFrom(added, f.host.BitLen()).String() + " dev " + interfaceOf(t, f.host)
		if f.host.Is6() {
			run(t, "ip addr add "+spec+" nodad")
		} else {
			run(t, "ip addr add "+spec)
		}
		t.Cleanup(func() { run(t, "ip addr del "+spec) })
		served := make(chan error, 1)
		go func() {
			r, err := l.Accept(within(t))
			if err == nil {
				err = r.Reject([]byte("served"))
			}
			served <- err
		}()
		require.Eventually(t, func() bool {
			r, err := f.Resolve(within(t), netip.AddrPortFrom(added, port))
			if err != nil {
				require.ErrorIs(t, err, ErrNoRoute)
				return false
			}
			_, err = r.Connect(within(t), f.newSide(t).qp(t), ConnParam{})
			var rejected *RejectedError
			require.ErrorAs(t, err, &rejected)
			return strings.HasPrefix(string(rejected.PrivateData), "served")
		}, time.Minute, 100*time.Millisecond)
		require.NoError(t, await(t, served)) // has ended
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
	overDevices(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		l := f.listen(t, addr, ListenConfig{})
		ctx, cancel := context.WithCancel(t.Context())
		dialed := f.dialAsync(t, ctx, addr, ConnParam{})
		r, err := l.Accept(within(t))
		require.NoError(t, err)
		cancel()
		require.ErrorIs(t, await(t, dialed), context.Canceled) // ends with cancel
		t.Run("Accept", func(t *testing.T) {
			if f.iwarp {
				require.NoError(t, r.Reject(nil))
				t.Skip("iWARP: siw keeps the TCP connection until the handshake times out, and is not told before")
			}
			// The kernel takes the dialer's farewell in its own time.
			require.Eventually(t, func() bool {
				_, err := r.(*kernelRequest).id.qpAttr(uint32(verbs.QPStateRTR))
				return err != nil
			}, patience, time.Millisecond)
			_, err = r.Accept(within(t), f.newSide(t).qp(t), ConnParam{})
			require.ErrorIs(t, err, syscall.ECONNRESET)
		})
	})
}

// silentDialer sends a request and never says more. It is for devices whose
// handshake the program ends, not the kernel.
func (f *testFabric) silentDialer(t *testing.T, addr netip.AddrPort) {
	t.Helper()
	r := f.resolve(t, addr).(*kernelRoute)
	t.Cleanup(func() { r.Close() })
	qp := f.newSide(t).qp(t)
	p, err := ConnParam{}.complete(qp, MaxRequestData)
	require.NoError(t, err)
	require.NoError(t, r.id.connect(p.forKernel(qp, readDepth{})))
}

func TestSilentDialersHoldUpNobody(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		if f.iwarp {
			t.Skip("iWARP: the kernel ends the dialer's handshake by itself")
		}
		addr := f.addr(t)
		l := f.listen(t, addr, ListenConfig{HandshakeTimeout: 500 * time.Millisecond})
		const silent = 5
		outcome := make(chan error, silent)
		for range silent {
			f.silentDialer(t, addr)
			r, err := l.Accept(within(t))
			require.NoError(t, err)
			qp := f.newSide(t).qp(t)
			go func() {
				_, err := r.Accept(within(t), qp, ConnParam{})
				outcome <- err
			}()
		}
		dialed := f.dialAsync(t, within(t), addr, ConnParam{})
		r, err := l.Accept(within(t))
		require.NoError(t, err)
		c, err := r.Accept(within(t), f.newSide(t).qp(t), ConnParam{})
		require.NoError(t, err)
		require.NoError(t, await(t, dialed)) // ends with the handshake
		require.NoError(t, c.Disconnect())
		for range silent {
			require.ErrorIs(t, await(t, outcome), ErrTimeout) // each ends with the handshake timeout
		}
	})
}

func TestAcceptOfASilentDialerEndsWithItsContext(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		if f.iwarp {
			t.Skip("iWARP: the kernel ends the dialer's handshake by itself")
		}
		addr := f.addr(t)
		l := f.listen(t, addr, ListenConfig{HandshakeTimeout: time.Minute})
		accept := func(ctx context.Context) error {
			f.silentDialer(t, addr)
			r, err := l.Accept(within(t))
			require.NoError(t, err)
			_, err = r.Accept(ctx, f.newSide(t).qp(t), ConnParam{})
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, accept(ctx), ErrTimeout)
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		require.ErrorIs(t, accept(ctx), context.Canceled)
	})
}

func TestAListenerOutOfDescriptorsKeepsItsIDs(t *testing.T) {
	if os.Getenv(devicesVariable) == "" {
		t.Skip(howToFindDevices)
	}
	f := kernelFabrics(t)[0] // devices have no part in it
	addr := f.addr(t)
	l := f.listen(t, addr, ListenConfig{})
	r, qp := f.resolve(t, addr), f.newSide(t).qp(t)
	giveBack := useUpDescriptors(t)
	time.Sleep(rescan + rescan/4) // it has tried to look round
	_, err := r.Connect(within(t), qp, ConnParam{})
	giveBack()
	require.ErrorIs(t, err, ErrBusy, "somebody listens, but cannot take the request")
	require.Equal(t, ListenStats{Overflows: 1}, l.Stats())
}

func TestAFloodOfRequestsIsRefusedAtOnce(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		// Nobody serves this listener, as if the goroutine were far behind. Ids
		// that stand for nothing do for requests.
		l := kernelListener{busy: true}
		request := func() *cmID {
			id, err := newCMID()
			require.NoError(t, err)
			l.event(f.host, cmEvent{kind: eventConnectRequest, conn: id})
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
		require.Equal(t, ListenStats{Overflows: 1}, l.Stats())
		pending := l.pending
		l.shutDown()
		for _, ev := range pending {
			require.False(t, alive(ev.conn))
		}
		require.False(t, alive(request()), "it is closed")
	})
}

func TestTheReaderMayDestroyTheLastID(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		id, err := newCMID()
		require.NoError(t, err)
		destroyed := make(chan struct{})
		id.handle(func(cmEvent) {
			id.destroy()
			close(destroyed)
		})
		require.NoError(t, id.resolveAddr(netip.Addr{}, netip.AddrPortFrom(f.host, 9000), 1000))
		await(t, destroyed) // ends with ADDR_RESOLVED
	})
}

func TestAQPOfAnotherDeviceIsRefused(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		f.listen(t, addr, ListenConfig{})
		_, err := f.resolve(t, addr).Connect(within(t), onSoft().newSide(t).qp(t), ConnParam{})
		require.ErrorIs(t, err, verbs.ErrInvalid)
		require.ErrorContains(t, err, "QP on soft0, the connection is on "+f.device)
	})
}
