package rcm_test

import (
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

func TestConnectedQPsCarryData(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		p := f.NewPair(t, rcm.ConnParam{PrivateData: []byte("hello")}, rcm.ConnParam{PrivateData: []byte("welcome")})

		cmtest.Carried(f, t, p.Near.PrivateData(), "welcome")
		cmtest.Carried(f, t, p.Far.PrivateData(), "hello")
		require.Equal(t, p.Addr, p.Near.RemoteAddr())
		require.Equal(t, p.Addr, p.Far.LocalAddr())
		require.Equal(t, p.Near.LocalAddr(), p.Far.RemoteAddr())
		require.Equal(t, f.Host, p.Near.LocalAddr().Addr())
		require.NotZero(t, p.Near.LocalAddr().Port())
		require.Equal(t, p.Near.Peer(), p.Far.Peer(), "both ends are this process, or unknown")
		require.NoError(t, p.Near.Err())
		require.NoError(t, p.Far.Err())

		// The dialer comes first, as iWARP demands.
		for _, c := range []struct {
			from *verbs.QP
			to   *cmtest.Side
			qp   *verbs.QP
		}{{p.Dialed, p.Acceptor, p.Accepted}, {p.Accepted, p.Dialer, p.Dialed}} {
			a, err := c.from.Query()
			require.NoError(t, err)
			require.Equal(t, verbs.QPStateRTS, a.State)
			require.NoError(t, cmtest.Tell(c.from, 77))
			number, wc, err := c.to.Await()
			require.NoError(t, err)
			require.EqualValues(t, 77, number)
			require.Equal(t, c.qp.Num(), wc.QPN)
		}
	})
}

func TestAWildcardListenerLearnsWhatWasDialed(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		port := cmtest.FreePort(t)
		l := f.MustListen(t, cmtest.At("::", port), rcm.ListenConfig{})
		hosts := []netip.Addr{f.Host}
		if !f.Kernel {
			hosts = append(hosts, netip.MustParseAddr("127.0.0.9"))
		}
		for _, host := range hosts {
			addr := netip.AddrPortFrom(host, port)
			dialed := f.DialAsync(t, cmtest.Within(t), addr, rcm.ConnParam{})
			r, err := l.Accept(cmtest.Within(t))
			require.NoError(t, err)
			require.Equal(t, f.Device, r.Device())
			require.Equal(t, addr, r.LocalAddr())
			require.Equal(t, tcpSource(host), r.RemoteAddr().Addr())
			c, err := r.Accept(cmtest.Within(t), f.NewSide(t).QP(t), rcm.ConnParam{})
			require.NoError(t, err)
			require.NoError(t, cmtest.Await(t, dialed)) // ends with the handshake
			require.NoError(t, c.Disconnect())
		}
	})
}

func TestParametersReachTheQP(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		if f.IWARP {
			t.Skip("iWARP: the kernel alone moves the QP")
		}
		t.Run("defaults", func(t *testing.T) {
			p := f.NewPair(t, rcm.ConnParam{}, rcm.ConnParam{})
			for _, qp := range []*verbs.QP{p.Dialed, p.Accepted} {
				a, err := qp.Query()
				require.NoError(t, err)
				require.EqualValues(t, 7, a.RetryCount)
				require.EqualValues(t, 7, a.RNRRetry)
				require.EqualValues(t, 6, a.MinRNRTimer)
				timeout := 14
				if !f.Kernel {
					timeout = 18
				}
				require.EqualValues(t, timeout, a.Timeout)
				require.Zero(t, a.MaxRdAtomic)
				require.Zero(t, a.MaxDestRdAtomic)
				require.Equal(t, verbs.AccessRemoteWrite, a.Access)
			}
		})
		t.Run("given", func(t *testing.T) {
			// Powers of two, because rxe rounds up to them.
			p := f.NewPair(t,
				rcm.ConnParam{RetryCount: 1, RNRRetry: 2, MinRNRTimer: 3, Timeout: 4, InitiatorDepth: 8, ResponderResources: 8},
				rcm.ConnParam{Access: verbs.AccessRemoteRead, InitiatorDepth: 4, ResponderResources: 2})
			a, err := p.Dialed.Query()
			require.NoError(t, err)
			require.EqualValues(t, []uint8{1, 2, 3, 4}, []uint8{a.RetryCount, a.RNRRetry, a.MinRNRTimer, a.Timeout})
			require.EqualValues(t, 2, a.MaxRdAtomic, "the acceptor's resources")
			require.EqualValues(t, 4, a.MaxDestRdAtomic, "the acceptor's depth")
			require.Equal(t, verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic, a.Access)
			b, err := p.Accepted.Query()
			require.NoError(t, err)
			require.EqualValues(t, 4, b.MaxRdAtomic)
			require.EqualValues(t, 2, b.MaxDestRdAtomic)
			require.Equal(t, verbs.AccessRemoteRead, b.Access)
		})
	})
}

func TestDisconnectIsToldToThePeer(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		p := f.NewPair(t, rcm.ConnParam{}, rcm.ConnParam{})
		require.NoError(t, p.Near.Disconnect())
		require.ErrorIs(t, p.Near.Err(), net.ErrClosed)
		a, err := p.Dialed.Query()
		require.NoError(t, err)
		require.Equal(t, verbs.QPStateErr, a.State)
		cmtest.Await(t, p.Far.Disconnected()) // ends with the DREQ
		require.ErrorIs(t, p.Far.Err(), rcm.ErrDisconnected)
		require.NoError(t, p.Near.Disconnect())
		require.NoError(t, p.Far.Disconnect(), "it only frees what is left")
		require.ErrorIs(t, p.Far.Err(), rcm.ErrDisconnected, "the first cause stays")
	})
}

func TestBothSidesMayDisconnectAtOnce(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		p := f.NewPair(t, rcm.ConnParam{}, rcm.ConnParam{})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { p.Near.Disconnect() })
			wg.Go(func() { p.Far.Disconnect() })
		}
		wg.Wait()
		require.Error(t, p.Near.Err())
		require.Error(t, p.Far.Err())
	})
}

func TestConnectionsOutliveTheirListener(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		p := f.NewPair(t, rcm.ConnParam{}, rcm.ConnParam{})
		require.NoError(t, p.L.Close())
		require.NoError(t, cmtest.Tell(p.Dialed, 5))
		_, _, err := p.Acceptor.Await()
		require.NoError(t, err)
		require.NoError(t, p.Near.Err())
	})
}

// TestAQPMayBeConnectedAgain is about the time that a connection manager waits
// for late packets of a connection that has ended: it holds up no new one,
// even of a QP with the same number.
func TestAQPMayBeConnectedAgain(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		if f.IWARP {
			t.Skip("iWARP: there is no way back to RESET")
		}
		addr := f.Addr(t)
		l := f.MustListen(t, addr, rcm.ListenConfig{})
		dialer, acceptor := f.NewSide(t), f.NewSide(t)
		qp := dialer.QP(t)
		for range 5 {
			other := acceptor.QP(t)
			far := make(chan rcm.Conn, 1)
			go func() {
				defer close(far)
				r, err := l.Accept(cmtest.Within(t))
				if err == nil {
					var c rcm.Conn
					if c, err = r.Accept(cmtest.Within(t), other, rcm.ConnParam{Prepare: acceptor.Receive}); err == nil {
						far <- c
					}
				}
				if err != nil {
					t.Error(err)
				}
			}()
			near, err := f.MustResolve(t, addr).Connect(cmtest.Within(t), qp, rcm.ConnParam{})
			require.NoError(t, err)
			require.NoError(t, cmtest.Tell(qp, 3))
			_, _, err = acceptor.Await()
			require.NoError(t, err)
			c := cmtest.Await(t, far) // ends with the handshake: a DREQ that is there before the RTU would end that
			require.NotNil(t, c)
			require.NoError(t, near.Disconnect())
			cmtest.Await(t, c.Disconnected()) // ends with the DREQ
			require.NoError(t, c.Disconnect())
			require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPStateReset}, verbs.QPAttrState))
		}
	})
}

// tcpSource is the address from which TCP reaches one of this host.
func tcpSource(host netip.Addr) netip.Addr {
	if host.Is4() && host.IsLoopback() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return host
}
