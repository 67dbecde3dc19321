package rcm

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

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestResolveNamesTheDeviceOfTheRoute(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		addr := netip.AddrPortFrom(f.host, 9000)
		for name, fabric := range map[string]Fabric{
			"any":       Kernel(),
			"this":      f,
			"this port": KernelWith(KernelConfig{Device: f.device, Port: 1}),
			"from here": KernelWith(KernelConfig{Source: f.host, TOS: 8}),
		} {
			r, err := fabric.Resolve(within(t), addr)
			require.NoError(t, err, name)
			require.Equal(t, f.device, r.Device())
			require.EqualValues(t, 1, r.Port())
			require.Equal(t, f.host, r.LocalAddr())
			require.Equal(t, addr, r.RemoteAddr())
			require.NoError(t, r.Close())
			require.NoError(t, r.Close())
		}
	})
}

// No device that the guest has has two ports.
func TestAFabricUsesItsDeviceAndPortOnly(t *testing.T) {
	first := kernelDevice{"mlx5_0", 1, verbs.TransportIB}
	second := kernelDevice{"mlx5_0", 2, verbs.TransportRoCE}
	other := kernelDevice{"mlx5_1", 2, verbs.TransportRoCE}
	for _, c := range []struct {
		cfg  KernelConfig
		uses []kernelDevice
	}{
		{KernelConfig{}, []kernelDevice{first, second, other}},
		{KernelConfig{Device: "mlx5_0"}, []kernelDevice{first, second}},
		{KernelConfig{Device: "mlx5_0", Port: 1}, []kernelDevice{first}},
		{KernelConfig{Device: "mlx5_0", Port: 2}, []kernelDevice{second}},
		{KernelConfig{Device: "mlx5_0", Port: 3}, nil},
		{KernelConfig{Port: 2}, []kernelDevice{second, other}},
		{KernelConfig{Device: "mlx5_0", Port: 2, Transports: []verbs.Transport{verbs.TransportIB}}, nil},
	} {
		f := KernelWith(c.cfg).(*kernelFabric)
		for _, d := range []kernelDevice{first, second, other} {
			if err := f.uses(d); slices.Contains(c.uses, d) {
				require.NoError(t, err, "%+v, %v", c.cfg, d)
			} else {
				require.ErrorIs(t, err, ErrOtherDevice, "%+v, %v", c.cfg, d)
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
	overDevices(t, func(t *testing.T, f *testFabric) {
		run(t, "ip route add prohibit 198.51.100.0/24")
		t.Cleanup(func() { run(t, "ip route del prohibit 198.51.100.0/24") })
		other := verbs.TransportIWARP
		if f.iwarp {
			other = verbs.TransportRoCE
		}
		for _, c := range []struct {
			name   string
			fabric Fabric
			host   netip.Addr
			says   string
		}{
			{"no device there", Kernel(), bareAddr(t), "no RDMA device on the interface that leads there"},
			{"loopback", Kernel(), netip.MustParseAddr("127.0.0.1"), "loopback"},
			{"unspecified", Kernel(), netip.MustParseAddr("::"), "loopback"},
			{"multicast", Kernel(), netip.MustParseAddr("224.0.0.1"), "multicast"},
			{"no address", Kernel(), netip.Addr{}, "not an address and a port"},
			{"unreachable", Kernel(), netip.MustParseAddr("192.0.2.1"), "network is unreachable"},
			{"forbidden", Kernel(), netip.MustParseAddr("198.51.100.1"), "a route forbids the address"},
			{"zone of nothing", Kernel(), netip.MustParseAddr("fe80::1%none"), "none"},
			{"another transport", KernelWith(KernelConfig{Transports: []verbs.Transport{other}}), f.host, "it is on " + f.device},
			{"a device that is not there", KernelOn("mlx5_9"), f.host, "no device mlx5_9"},
			{"another port", KernelWith(KernelConfig{Port: 2}), f.host, "it is on port 1 of " + f.device + ", not port 2"},
			{"a port that is not there", KernelWith(KernelConfig{Device: f.device, Port: 2}), f.host, "device " + f.device + " has no port 2"},
		} {
			_, err := c.fabric.Resolve(within(t), netip.AddrPortFrom(c.host, 9000))
			require.ErrorIs(t, err, ErrNoRoute, c.name)
			require.ErrorContains(t, err, c.says, c.name)
		}
		_, err := f.Resolve(within(t), netip.AddrPortFrom(f.host, 0))
		require.ErrorIs(t, err, ErrNoRoute, "port 0")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = f.Resolve(ctx, netip.AddrPortFrom(f.host, 9000))
		require.ErrorIs(t, err, context.Canceled)
	})
}

// neighbor returns an address beside the fabric's that no host has.
func (f *testFabric) neighbor() netip.Addr {
	a := f.host
	for range 98 {
		a = a.Next()
	}
	return a
}

func TestResolveOfASilentNeighborEndsWithItsContext(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		// A dummy interface asks nobody who has an address, unless told to.
		netdev := interfaceOf(t, f.host)
		run(t, "ip link set "+netdev+" arp on")
		t.Cleanup(func() { run(t, "ip link set "+netdev+" arp off") })
		addr := netip.AddrPortFrom(f.neighbor(), 9000)

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		_, err := f.Resolve(ctx, addr)
		require.ErrorIs(t, err, context.Canceled)

		ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err = f.Resolve(ctx, addr)
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestConnectToASilentHostEndsWithItsContext(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		if f.iwarp {
			t.Skip("iWARP: closing the QP would wait for TCP, two minutes")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err := <-f.dialAsync(t, ctx, netip.AddrPortFrom(f.neighbor(), 9000), ConnParam{}) // ends with the deadline
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestWithoutDevicesThereIsNoRoute(t *testing.T) {
	if names, _ := rdmahost.Names(); len(names) > 0 {
		t.Skip("this host has RDMA devices: ", names)
	}
	addr := netip.MustParseAddrPort("192.0.2.1:9000")
	_, err := Kernel().Resolve(within(t), addr)
	require.ErrorIs(t, err, ErrNoRoute)
	_, err = Kernel().Listen(addr, ListenConfig{})
	require.ErrorIs(t, err, ErrNoRoute)
	require.ErrorContains(t, err, "no RDMA device")
}

// resolve says what became of a Resolve over a device.
func resolve(args []string) error {
	r, err := fabricOn(args[0]).Resolve(context.Background(), netip.MustParseAddrPort(args[1]))
	if err == nil {
		err = r.Close()
	}
	fmt.Println("ready")
	switch {
	case err == nil:
		fmt.Println("resolved")
	case errors.Is(err, ErrNoRoute) && errors.Is(err, unix.EACCES):
		fmt.Println("not permitted")
	case errors.Is(err, ErrNoRoute) && errors.Is(err, unix.ENOENT):
		fmt.Println("not there")
	default:
		return err
	}
	return nil
}

func TestAUserNeedsAccessToTheDeviceNode(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		addr := netip.AddrPortFrom(f.host, 9000).String()
		startChild(t, 1000, "resolve", f.device, addr).expect(t, "resolved")
		require.NoError(t, os.Chmod(ucmPath, 0o600))
		t.Cleanup(func() { require.NoError(t, os.Chmod(ucmPath, 0o666)) })
		startChild(t, 1000, "resolve", f.device, addr).expect(t, "not permitted")
	})
}

func TestWithoutADeviceNodeThereIsNoRoute(t *testing.T) {
	overDevices(t, func(t *testing.T, f *testFabric) {
		const elsewhere = ucmPath + ".away"
		require.NoError(t, os.Rename(ucmPath, elsewhere))
		t.Cleanup(func() { require.NoError(t, os.Rename(elsewhere, ucmPath)) })
		startChild(t, 0, "resolve", f.device, netip.AddrPortFrom(f.host, 9000).String()).expect(t, "not there")
	})
}

// dropPrivileges listens as root, becomes another user, and says what that
// means for RDMA.
func dropPrivileges(args []string) error {
	// Each thread has credentials of its own after Setuid. What this one opens, the
	// reader's cannot use.
	runtime.LockOSThread()
	f, addr := fabricOn(args[0]), netip.MustParseAddrPort(args[1])
	l, err := f.Listen(addr, ListenConfig{})
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
	overDevices(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		c := startChild(t, 0, "dropPrivileges", f.device, addr.String())
		err := <-f.dialAsync(t, within(t), addr, ConnParam{}) // ends when the child's descriptor is closed
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		c.expect(t, "failed")
	})
}
