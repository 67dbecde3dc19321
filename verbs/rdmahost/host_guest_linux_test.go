package rdmahost

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// devicesVar names the devices that tests must find, "rxe0,siw0".
const devicesVar = "RAMJET_DEVICES"

// demanded returns the devices that must be there, and skips the test where
// none are.
func demanded(t testing.TB) []string {
	t.Helper()
	list := os.Getenv(devicesVar)
	if list == "" {
		t.Skip("needs RDMA devices: go build -o /tmp/guest ./verbs/guest && go test -exec /tmp/guest ./verbs/rdmahost")
	}
	return strings.Split(list, ",")
}

// entryOf finds a demanded device of a driver, and skips the test if none of
// that driver is demanded.
func entryOf(t testing.TB, driver string) Device {
	t.Helper()
	want := demanded(t)
	list, err := Devices()
	require.NoError(t, err)
	for _, d := range list {
		if d.Driver == driver && slices.Contains(want, d.Name) {
			return d
		}
	}
	for _, name := range want {
		require.False(t, strings.HasPrefix(name, driver), "%s is demanded by %s, found are %+v", name, devicesVar, list)
	}
	t.Skipf("no %s device among %s=%s", driver, devicesVar, strings.Join(want, ","))
	return Device{}
}

func TestDemandedDevicesAreDiscovered(t *testing.T) {
	list, err := Devices()
	require.NoError(t, err)
	for _, name := range demanded(t) {
		i := slices.IndexFunc(list, func(d Device) bool { return d.Name == name })
		require.GreaterOrEqual(t, i, 0, "%s among %+v", name, list)
		d := list[i]
		require.NotEmpty(t, d.Node)
		require.NotZero(t, d.Major)
		require.NotZero(t, d.NodeGUID)
		require.NotZero(t, d.ABI)
		require.Equal(t, 1, d.Ports)
		require.GreaterOrEqual(t, d.Index, 0)
		fd, err := d.Open()
		require.NoError(t, err)
		require.NoError(t, unix.Close(fd))
	}
}

func TestSysfsAndNetlinkAgree(t *testing.T) {
	demanded(t)
	byNetlink, err := netlinkDevices()
	require.NoError(t, err)
	bySysfs, err := thisHost.devices()
	require.NoError(t, err)
	require.Len(t, bySysfs, len(byNetlink))
	for i := range bySysfs {
		thisHost.complete(&bySysfs[i])
		bySysfs[i].Index = -1
	}
	for _, d := range byNetlink {
		thisHost.complete(&d)
		d.Index = -1
		require.Contains(t, bySysfs, d)
	}
}

func TestDeviceOfADriverHasItsTransport(t *testing.T) {
	d := entryOf(t, "rxe")
	require.Equal(t, DriverRXE, d.DriverID)
	require.Equal(t, verbs.TransportRoCE, d.Transport)
	d = entryOf(t, "siw")
	require.Equal(t, DriverSIW, d.DriverID)
	require.Equal(t, verbs.TransportIWARP, d.Transport)
}

func TestGIDOfAnAddressIsFoundOnRxe(t *testing.T) {
	d := entryOf(t, "rxe")
	table, err := GIDs(d.Name, 1)
	require.NoError(t, err)
	netdev := thisHost.netdev(d.Name, 1)
	ifi, err := net.InterfaceByName(netdev)
	require.NoError(t, err)
	addrs, err := ifi.Addrs()
	require.NoError(t, err)
	require.NotEmpty(t, addrs)
	for _, a := range addrs {
		ip := netip.MustParsePrefix(a.String()).Addr()
		e, ok := PreferredGID(table, ip)
		require.True(t, ok)
		require.Equal(t, ip, netip.AddrFrom16(e.GID).Unmap())
		require.Equal(t, verbs.GIDTypeRoCEv2, e.Type)
		require.Equal(t, netdev, e.Netdev)
		require.Equal(t, ifi.Index, e.Ifindex)
	}
	e, ok := PreferredGID(table, netip.Addr{})
	require.True(t, ok)
	require.True(t, netip.AddrFrom16(e.GID).Is4In6(), "%v", e)
}

func TestCountersOfDemandedDevicesNameTheirSource(t *testing.T) {
	for _, name := range demanded(t) {
		c, err := ReadCounters(name, 1)
		require.NoError(t, err)
		require.NotEmpty(t, c.Netdev, name)
		require.Equal(t, "netdev "+c.Netdev, c.Traffic.BytesFrom)
		require.NotEmpty(t, c.Traffic.PacketsFrom)
	}
	c, err := ReadCounters(entryOf(t, "rxe").Name, 1)
	require.NoError(t, err)
	require.NotEmpty(t, c.Driver)
	require.Equal(t, "hw_counters", c.Traffic.PacketsFrom)
	_, counted := RNRs(c.Device)
	require.True(t, counted, "the kernel has the counter that we know")
}

func TestLimitsOfTheGuest(t *testing.T) {
	want := demanded(t)
	l, err := ReadLimits()
	require.NoError(t, err)
	require.Empty(t, l.MissingModules)
	for _, name := range want {
		n, ok := l.node(name)
		require.True(t, ok)
		require.NoError(t, n.Err)
	}
	_, ok := l.node("")
	require.True(t, ok, "rdma_cm")
}

// childVar makes a test binary run one test as the child of another.
const childVar = "RAMJET_LIMITS_CHILD"

// asChild runs the calling test again in a process of its own, which sees
// childVar set, and returns what it printed.
func asChild(t *testing.T, how *syscall.SysProcAttr) string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), childVar+"=1")
	cmd.SysProcAttr = how
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

func TestForeignUserIsToldWhichPermissionIsMissing(t *testing.T) {
	d := entryOf(t, "rxe")
	node := "/dev/infiniband/" + d.Node
	if os.Getenv(childVar) != "" {
		_, err := d.Open()
		require.ErrorIs(t, err, unix.EACCES)
		t.Log(Explain(Failure{Op: "open", Device: d.Name, Err: err}))
		return
	}
	st, err := os.Stat(node)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(node, 0o600))
	t.Cleanup(func() { require.NoError(t, os.Chmod(node, st.Mode().Perm())) })
	out := asChild(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}})
	require.Contains(t, out, "no permission to open "+node+" (mode 0600 root root): a udev rule or group")
}

func TestProcessInACgroupIsToldWhichGroupIsFull(t *testing.T) {
	d := entryOf(t, "rxe")
	if os.Getenv(childVar) != "" {
		fd, err := d.Open()
		require.NoError(t, err)
		defer unix.Close(fd)
		t.Log(Explain(Failure{Op: "open", Device: d.Name, Err: unix.EAGAIN}))
		t.Log(Explain(Failure{Op: "create QP", Device: d.Name, Err: unix.EAGAIN}))
		return
	}
	outer := filepath.Join("/sys/fs/cgroup", "ramjet-limits")
	inner := filepath.Join(outer, "inner")
	require.NoError(t, os.Mkdir(outer, 0o755))
	t.Cleanup(func() { require.NoError(t, os.Remove(outer)) })
	require.NoError(t, os.WriteFile(filepath.Join(outer, "cgroup.subtree_control"), []byte("+rdma"), 0))
	require.NoError(t, os.Mkdir(inner, 0o755))
	t.Cleanup(func() { require.NoError(t, os.Remove(inner)) })
	require.NoError(t, os.WriteFile(filepath.Join(outer, "rdma.max"), []byte(d.Name+" hca_handle=0 hca_object=100"), 0))
	require.NoError(t, os.WriteFile(filepath.Join(inner, "rdma.max"), []byte(d.Name+" hca_object=2"), 0))
	group, err := os.Open(inner)
	require.NoError(t, err)
	defer group.Close()
	out := asChild(t, &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())})
	require.Contains(t, out, "device "+d.Name+": rdma cgroup /ramjet-limits allows 0 more hca_handle (rdma.max 0): raise rdma.max")
	require.Contains(t, out, "device "+d.Name+": rdma cgroup /ramjet-limits/inner allowed no more hca_object, and 2 more by now (rdma.max 2): raise rdma.max")
}
