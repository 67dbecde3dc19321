package kernelcm

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/stretchr/testify/require"
)

func TestRemovalOfADeviceEndsMembershipsAndLookups(t *testing.T) {
	overDatagrams(t, func(t *testing.T, f *cmtest.Fabric) {
		dev := linkUnder(f, t)
		addr := f.Addr(t)
		l := f.MustListenDatagram(t, addr, rcm.ListenConfig{})
		member, asks := openDatagrams(t, f), openDatagrams(t, f)
		m := join(t, f, member)

		waiting := make(chan error, 1)
		route := f.MustResolveDatagram(t, addr)
		go func() {
			_, err := route.Lookup(cmtest.Within(t), asks.QP, rcm.DatagramParam{})
			waiting <- err
		}()
		request, err := l.Accept(cmtest.Within(t)) // and does not answer
		require.NoError(t, err)

		removed := dev.remove(t)
		if m != nil {
			cmtest.Await(t, m.Ended()) // ends with the removal
			require.ErrorIs(t, m.Err(), rcm.ErrDeviceRemoved)
			require.ErrorIs(t, m.Err(), syscall.ECONNRESET)
			require.NoError(t, m.Leave())
		}
		// The id of the request may go first, which is a refusal.
		require.Error(t, cmtest.Await(t, waiting))
		_ = request.Reject(nil) // which the device may be gone for
		member.Close()
		asks.Close()
		require.NoError(t, cmtest.Await(t, removed)) // ends because everything is closed
		_, err = f.ResolveDatagram(cmtest.Within(t), addr)
		require.ErrorIs(t, err, rcm.ErrNoRoute)
		_, err = f.ResolveGroup(cmtest.Within(t), f.GroupAddr(t))
		require.ErrorIs(t, err, rcm.ErrNoRoute)

		dev.add(t)
		awaitListener(t, addr)
		near, far := f.NewDatagrams(t), f.NewDatagrams(t)
		go func() {
			r, err := l.Accept(cmtest.Within(t))
			if err == nil {
				err = r.Accept(far.QP, far.Param(""))
			}
			if err != nil {
				t.Errorf("answer: %v", err)
			}
		}()
		to, err := f.MustResolveDatagram(t, netip.AddrPortFrom(f.Host, addr.Port())).Lookup(cmtest.Within(t), near.QP, near.Param(""))
		require.NoError(t, err)
		near.SendTo(to, "again")
		require.Equal(t, "again", far.Next().Text)
	})
}

// openDatagrams makes a UD QP on a device that is going to be removed. What closing it
// returns then is the provider's business.
func openDatagrams(t *testing.T, f *cmtest.Fabric) *cmtest.Datagrams {
	t.Helper()
	d, err := cmtest.OpenDatagrams(f.Device)
	require.NoError(t, err)
	return d
}

// join makes a QP a member of a group, or returns nil where there are none of the version of IP.
func join(t *testing.T, f *cmtest.Fabric, d *cmtest.Datagrams) rcm.Membership {
	t.Helper()
	if !f.Host.Is4() {
		return nil
	}
	r, err := f.ResolveGroup(cmtest.Within(t), f.GroupAddr(t))
	require.NoError(t, err)
	m, err := r.Join(cmtest.Within(t), d.QP, rcm.JoinParam{})
	require.NoError(t, err)
	return m
}
