package rcm

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/stretchr/testify/require"
)

// doomed are sides and QPs on a device that is going to be removed. They have
// to be closed for the removal to come to an end.
type doomed struct {
	f     *testFabric
	sides []*side
	qps   []*verbs.QP
}

func (f *testFabric) doom(t *testing.T) *doomed {
	d := &doomed{f: f}
	t.Cleanup(d.close)
	return d
}

func (d *doomed) qp(t *testing.T) *verbs.QP {
	t.Helper()
	s, err := openSide(d.f.device)
	require.NoError(t, err)
	d.sides = append(d.sides, s)
	qp, err := s.newQP()
	require.NoError(t, err)
	d.qps = append(d.qps, qp)
	return qp
}

// close closes them; what that returns after a removal is the provider's
// business.
func (d *doomed) close() {
	for i := range d.qps {
		d.qps[i].Close()
		d.sides[i].close()
	}
	d.qps, d.sides = nil, nil
}

// connect makes a connection over l and returns both ends of it.
func (d *doomed) connect(t *testing.T, l Listener, addr netip.AddrPort) (near, far Conn) {
	t.Helper()
	dialed := make(chan Conn, 1)
	r, qp := d.f.resolve(t, addr), d.qp(t)
	go func() {
		c, err := r.Connect(within(t), qp, ConnParam{})
		if err != nil {
			t.Error(err)
		}
		dialed <- c
	}()
	request, err := l.Accept(within(t))
	require.NoError(t, err)
	far, err = request.Accept(within(t), d.qp(t), ConnParam{})
	require.NoError(t, err)
	near = await(t, dialed) // ends with the handshake
	require.NotNil(t, near)
	return near, far
}

// link deletes and adds the device as an administrator does.
type link struct {
	name, kind, netdev string
}

func (f *testFabric) link(t *testing.T) link {
	kind := "rxe"
	if f.iwarp {
		kind = "siw"
	}
	l := link{f.device, kind, interfaceOf(t, f.host)}
	t.Cleanup(func() {
		if names, _ := rdmahost.Names(); !slices.Contains(names, l.name) {
			l.add(t)
		}
	})
	return l
}

// remove begins the removal, which ends when nobody has the device open.
func (l link) remove(t *testing.T) (removed <-chan error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		out, err := exec.Command("rdma", "link", "delete", l.name).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		done <- err
	}()
	return done
}

func (l link) add(t *testing.T) {
	t.Helper()
	run(t, "rdma link add "+l.name+" type "+l.kind+" netdev "+l.netdev)
}

func TestRemovalOfADeviceEndsWhatIsOnIt(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		dev, d := f.link(t), f.doom(t)
		addr := f.addr(t)
		wild := at("::", freePort(t))
		exact := f.listen(t, addr, ListenConfig{})
		every := f.listen(t, wild, ListenConfig{})
		near, far := d.connect(t, exact, addr)

		// A request that waits, and a route that nobody has used yet.
		waiting := make(chan error, 1)
		pending, qp := f.resolve(t, netip.AddrPortFrom(f.host, wild.Port())), d.qp(t)
		go func() {
			_, err := pending.Connect(within(t), qp, ConnParam{})
			waiting <- err
		}()
		request, err := every.Accept(within(t))
		require.NoError(t, err)
		idle, idleQP, acceptQP := f.resolve(t, addr), d.qp(t), d.qp(t)

		removed := dev.remove(t)
		await(t, near.Disconnected()) // ends with the removal
		await(t, far.Disconnected())  // ends with the removal
		// The end that hears of it first says goodbye to the other.
		first := near.Err()
		if !errors.Is(first, ErrDeviceRemoved) {
			first = far.Err()
		}
		require.ErrorIs(t, first, ErrDeviceRemoved)
		require.ErrorIs(t, first, syscall.ECONNRESET)
		require.NoError(t, near.Disconnect())
		require.NoError(t, far.Disconnect())
		require.Error(t, await(t, waiting)) // ends with the removal
		_, err = request.Accept(within(t), acceptQP, ConnParam{})
		require.Error(t, err)
		_, err = idle.Connect(within(t), idleQP, ConnParam{})
		require.Error(t, err)
		d.close()
		require.NoError(t, await(t, removed)) // ends because everything is closed
		_, err = f.Resolve(within(t), addr)
		require.ErrorIs(t, err, ErrNoRoute)
		_, err = f.Listen(f.addr(t), ListenConfig{})
		require.ErrorIs(t, err, ErrNoRoute)

		dev.add(t)
		for l, to := range map[Listener]netip.AddrPort{exact: addr, every: netip.AddrPortFrom(f.host, wild.Port())} {
			f.awaitListener(t, to)
			near, far := d.connect(t, l, to)
			require.NoError(t, near.Disconnect())
			require.NoError(t, far.Disconnect())
		}
	})
}

// awaitListener waits until a listener has its ear again; until then the dial
// finds no route or nobody.
func (f *testFabric) awaitListener(t *testing.T, addr netip.AddrPort) {
	t.Helper()
	require.Eventually(t, func() bool {
		r, err := f.Resolve(within(t), addr)
		if err != nil {
			require.ErrorIs(t, err, ErrNoRoute)
			return false
		}
		r.Close()
		l, err := f.Listen(addr, ListenConfig{})
		if err == nil {
			l.Close()
			return false
		}
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		return true
	}, time.Minute, 200*time.Millisecond)
}

// TestADeviceMayGoBetweenAnyTwoSteps removes the device while connections are
// made and ended, to find the step that does not expect it.
func TestADeviceMayGoBetweenAnyTwoSteps(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		dev := f.link(t)
		addr := f.addr(t)
		l := f.listen(t, addr, ListenConfig{HandshakeTimeout: time.Second})
		for round := range 5 {
			f.awaitListener(t, addr)
			stop := make(chan struct{})
			var loops sync.WaitGroup
			loops.Go(func() {
				for f.acceptOne(t, l) {
				}
			})
			loops.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						f.dialOne(t, addr)
					}
				}
			})
			time.Sleep(time.Duration(10+7*round) * time.Millisecond)
			removed := dev.remove(t)
			require.NoError(t, await(t, removed)) // ends when no step holds the device any more
			close(stop)
			require.NoError(t, l.Close())
			loops.Wait() // ends with Close, and after one more dial
			dev.add(t)
			require.Eventually(t, func() bool {
				again, err := f.Listen(addr, ListenConfig{HandshakeTimeout: time.Second})
				if err != nil {
					require.ErrorIs(t, err, ErrNoRoute)
					return false
				}
				l = again
				return true
			}, time.Minute, 100*time.Millisecond)
		}
		require.NoError(t, l.Close())
	})
}

// dialOne makes and ends one connection, whatever comes of it.
func (f *testFabric) dialOne(t *testing.T, addr netip.AddrPort) {
	s, err := openSide(f.device)
	if err != nil {
		return
	}
	defer s.close()
	qp, err := s.newQP()
	if err != nil {
		return
	}
	defer qp.Close()
	r, err := f.Resolve(within(t), addr)
	if err != nil {
		return
	}
	if c, err := r.Connect(within(t), qp, ConnParam{}); err == nil {
		c.Disconnect()
	}
}

// acceptOne is its counterpart; it reports false when l is closed.
func (f *testFabric) acceptOne(t *testing.T, l Listener) bool {
	r, err := l.Accept(within(t))
	if err != nil {
		return false
	}
	s, err := openSide(f.device)
	if err != nil {
		r.Reject(nil)
		return true
	}
	defer s.close()
	qp, err := s.newQP()
	if err != nil {
		r.Reject(nil)
		return true
	}
	defer qp.Close()
	if c, err := r.Accept(within(t), qp, ConnParam{}); err == nil {
		select { // ends with the dialer's DREQ or the device
		case <-c.Disconnected():
		case <-time.After(patience):
			t.Error("neither the dialer nor the device ends a connection")
		}
		c.Disconnect()
	}
	return true
}
