package kernelcm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestResolveNamesTheDeviceOfTheRoute(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := netip.AddrPortFrom(f.Host, 9000)
		for name, fabric := range map[string]rcm.Fabric{
			"any":       New(Config{}),
			"this":      f,
			"this port": New(Config{Device: f.Device, Port: 1}),
			"from here": New(Config{Source: f.Host, TOS: 8}),
		} {
			r, err := fabric.Resolve(cmtest.Within(t), addr)
			require.NoError(t, err, name)
			require.Equal(t, f.Device, r.Device())
			require.EqualValues(t, 1, r.Port())
			require.Equal(t, f.Host, r.LocalAddr())
			require.Equal(t, addr, r.RemoteAddr())
			require.NoError(t, r.Close())
			require.NoError(t, r.Close())
		}
	})
}

// No device that the guest has has two ports.
func TestAFabricUsesItsDeviceAndPortOnly(t *testing.T) {
	first := device{"mlx5_0", 1, verbs.TransportIB}
	second := device{"mlx5_0", 2, verbs.TransportRoCE}
	other := device{"mlx5_1", 2, verbs.TransportRoCE}
	for _, c := range []struct {
		cfg  Config
		uses []device
	}{
		{Config{}, []device{first, second, other}},
		{Config{Device: "mlx5_0"}, []device{first, second}},
		{Config{Device: "mlx5_0", Port: 1}, []device{first}},
		{Config{Device: "mlx5_0", Port: 2}, []device{second}},
		{Config{Device: "mlx5_0", Port: 3}, nil},
		{Config{Port: 2}, []device{second, other}},
		{Config{Device: "mlx5_0", Port: 2, Transports: []verbs.Transport{verbs.TransportIB}}, nil},
	} {
		f := New(c.cfg).(*fabric)
		for _, d := range []device{first, second, other} {
			if err := f.uses(d); slices.Contains(c.uses, d) {
				require.NoError(t, err, "%+v, %v", c.cfg, d)
			} else {
				require.ErrorIs(t, err, rcm.ErrOtherDevice, "%+v, %v", c.cfg, d)
			}
		}
	}
}

// bareAddr returns an address of the host that no RDMA device has.
func bareAddr(t *testing.T) netip.Addr {
	t.Helper()
	addrs, err := rdmahost.Addrs()
	require.NoError(t, err)
	for _, a := range addrs {
		if _, err := deviceAt(a); err != nil && !a.IsLinkLocalUnicast() {
			return a
		}
	}
	t.Fatal("every address of this host is that of an RDMA device")
	return netip.Addr{}
}

func TestResolveSaysWhyThereIsNoRoute(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		cmtest.Run(t, "ip route add prohibit 198.51.100.0/24")
		t.Cleanup(func() { cmtest.Run(t, "ip route del prohibit 198.51.100.0/24") })
		other := verbs.TransportIWARP
		if f.IWARP {
			other = verbs.TransportRoCE
		}
		for _, c := range []struct {
			name   string
			fabric rcm.Fabric
			host   netip.Addr
			says   string
		}{
			{"no device there", New(Config{}), bareAddr(t), "no RDMA device on the interface that leads there"},
			{"loopback", New(Config{}), netip.MustParseAddr("127.0.0.1"), "loopback"},
			{"unspecified", New(Config{}), netip.MustParseAddr("::"), "loopback"},
			{"multicast", New(Config{}), netip.MustParseAddr("224.0.0.1"), "multicast"},
			{"no address", New(Config{}), netip.Addr{}, "not an address and a port"},
			{"unreachable", New(Config{}), netip.MustParseAddr("192.0.2.1"), "network is unreachable"},
			{"forbidden", New(Config{}), netip.MustParseAddr("198.51.100.1"), "a route forbids the address"},
			{"zone of nothing", New(Config{}), netip.MustParseAddr("fe80::1%none"), "none"},
			{"another transport", New(Config{Transports: []verbs.Transport{other}}), f.Host, "it is on " + f.Device},
			{"a device that is not there", New(Config{Device: "mlx5_9"}), f.Host, "no device mlx5_9"},
			{"another port", New(Config{Port: 2}), f.Host, "it is on port 1 of " + f.Device + ", not port 2"},
			{"a port that is not there", New(Config{Device: f.Device, Port: 2}), f.Host, "device " + f.Device + " has no port 2"},
		} {
			_, err := c.fabric.Resolve(cmtest.Within(t), netip.AddrPortFrom(c.host, 9000))
			require.ErrorIs(t, err, rcm.ErrNoRoute, c.name)
			require.ErrorContains(t, err, c.says, c.name)
		}
		_, err := f.Resolve(cmtest.Within(t), netip.AddrPortFrom(f.Host, 0))
		require.ErrorIs(t, err, rcm.ErrNoRoute, "port 0")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = f.Resolve(ctx, netip.AddrPortFrom(f.Host, 9000))
		require.ErrorIs(t, err, context.Canceled)
	})
}

// neighbor returns an address beside the fabric's that no host has.
func neighbor(f *cmtest.Fabric) netip.Addr {
	a := f.Host
	for range 98 {
		a = a.Next()
	}
	return a
}

func TestResolveOfASilentNeighborEndsWithItsContext(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		// A dummy interface asks nobody who has an address, unless told to.
		netdev := interfaceOf(t, f.Host)
		cmtest.Run(t, "ip link set "+netdev+" arp on")
		t.Cleanup(func() { cmtest.Run(t, "ip link set "+netdev+" arp off") })
		addr := netip.AddrPortFrom(neighbor(f), 9000)

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		_, err := f.Resolve(ctx, addr)
		require.ErrorIs(t, err, context.Canceled)

		ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err = f.Resolve(ctx, addr)
		require.ErrorIs(t, err, rcm.ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestConnectToASilentHostEndsWithItsContext(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		if f.IWARP {
			t.Skip("iWARP: closing the QP would wait for TCP, two minutes")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		// ends with the deadline
		err := <-f.DialAsync(t, ctx, netip.AddrPortFrom(neighbor(f), 9000), rcm.ConnParam{})
		require.ErrorIs(t, err, rcm.ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestWithoutDevicesThereIsNoRoute(t *testing.T) {
	if names, _ := rdmahost.Names(); len(names) > 0 {
		t.Skip("this host has RDMA devices: ", names)
	}
	addr := netip.MustParseAddrPort("192.0.2.1:9000")
	_, err := New(Config{}).Resolve(cmtest.Within(t), addr)
	require.ErrorIs(t, err, rcm.ErrNoRoute)
	_, err = New(Config{}).Listen(addr, rcm.ListenConfig{})
	require.ErrorIs(t, err, rcm.ErrNoRoute)
	require.ErrorContains(t, err, "no RDMA device")
}

// resolve says what became of a Resolve over a device.
func resolve(args []string) error {
	r, err := on(args[0]).Resolve(context.Background(), netip.MustParseAddrPort(args[1]))
	if err == nil {
		err = r.Close()
	}
	fmt.Println("ready")
	switch {
	case err == nil:
		fmt.Println("resolved")
	case errors.Is(err, rcm.ErrNoRoute) && errors.Is(err, unix.EACCES):
		fmt.Println("not permitted")
	case errors.Is(err, rcm.ErrNoRoute) && errors.Is(err, unix.ENOENT):
		fmt.Println("not there")
	default:
		return err
	}
	return nil
}

func TestAUserNeedsAccessToTheDeviceNode(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := netip.AddrPortFrom(f.Host, 9000).String()
		cmtest.StartChild(t, 1000, "resolve", f.Device, addr).Expect(t, "resolved")
		require.NoError(t, os.Chmod(ucmPath, 0o600))
		t.Cleanup(func() { require.NoError(t, os.Chmod(ucmPath, 0o666)) })
		cmtest.StartChild(t, 1000, "resolve", f.Device, addr).Expect(t, "not permitted")
	})
}

func TestWithoutADeviceNodeThereIsNoRoute(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		const elsewhere = ucmPath + ".away"
		require.NoError(t, os.Rename(ucmPath, elsewhere))
		t.Cleanup(func() { require.NoError(t, os.Rename(elsewhere, ucmPath)) })
		cmtest.StartChild(t, 0, "resolve", f.Device, netip.AddrPortFrom(f.Host, 9000).String()).Expect(t, "not there")
	})
}

// dropPrivileges listens as root, becomes another user, and says what that
// means for RDMA.
func dropPrivileges(args []string) error {
	// Each thread has credentials of its own after Setuid. What this one opens, the
	// reader's cannot use.
	runtime.LockOSThread()
	f, addr := on(args[0]), netip.MustParseAddrPort(args[1])
	l, err := f.Listen(addr, rcm.ListenConfig{})
	if err != nil {
		return err
	}
	defer l.Close()
	if err := syscall.Setuid(1000); err != nil {
		return err
	}
	for range 100 { // whether it is the command or the reader that is denied first is chance
		_, err := f.Resolve(context.Background(), addr)
		if !errors.Is(err, unix.EACCES) || !strings.Contains(err.Error(), "changed its credentials") {
			return fmt.Errorf("resolve: %w", err)
		}
	}
	fmt.Println("ready")
	_, err = l.Accept(context.Background())
	if !errors.Is(err, unix.EACCES) {
		return fmt.Errorf("accept: %w", err)
	}
	fmt.Println("failed")
	return nil
}

func TestAProcessThatChangesItsUserIsToldSo(t *testing.T) {
	overDevices(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		c := cmtest.StartChild(t, 0, "dropPrivileges", f.Device, addr.String())
		// ends when the child's descriptor is closed
		err := <-f.DialAsync(t, cmtest.Within(t), addr, rcm.ConnParam{})
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		c.Expect(t, "failed")
	})
}
