package kerneltest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func init() { roles.Add("limited", dialLimited) }

// dialLimited dials an address over a device, or else TCP, under a limit for
// pinned memory, exchanges something, and tells over what and why.
func dialLimited(args []string) error {
	memlock, err := strconv.ParseUint(args[2], 10, 64)
	if err != nil {
		return err
	}
	if memlock > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: memlock, Max: memlock}); err != nil {
			return err
		}
	}
	d := &rnet.Dialer{Device: args[0], HeadStart: hang.Time}
	c, err := d.Dial("tcp", args[1])
	if err != nil {
		return err
	}
	defer c.Close()
	ring := 0
	if c, ok := c.(*rnet.Conn); ok {
		s, err := sessionOf(c)
		if err != nil {
			return err
		}
		ring = s.RingSize
	}
	if _, err := c.Write([]byte{traffic.Exchanging}); err != nil {
		return err
	}
	if err := traffic.Exchange(c, 1, 200<<10); err != nil {
		return err
	}
	told := rnet.Explain(args[1])
	dials := rnet.ReadStats().Dials
	if len(dials) != 1 || dials[0].Reason != told[0].Reason {
		return fmt.Errorf("statistics of one dial: %+v", dials)
	}
	fmt.Println(carriedBy(c)+",", "ring", ring>>10, "KiB,", told[0])
	return nil
}

// asGuest makes a child run as the unprivileged user of the guest.
func asGuest(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
}

// inCgroup makes an rdma cgroup with one limit, and returns what puts a child
// into it.
func inCgroup(t testing.TB, name, limit string) func(*exec.Cmd) {
	t.Helper()
	dir := filepath.Join("/sys/fs/cgroup", name)
	err := os.Mkdir(dir, 0o755)
	if err == nil {
		t.Cleanup(func() {
			// A kernel (6.1 and 6.12) that has to remove a limit after its group
			// does so when the device goes, and finds freed memory.
			device, _, _ := strings.Cut(limit, " ")
			none := device + " hca_handle=max hca_object=max"
			require.NoError(t, os.WriteFile(filepath.Join(dir, "rdma.max"), []byte(none), 0))
			hang.Eventually(t, "the group is empty", func() bool { return os.Remove(dir) == nil })
		})
	} else {
		require.ErrorIs(t, err, os.ErrExist) // with another limit
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rdma.max"), []byte(limit), 0))
	f, err := os.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd())}
	}
}

// serving starts a listener of this process on the device's host.
func (k device) serving(t testing.TB) (address string) {
	t.Helper()
	ln, err := rnet.Listen("tcp", k.anyPort())
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	go traffic.Serve(ln)
	return ln.Addr().String()
}

// dialFrom lets a child dial address over the device, or else TCP,
// and returns what it tells.
func (k device) dialFrom(t testing.TB, change func(*exec.Cmd), address string, memlock int) (said string) {
	t.Helper()
	child := roles.StartAs(t, change, "limited", k.name, address, fmt.Sprint(memlock))
	defer child.Stop()
	said = child.Line(t)
	t.Log(said)
	return said
}

// sessionObjects are the objects that a session takes of an rdma cgroup's
// hca_object: PD, CQ, QP, the ring and what is sent from; over siw one more,
// for the emulation of immediates.
var sessionObjects = map[string]int{"rxe0": 5, "siw0": 6}

// With too few objects of the control group for a session, whichever is the
// one that is missing, dials go over TCP and name the group.
func TestKernelDialUnderAnObjectLimit(t *testing.T) {
	overKernel(t, func(t *testing.T, k device) {
		address := k.serving(t)
		for objects := range sessionObjects[k.name] {
			said := k.dialFrom(t, inCgroup(t, "ramjet-objects", fmt.Sprint(k.name, " hca_object=", objects)), address, 0)
			require.Contains(t, said, "tcp, ring 0 KiB, tcp: cgroup: ")
			require.Regexp(t, `device `+k.name+`: rdma cgroup /ramjet-objects allow.* hca_object.* \(rdma.max `+fmt.Sprint(objects)+`\): raise rdma.max`, said)
		}
		enough := inCgroup(t, "ramjet-objects", fmt.Sprint(k.name, " hca_object=", sessionObjects[k.name]))
		require.Contains(t, k.dialFrom(t, enough, address, 0), "rdma "+k.name)
	})
}

func TestKernelDialUnderAHandleLimit(t *testing.T) {
	overKernel(t, func(t *testing.T, k device) {
		said := k.dialFrom(t, inCgroup(t, "ramjet-handles", k.name+" hca_handle=0"), k.serving(t), 0)
		require.Contains(t, said, "tcp, ring 0 KiB, tcp: cgroup: ")
		require.Contains(t, said, "device "+k.name+": rdma cgroup /ramjet-handles allows 0 more hca_handle (rdma.max 0): raise rdma.max")
	})
}

// A listener that can have no QP serves over TCP.
func TestKernelListenUnderAnObjectLimit(t *testing.T) {
	overKernel(t, func(t *testing.T, k device) {
		for _, limit := range []string{"hca_object=3", "hca_handle=0"} {
			child := roles.StartAs(t, inCgroup(t, "ramjet-listener", k.name+" "+limit), "serve", "auto", k.host)
			address := child.Line(t)
			d := &rnet.Dialer{Device: k.name, HeadStart: hang.Time}
			exchangeOver(t, d, address, "tcp")
			told := rnet.Explain(address)
			require.Equal(t, "peer-rejected", told[len(told)-1].Reason)
			child.Stop()
		}
	})
}

// Under RLIMIT_MEMLOCK the ring of a user without privileges shrinks, as long
// as it and the bounce buffer fit.
func TestKernelRingsShrinkToMemlock(t *testing.T) {
	overKernel(t, func(t *testing.T, k device) {
		address := k.serving(t)
		for _, tc := range []struct {
			memlock int // KiB
			ring    int // KiB, 0 if there can be none
		}{
			{32, 0}, {64, 0}, {256, 128}, {1024, 512}, {2048, 1024}, {8192, 1024},
		} {
			said := k.dialFrom(t, asGuest, address, tc.memlock<<10)
			if tc.ring > 0 {
				require.Equal(t, fmt.Sprintf("rdma %s, ring %d KiB, rdma over %s", k.name, tc.ring, k.name), said)
				continue
			}
			require.Contains(t, said, "tcp, ring 0 KiB, tcp: memlock: ")
			require.Contains(t, said, fmt.Sprintf("RLIMIT_MEMLOCK is %d KiB", tc.memlock))
			require.Contains(t, said, "ulimit -l, or LimitMEMLOCK= of systemd")
		}
	})
}

// withMode gives a file another mode for the time of the test.
func withMode(t testing.TB, path string, mode os.FileMode) {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(path, mode))
	t.Cleanup(func() { require.NoError(t, os.Chmod(path, info.Mode().Perm())) })
}

// nodeOf returns the character device of an RDMA device.
func nodeOf(t testing.TB, name string) string {
	t.Helper()
	all, err := filepath.Glob("/sys/class/infiniband_verbs/*/ibdev")
	require.NoError(t, err)
	for _, file := range all {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if strings.TrimSpace(string(text)) == name {
			return filepath.Join("/dev/infiniband", filepath.Base(filepath.Dir(file)))
		}
	}
	t.Fatal("no character device for ", name)
	return ""
}

func TestKernelDialWithoutPermission(t *testing.T) {
	overKernel(t, func(t *testing.T, k device) {
		for _, node := range []string{nodeOf(t, k.name), "/dev/infiniband/rdma_cm"} {
			t.Run(filepath.Base(node), func(t *testing.T) {
				address := k.serving(t)
				withMode(t, node, 0o600)
				said := k.dialFrom(t, asGuest, address, 0)
				require.Contains(t, said, "tcp, ring 0 KiB, tcp: permission: ")
				require.Contains(t, said, node)
			})
		}
	})
}

// A container that was given none of the devices has TCP, and dials say which
// device node is missing.
func TestKernelDialWithoutDeviceNodes(t *testing.T) {
	overKernel(t, func(t *testing.T, k device) {
		for _, path := range []string{nodeOf(t, k.name), "/dev/infiniband/rdma_cm", "/dev/infiniband"} {
			t.Run(filepath.Base(path), func(t *testing.T) {
				address := k.serving(t)
				require.NoError(t, os.Rename(path, path+".away"))
				defer func() { require.NoError(t, os.Rename(path+".away", path)) }()
				said := k.dialFrom(t, func(*exec.Cmd) {}, address, 0)
				require.Contains(t, said, "tcp, ring 0 KiB, tcp: no-device: ")
				require.Contains(t, said, path)
				require.Contains(t, said, "does not exist")
			})
		}
	})
}

func init() { roles.Add("dropper", dialAndDropPrivileges) }

// dialAndDropPrivileges dials, becomes another user, goes on with the
// connection, and dials again.
func dialAndDropPrivileges(args []string) error {
	d := &rnet.Dialer{Device: args[0], HeadStart: hang.Time, Dedicated: true}
	before, err := d.Dial("tcp", args[1])
	if err != nil {
		return err
	}
	defer before.Close()
	if _, err := before.Write([]byte{traffic.Exchanging}); err != nil {
		return err
	}
	if err := traffic.Exchange(before, 1, 100<<10); err != nil {
		return err
	}
	if err := syscall.Setgid(1000); err != nil {
		return err
	}
	if err := syscall.Setuid(1000); err != nil {
		return err
	}
	fmt.Println(carriedBy(before)+":", traffic.Exchange(before, 2, 100<<10))
	after, err := d.Dial("tcp", args[1])
	if err != nil {
		return err
	}
	defer after.Close()
	if _, err := after.Write([]byte{traffic.Exchanging}); err != nil {
		return err
	}
	fmt.Println(carriedBy(after)+":", traffic.Exchange(after, 3, 100<<10))
	told := rnet.Explain(args[1])
	fmt.Println(told[len(told)-1])
	return nil
}

// The kernel takes no new connections from a process that has become another
// user; those that it has live on.
func TestKernelProcessDropsPrivileges(t *testing.T) {
	overKernel(t, func(t *testing.T, k device) {
		child := roles.Start(t, "dropper", k.name, k.serving(t))
		require.Equal(t, "rdma "+k.name+": <nil>", child.Line(t))
		require.Equal(t, "tcp: <nil>", child.Line(t))
		said := child.Line(t)
		require.Contains(t, said, "tcp: permission: ")
		require.Contains(t, said, "the process has changed its credentials since it started")
	})
}
