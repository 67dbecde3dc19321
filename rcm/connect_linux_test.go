package rcm

import (
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

func TestConnectedQPsCarryData(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		p := f.newPair(t, ConnParam{PrivateData: []byte("hello")}, ConnParam{PrivateData: []byte("welcome")})

		f.carried(t, p.near.PrivateData(), "welcome")
		f.carried(t, p.far.PrivateData(), "hello")
		require.Equal(t, p.addr, p.near.RemoteAddr())
		require.Equal(t, p.addr, p.far.LocalAddr())
		require.Equal(t, p.near.LocalAddr(), p.far.RemoteAddr())
		require.Equal(t, f.host, p.near.LocalAddr().Addr())
		require.NotZero(t, p.near.LocalAddr().Port())
		require.Equal(t, p.near.Peer(), p.far.Peer(), "both ends are this process, or unknown")
		require.NoError(t, p.near.Err())
		require.NoError(t, p.far.Err())

		// The dialer comes first, as iWARP demands.
		for _, c := range []struct {
			from *verbs.QP
			to   *side
			qp   *verbs.QP
		}{{p.dialed, p.acceptor, p.accepted}, {p.accepted, p.dialer, p.dialed}} {
			a, err := c.from.Query()
			require.NoError(t, err)
			require.Equal(t, verbs.QPStateRTS, a.State)
			require.NoError(t, tell(c.from, 77))
			number, wc, err := c.to.hear()
			require.NoError(t, err)
			require.EqualValues(t, 77, number)
			require.Equal(t, c.qp.Num(), wc.QPN)
		}
	})
}

func TestAWildcardListenerLearnsWhatWasDialed(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		port := freePort(t)
		l := f.listen(t, at("::", port), ListenConfig{})
		hosts := []netip.Addr{f.host}
		if !f.kernel {
			hosts = append(hosts, netip.MustParseAddr("127.0.0.9"))
		}
		for _, host := range hosts {
			addr := netip.AddrPortFrom(host, port)
			dialed := f.dialAsync(t, within(t), addr, ConnParam{})
			r, err := l.Accept(within(t))
			require.NoError(t, err)
			require.Equal(t, f.device, r.Device())
			require.Equal(t, addr, r.LocalAddr())
			require.Equal(t, sourceFor(host), r.RemoteAddr().Addr())
			c, err := r.Accept(within(t), f.newSide(t).qp(t), ConnParam{})
			require.NoError(t, err)
			require.NoError(t, await(t, dialed)) // ends with the handshake
			require.NoError(t, c.Disconnect())
		}
	})
}

func TestParametersReachTheQP(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		if f.iwarp {
			t.Skip("iWARP: the kernel alone moves the QP")
		}
		t.Run("defaults", func(t *testing.T) {
			p := f.newPair(t, ConnParam{}, ConnParam{})
			for _, qp := range []*verbs.QP{p.dialed, p.accepted} {
				a, err := qp.Query()
				require.NoError(t, err)
				require.EqualValues(t, 7, a.RetryCount)
				require.EqualValues(t, 7, a.RNRRetry)
				require.EqualValues(t, 6, a.MinRNRTimer)
				timeout := 14
				if !f.kernel {
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
			p := f.newPair(t,
				ConnParam{RetryCount: 1, RNRRetry: 2, MinRNRTimer: 3, Timeout: 4, InitiatorDepth: 8, ResponderResources: 8},
				ConnParam{Access: verbs.AccessRemoteRead, InitiatorDepth: 4, ResponderResources: 2})
			a, err := p.dialed.Query()
			require.NoError(t, err)
			require.EqualValues(t, []uint8{1, 2, 3, 4}, []uint8{a.RetryCount, a.RNRRetry, a.MinRNRTimer, a.Timeout})
			require.EqualValues(t, 2, a.MaxRdAtomic, "the acceptor's resources")
			require.EqualValues(t, 4, a.MaxDestRdAtomic, "the acceptor's depth")
			require.Equal(t, verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic, a.Access)
			b, err := p.accepted.Query()
			require.NoError(t, err)
			require.EqualValues(t, 4, b.MaxRdAtomic)
			require.EqualValues(t, 2, b.MaxDestRdAtomic)
			require.Equal(t, verbs.AccessRemoteRead, b.Access)
		})
	})
}

func TestDisconnectIsToldToThePeer(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		p := f.newPair(t, ConnParam{}, ConnParam{})
		require.NoError(t, p.near.Disconnect())
		require.ErrorIs(t, p.near.Err(), net.ErrClosed)
		a, err := p.dialed.Query()
		require.NoError(t, err)
		require.Equal(t, verbs.QPStateErr, a.State)
		await(t, p.far.Disconnected()) // ends with the DREQ
		require.ErrorIs(t, p.far.Err(), ErrDisconnected)
		require.NoError(t, p.near.Disconnect())
		require.NoError(t, p.far.Disconnect(), "it only frees what is left")
		require.ErrorIs(t, p.far.Err(), ErrDisconnected, "the first cause stays")
	})
}

func TestBothSidesMayDisconnectAtOnce(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		p := f.newPair(t, ConnParam{}, ConnParam{})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { p.near.Disconnect() })
			wg.Go(func() { p.far.Disconnect() })
		}
		wg.Wait()
		require.Error(t, p.near.Err())
		require.Error(t, p.far.Err())
	})
}

func TestConnectionsOutliveTheirListener(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		p := f.newPair(t, ConnParam{}, ConnParam{})
		require.NoError(t, p.l.Close())
		require.NoError(t, tell(p.dialed, 5))
		_, _, err := p.acceptor.hear()
		require.NoError(t, err)
		require.NoError(t, p.near.Err())
	})
}

// TestAQPMayBeConnectedAgain is about the time that a connection manager waits
// for late packets of a connection that has ended: it holds up no new one,
// even of a QP with the same number.
func TestAQPMayBeConnectedAgain(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		if f.iwarp {
			t.Skip("iWARP: there is no way back to RESET")
		}
		addr := f.addr(t)
		l := f.listen(t, addr, ListenConfig{})
		dialer, acceptor := f.newSide(t), f.newSide(t)
		qp := dialer.qp(t)
		for range 5 {
			other := acceptor.qp(t)
			far := make(chan Conn, 1)
			go func() {
				defer close(far)
				r, err := l.Accept(within(t))
				if err == nil {
					var c Conn
					if c, err = r.Accept(within(t), other, ConnParam{Prepare: acceptor.receive}); err == nil {
						far <- c
					}
				}
				if err != nil {
					t.Error(err)
				}
			}()
			near, err := f.resolve(t, addr).Connect(within(t), qp, ConnParam{})
			require.NoError(t, err)
			require.NoError(t, tell(qp, 3))
			_, _, err = acceptor.hear()
			require.NoError(t, err)
			require.NoError(t, near.Disconnect())
			c := await(t, far) // ends with the handshake
			require.NotNil(t, c)
			await(t, c.Disconnected()) // ends with the DREQ
			require.NoError(t, c.Disconnect())
			require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPStateReset}, verbs.QPAttrState))
		}
	})
}
