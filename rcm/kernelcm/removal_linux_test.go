package kernelcm

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/stretchr/testify/require"
)

// removedSides are sides and QPs on a device that is going to be removed. They have
// to be closed for the removal to come to an end.
type removedSides struct {
	f     *cmtest.Fabric
	sides []*cmtest.Side
	qps   []*verbs.QP
}

func newRemovedSides(f *cmtest.Fabric, t *testing.T) *removedSides {
	d := &removedSides{f: f}
	t.Cleanup(d.close)
	return d
}

func (d *removedSides) qp(t *testing.T) *verbs.QP {
	t.Helper()
	s, err := cmtest.OpenSide(d.f.Device)
	require.NoError(t, err)
	d.sides = append(d.sides, s)
	qp, err := s.NewQP()
	require.NoError(t, err)
	d.qps = append(d.qps, qp)
	return qp
}

// close closes them; what that returns after a removal is the provider's
// business.
func (d *removedSides) close() {
	for i := range d.qps {
		d.qps[i].Close()
		d.sides[i].Close()
	}
	d.qps, d.sides = nil, nil
}

// connect makes a connection over l and returns both ends of it.
func (d *removedSides) connect(t *testing.T, l rcm.Listener, addr netip.AddrPort) (near, far rcm.Conn) {
	t.Helper()
	dialed := make(chan rcm.Conn, 1)
	r, qp := d.f.MustResolve(t, addr), d.qp(t)
	go func() {
		c, err := r.Connect(cmtest.Within(t), qp, rcm.ConnParam{})
		if err != nil {
			t.Error(err)
		}
		dialed <- c
	}()
	request, err := l.Accept(cmtest.Within(t))
	require.NoError(t, err)
	far, err = request.Accept(cmtest.Within(t), d.qp(t), rcm.ConnParam{})
	require.NoError(t, err)
	near = cmtest.Await(t, dialed) // ends with the handshake
	require.NotNil(t, near)
	return near, far
}

// link deletes and adds the device as an administrator does.
type link struct {
	name, kind, netdev string
}

func linkUnder(f *cmtest.Fabric, t *testing.T) link {
	kind := "rxe"
	if f.IWARP {
		kind = "siw"
	}
	l := link{f.Device, kind, interfaceOf(t, f.Host)}
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
	cmtest.Run(t, "rdma link add "+l.name+" type "+l.kind+" netdev "+l.netdev)
}

func TestRemovalOfADeviceEndsWhatIsOnIt(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		dev, d := linkUnder(f, t), newRemovedSides(f, t)
		addr := f.Addr(t)
		wild := cmtest.At("::", cmtest.FreePort(t))
		exact := f.MustListen(t, addr, rcm.ListenConfig{})
		every := f.MustListen(t, wild, rcm.ListenConfig{})
		near, far := d.connect(t, exact, addr)

		// A request that waits, and a route that nobody has used yet.
		waiting := make(chan error, 1)
		pending, qp := f.MustResolve(t, netip.AddrPortFrom(f.Host, wild.Port())), d.qp(t)
		go func() {
			_, err := pending.Connect(cmtest.Within(t), qp, rcm.ConnParam{})
			waiting <- err
		}()
		request, err := every.Accept(cmtest.Within(t))
		require.NoError(t, err)
		idle, idleQP, acceptQP := f.MustResolve(t, addr), d.qp(t), d.qp(t)

		removed := dev.remove(t)
		cmtest.Await(t, near.Disconnected()) // ends with the removal
		cmtest.Await(t, far.Disconnected())  // ends with the removal
		// The end that is told first disconnects the other.
		first := near.Err()
		if !errors.Is(first, rcm.ErrDeviceRemoved) {
			first = far.Err()
		}
		require.ErrorIs(t, first, rcm.ErrDeviceRemoved)
		require.ErrorIs(t, first, syscall.ECONNRESET)
		require.NoError(t, near.Disconnect())
		require.NoError(t, far.Disconnect())
		require.Error(t, cmtest.Await(t, waiting)) // ends with the removal
		// The kernel may come to the id of the request only now.
		if c, err := request.Accept(cmtest.Within(t), acceptQP, rcm.ConnParam{}); err == nil {
			cmtest.Await(t, c.Disconnected()) // ends with the removal
			require.NoError(t, c.Disconnect())
		}
		_, err = idle.Connect(cmtest.Within(t), idleQP, rcm.ConnParam{})
		require.Error(t, err)
		d.close()
		require.NoError(t, cmtest.Await(t, removed)) // ends because everything is closed
		_, err = f.Resolve(cmtest.Within(t), addr)
		require.ErrorIs(t, err, rcm.ErrNoRoute)
		_, err = f.Listen(f.Addr(t), rcm.ListenConfig{})
		require.ErrorIs(t, err, rcm.ErrNoRoute)

		dev.add(t)
		for l, to := range map[rcm.Listener]netip.AddrPort{exact: addr, every: netip.AddrPortFrom(f.Host, wild.Port())} {
			awaitListener(t, to)
			near, far := d.connect(t, l, to)
			require.NoError(t, near.Disconnect())
			require.NoError(t, far.Disconnect())
		}
	})
}

// The removal of a device lasts until nobody has it open. By then a listener no longer looks
// for it, and at the next look a new device may have the name.
func TestAListenerUsesADeviceMadeAnewBetweenTwoLooks(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		dev, d := linkUnder(f, t), newRemovedSides(f, t)
		addr := f.Addr(t)
		l := f.MustListen(t, addr, rcm.ListenConfig{}).(*listener)
		d.qp(t)
		removed := dev.remove(t)
		require.Eventually(t, func() bool { // ends when the listener knows
			l.opening.Lock()
			defer l.opening.Unlock()
			return len(l.ids) == 0
		}, time.Minute, 10*time.Millisecond)
		for range settle + 1 { // in place of waiting for the timer's
			host, addrs, err := hostState()
			require.NoError(t, err)
			l.rescan(host, addrs)
		}
		func() {
			l.opening.Lock() // the next look comes later
			defer l.opening.Unlock()
			require.Zero(t, l.again)
			d.close()
			require.NoError(t, cmtest.Await(t, removed)) // ends because everything is closed
			dev.add(t)
		}()
		awaitListener(t, addr)
		near, far := d.connect(t, l, addr)
		require.NoError(t, near.Disconnect())
		require.NoError(t, far.Disconnect())
	})
}

// awaitListener waits until a listener listens there again. A second one would find the
// address taken before that, on iWARP by what is left of connections.
func awaitListener(t *testing.T, addr netip.AddrPort) {
	t.Helper()
	source := fmt.Sprintf(" src-addr %v:%d ", addr.Addr(), addr.Port())
	require.Eventually(t, func() bool {
		out, err := exec.Command("rdma", "resource", "show", "cm_id").CombinedOutput()
		require.NoError(t, err, string(out))
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, " state LISTEN ") && strings.Contains(line, source) {
				return true
			}
		}
		return false
	}, time.Minute, 200*time.Millisecond)
}

// TestADeviceMayGoBetweenAnyTwoSteps removes the device while connections are
// made and ended, to find the step that does not expect it.
func TestADeviceMayGoBetweenAnyTwoSteps(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		dev := linkUnder(f, t)
		addr := f.Addr(t)
		l := f.MustListen(t, addr, rcm.ListenConfig{HandshakeTimeout: time.Second})
		for round := range 5 {
			awaitListener(t, addr)
			stop := make(chan struct{})
			var loops sync.WaitGroup
			loops.Go(func() {
				for acceptOne(f, t, l) {
				}
			})
			loops.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						dialOne(f, t, addr)
					}
				}
			})
			time.Sleep(time.Duration(10+7*round) * time.Millisecond)
			removed := dev.remove(t)
			// ends when no step holds the device any more
			require.NoError(t, cmtest.Await(t, removed))
			close(stop)
			require.NoError(t, l.Close())
			loops.Wait() // ends with Close, and after one more dial
			dev.add(t)
			require.Eventually(t, func() bool {
				again, err := f.Listen(addr, rcm.ListenConfig{HandshakeTimeout: time.Second})
				if err != nil {
					require.ErrorIs(t, err, rcm.ErrNoRoute)
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
func dialOne(f *cmtest.Fabric, t *testing.T, addr netip.AddrPort) {
	s, err := cmtest.OpenSide(f.Device)
	if err != nil {
		return
	}
	defer s.Close()
	qp, err := s.NewQP()
	if err != nil {
		return
	}
	defer qp.Close()
	r, err := f.Resolve(cmtest.Within(t), addr)
	if err != nil {
		return
	}
	if c, err := r.Connect(cmtest.Within(t), qp, rcm.ConnParam{}); err == nil {
		c.Disconnect()
	}
}

// acceptOne is its counterpart; it reports false when l is closed.
func acceptOne(f *cmtest.Fabric, t *testing.T, l rcm.Listener) bool {
	r, err := l.Accept(cmtest.Within(t))
	if err != nil {
		return false
	}
	s, err := cmtest.OpenSide(f.Device)
	if err != nil {
		r.Reject(nil)
		return true
	}
	defer s.Close()
	qp, err := s.NewQP()
	if err != nil {
		r.Reject(nil)
		return true
	}
	defer qp.Close()
	if c, err := r.Accept(cmtest.Within(t), qp, rcm.ConnParam{}); err == nil {
		select { // ends with the dialer's DREQ or the device
		case <-c.Disconnected():
		case <-time.After(cmtest.Timeout):
			t.Error("neither the dialer nor the device ends a connection")
		}
		c.Disconnect()
	}
	return true
}
