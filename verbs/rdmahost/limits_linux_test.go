package rdmahost

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

const (
	mountsV2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
	mountsV1 = "40 31 0:38 / /sys/fs/cgroup/pids,rdma rw - cgroup cgroup rw,pids,rdma\n" +
		"41 31 0:39 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
)

func TestCgroupsAreFoundFromTheOwnGroupUp(t *testing.T) {
	for _, c := range []struct {
		name               string
		membership, mounts string
		want               []cgroup
	}{
		{"version 2", "0::/a/b\n", mountsV2, []cgroup{
			{"/a/b", "sys/fs/cgroup/a/b"}, {"/a", "sys/fs/cgroup/a"}, {"/", "sys/fs/cgroup"},
		}},
		{"version 1", "5:cpu:/x\n4:pids,rdma:/a\n0::/\n", mountsV1, []cgroup{
			{"/a", "sys/fs/cgroup/pids,rdma/a"}, {"/", "sys/fs/cgroup/pids,rdma"},
		}},
		{"both", "4:rdma:/a\n0::/b\n", mountsV1 + mountsV2, []cgroup{
			{"/a", "sys/fs/cgroup/pids,rdma/a"}, {"/", "sys/fs/cgroup/pids,rdma"},
			{"/b", "sys/fs/cgroup/b"}, {"/", "sys/fs/cgroup"},
		}},
		{"a container that sees only its own part", "0::/docker/1/in\n",
			"30 23 0:26 /docker/1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
			[]cgroup{{"/docker/1/in", "sys/fs/cgroup/in"}, {"/docker/1", "sys/fs/cgroup"}}},
		{"a group outside what is mounted", "0::/docker/12\n",
			"30 23 0:26 /docker/1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
			[]cgroup{{"/docker/1", "sys/fs/cgroup"}}},
		{"a group outside the namespace", "0::/../x\n", mountsV2, []cgroup{
			{"/x", "sys/fs/cgroup/x"}, {"/", "sys/fs/cgroup"},
		}},
		{"blanks in the mount point", "0::/a:b\n", "30 23 0:26 / /my\\040cg\\134x rw - cgroup2 cgroup2 rw\n", []cgroup{
			{"/a:b", `my cg\x/a:b`}, {"/", `my cg\x`},
		}},
		{"not mounted", "0::/a\n", "", nil},
		{"malformed", "0:\nx\n0::a\n", "1 2\n- \n", nil},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, cgroupsOf(c.membership, c.mounts)) })
	}
}

func cgroupHost() machine {
	return machine{
		"proc/self/cgroup":               "0::/a/b",
		"proc/self/mountinfo":            mountsV2,
		"sys/fs/cgroup/a/rdma.max":       "rxe0 hca_handle=max hca_object=2 \nsiw0 hca_handle=max hca_object=max ",
		"sys/fs/cgroup/a/rdma.current":   "rxe0 hca_handle=1 hca_object=2 \nsiw0 hca_handle=0 hca_object=0 ",
		"sys/fs/cgroup/a/b/rdma.max":     "rxe0 hca_handle=3 hca_object=100 ",
		"sys/fs/cgroup/a/b/rdma.current": "rxe0 hca_handle=1 hca_object=2 ",
	}
}

func TestTightestCgroupCounts(t *testing.T) {
	list, err := cgroupHost().host().cgroupLimits()
	require.NoError(t, err)
	require.Equal(t, []CgroupLimit{
		{Group: "/a/b", Device: "rxe0", Handles: Quota{3, 1}, Objects: Quota{100, 2}},
		{Group: "/a", Device: "rxe0", Handles: Quota{NoLimit, 1}, Objects: Quota{2, 2}},
		{Group: "/a", Device: "siw0", Handles: Quota{NoLimit, 0}, Objects: Quota{NoLimit, 0}},
	}, list)
	l := Limits{Cgroups: list}
	c, ok := l.Tightest("rxe0", false)
	require.True(t, ok)
	require.Equal(t, "/a", c.Group)
	c, ok = l.Tightest("rxe0", true)
	require.True(t, ok)
	require.Equal(t, "/a/b", c.Group)
	_, ok = l.Tightest("siw0", false)
	require.False(t, ok)
}

func TestHostWithoutCgroupsHasNoLimits(t *testing.T) {
	list, err := machine{}.host().cgroupLimits()
	require.NoError(t, err)
	require.Empty(t, list)
}

func TestStatusTellsPinnedMemoryAndPrivilege(t *testing.T) {
	m := parseStatus("Name:\tx\nVmLck:\t       8 kB\nVmPin:\t    2048 kB\nCapEff:\t0000000000004000\n")
	require.Equal(t, Memlock{Pinned: 2 << 20, Locked: 8 << 10, Exempt: true}, m)
	require.Equal(t, Memlock{}, parseStatus("VmPin\nVmLck: x kB\nCapEff: zz\n"))

	status := "VmPin:\t0 kB\nCapEff:\t0000000000004000"
	for users, exempt := range map[string]bool{
		"         0          0 4294967295": true,
		"         0       1000          1": false, // root of a user namespace
		"":                                 false,
	} {
		m, err := machine{"proc/self/status": status, "proc/self/uid_map": users}.host().memlock()
		require.NoError(t, err)
		require.Equal(t, exempt, m.Exempt, "%q", users)
		require.NotZero(t, m.Hard)
	}
	_, err := machine{}.host().memlock()
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestMissingModulesAreNamedFromTheBottomUp(t *testing.T) {
	require.Equal(t, []string{"ib_core", "ib_uverbs", "rdma_ucm"}, machine{}.host().missingModules())
	h := rxeHost().with("sys/class/misc/rdma_cm", machine{"dev": "10:122"})
	require.Empty(t, h.host().missingModules())
}

func TestNodesShowWhoMayOpenThem(t *testing.T) {
	files := rxeHost().with("sys/class/misc/rdma_cm", machine{"dev": "10:122"}).with("etc", machine{
		"passwd": "root:x:0:0:root:/root:/bin/sh\nbroken\nann:x:1000:1000::/:/bin/sh",
		"group":  "root:x:0:\nrdma:x:109:",
	}).host().FS.(fstest.MapFS)
	files["dev/infiniband/uverbs0"] = &fstest.MapFile{
		Mode: fs.ModeDevice | fs.ModeCharDevice | 0o660, Sys: &syscall.Stat_t{Uid: 1000, Gid: 109},
	}
	nodes := host{files}.nodes(func(path string) error {
		require.Equal(t, "/dev/infiniband/uverbs0", path)
		return &fs.PathError{Op: "open", Path: path, Err: syscall.EACCES}
	})
	require.Len(t, nodes, 2)
	n := nodes[0]
	require.ErrorIs(t, n.Err, fs.ErrPermission)
	n.Err = nil
	require.Equal(t, Node{
		Path: "/dev/infiniband/uverbs0", Device: "rxe0", Driver: "rxe",
		Mode: fs.ModeDevice | fs.ModeCharDevice | 0o660, Owner: "ann", Group: "rdma",
	}, n)
	require.Equal(t, "/dev/infiniband/rdma_cm", nodes[1].Path)
	require.ErrorIs(t, nodes[1].Err, fs.ErrNotExist)
	require.Equal(t, "4711", host{files}.account("etc/passwd", 4711))
}

func TestAccessIsAskedForReadingAndWriting(t *testing.T) {
	require.NoError(t, mayOpen("/dev/null"))
	require.ErrorIs(t, mayOpen("/proc/nothing"), fs.ErrNotExist)
}

func TestReadLimitsOfThisProcess(t *testing.T) {
	l, err := ReadLimits()
	require.NoError(t, err)
	var want unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &want))
	require.Equal(t, want.Cur, l.OpenFiles)
	require.NotZero(t, l.Memlock.Hard)
}

// limited is a host on which everything is limited.
func limited() *Limits {
	return &Limits{
		Memlock:   Memlock{Soft: 64 << 10, Hard: 64 << 10},
		OpenFiles: 1024,
		Cgroups: []CgroupLimit{
			{Group: "/a/b", Device: "rxe0", Handles: Quota{1, 1}, Objects: Quota{2, 2}},
			{Group: "/a/b", Device: "siw0", Handles: Quota{NoLimit, 1}, Objects: Quota{9, 2}},
		},
		Nodes: []Node{
			{Path: "/dev/infiniband/uverbs0", Device: "rxe0", Driver: "rxe", Mode: fs.ModeDevice | 0o600, Owner: "root", Group: "root", Err: fs.ErrPermission},
			{Path: "/dev/infiniband/uverbs1", Device: "siw0", Driver: "siw", Mode: 0o666},
			{Path: "/dev/infiniband/uverbs2", Device: "mlx5_0", Err: fs.ErrNotExist},
			{Path: "/dev/infiniband/rdma_cm", Mode: 0o660, Owner: "root", Group: "rdma", Err: fs.ErrPermission},
		},
	}
}

func TestExplanationNamesTheLimitAndTheRemedy(t *testing.T) {
	pinned := func(l *Limits) { l.Memlock.Pinned = 60 << 10 }
	exempt := func(l *Limits) { l.Memlock.Exempt = true }
	nothing := func(l *Limits) { l.Memlock.Soft = 0 }
	unlimited := func(l *Limits) { l.Memlock.Soft = NoLimit }
	without := func(modules ...string) func(*Limits) {
		return func(l *Limits) { l.MissingModules = modules }
	}
	for _, c := range []struct {
		name   string
		change func(*Limits)
		f      Failure
		want   string // empty: no explanation
	}{
		{"objects", nil, Failure{Op: "create QP", Device: "rxe0", Err: syscall.EAGAIN},
			"device rxe0: rdma cgroup /a/b allows 0 more hca_object (rdma.max 2): raise rdma.max"},
		{"handles", nil, Failure{Op: "open", Device: "rxe0", Err: syscall.EAGAIN},
			"device rxe0: rdma cgroup /a/b allows 0 more hca_handle (rdma.max 1): raise rdma.max"},
		{"objects that were freed meanwhile", nil, Failure{Op: "create CQ", Device: "siw0", Err: syscall.EAGAIN},
			"device siw0: rdma cgroup /a/b allowed no more hca_object, and 7 more by now (rdma.max 9): raise rdma.max"},
		{"handles without a limit", nil, Failure{Op: "open", Device: "siw0", Err: syscall.EAGAIN}, ""},

		{"memlock", nil, Failure{Op: "register MR", Device: "rxe0", Bytes: 1 << 20, Err: syscall.ENOMEM},
			"RLIMIT_MEMLOCK is 64 KiB, 1 MiB needed: ulimit -l, or LimitMEMLOCK= of systemd"},
		{"memlock, partly used", pinned, Failure{Op: "register MR", Device: "rxe0", Bytes: 8 << 10, Err: syscall.ENOMEM},
			"RLIMIT_MEMLOCK is 64 KiB, of which 60 KiB are pinned, 8 KiB more needed: ulimit -l, or LimitMEMLOCK= of systemd"},
		{"memory that would fit the limit", pinned, Failure{Op: "register MR", Device: "rxe0", Bytes: 4 << 10, Err: syscall.ENOMEM}, ""},
		{"the kernel's own memory", nil, Failure{Op: "create QP", Device: "rxe0", Err: syscall.ENOMEM}, ""},
		{"an unknown amount of memory", nil, Failure{Op: "register MR", Device: "rxe0", Err: syscall.ENOMEM},
			"RLIMIT_MEMLOCK is 64 KiB: ulimit -l, or LimitMEMLOCK= of systemd"},
		{"memlock of nothing", nothing, Failure{Op: "register MR", Device: "rxe0", Err: syscall.EPERM},
			"RLIMIT_MEMLOCK is 0 bytes: ulimit -l, or LimitMEMLOCK= of systemd"},
		{"memlock without a limit", unlimited, Failure{Op: "register MR", Device: "rxe0", Bytes: 1 << 40, Err: syscall.ENOMEM}, ""},
		{"a privileged process", exempt, Failure{Op: "register MR", Device: "rxe0", Bytes: 1 << 20, Err: syscall.ENOMEM}, ""},
		{"a privileged process on siw", exempt, Failure{Op: "register MR", Device: "siw0", Bytes: 1 << 20, Err: syscall.ENOMEM},
			"RLIMIT_MEMLOCK is 64 KiB, 1 MiB needed (siw applies it to privileged processes too): ulimit -l, or LimitMEMLOCK= of systemd"},

		{"permission", nil, Failure{Op: "open", Device: "rxe0", Err: syscall.EACCES},
			"no permission to open /dev/infiniband/uverbs0 (mode 0600 root root): a udev rule or group"},
		{"permission of rdma_cm", nil, Failure{Op: "open", Err: syscall.EACCES},
			"no permission to open /dev/infiniband/rdma_cm (mode 0660 root rdma): a udev rule or group"},
		{"a container's devices", nil, Failure{Op: "open", Device: "siw0", Err: syscall.EPERM},
			"no permission to open /dev/infiniband/uverbs1, though its mode allows it: the devices of a container (--device=/dev/infiniband/uverbs1) or a security module"},
		{"other credentials", nil, Failure{Op: "create QP", Device: "siw0", Err: syscall.EACCES},
			"the descriptor was opened with other credentials: open the device after changing user, group or capabilities"},
		{"a right that only the operation takes", nil, Failure{Op: "modify QP", Device: "rxe0", Err: syscall.EPERM}, ""},
		{"permission of a device that is gone", nil, Failure{Op: "open", Device: "rxe7", Err: syscall.EACCES}, ""},

		{"no node", nil, Failure{Op: "open", Device: "mlx5_0", Err: syscall.ENOENT},
			"/dev/infiniband/uverbs2 does not exist, though the kernel has the device: let udev make it, or give it to the container (--device=/dev/infiniband/uverbs2)"},
		{"no module", without("ib_uverbs", "rdma_ucm"), Failure{Op: "open", Device: "rxe0", Err: syscall.ENOENT},
			"kernel module ib_uverbs is not loaded: modprobe ib_uverbs"},
		{"no rdma_cm", without("rdma_ucm"), Failure{Op: "open", Err: syscall.ENOENT},
			"kernel module rdma_ucm is not loaded: modprobe rdma_ucm"},
		{"no rdma_cm, which devices do not need", without("rdma_ucm"), Failure{Op: "open", Device: "rxe0", Err: syscall.ENODEV}, ""},

		{"descriptors", nil, Failure{Op: "open", Device: "rxe0", Err: syscall.EMFILE},
			"RLIMIT_NOFILE is 1024, and no descriptor is left: ulimit -n, or LimitNOFILE= of systemd"},
		{"an errno that no limit causes", nil, Failure{Op: "create QP", Device: "rxe0", Err: syscall.EINVAL}, ""},
		{"an error without errno", nil, Failure{Op: "create QP", Device: "rxe0", Err: verbs.ErrPinLimit}, ""},
		{"no error", nil, Failure{Op: "create QP", Device: "rxe0"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := limited()
			if c.change != nil {
				c.change(l)
			}
			if c.f.Err != nil {
				c.f.Err = fmt.Errorf("wrapped: %w", c.f.Err)
			}
			require.Equal(t, c.want, l.Explain(c.f))
		})
	}
}

func TestAnErrorIsExplainedWithTheKindOfItsLimit(t *testing.T) {
	l, remedy := ExplainError(&verbs.Error{Op: "create QP", Device: "x", Err: fmt.Errorf("ioctl: %w", syscall.EACCES)})
	require.Equal(t, verbs.LimitPermission, l)
	require.Contains(t, remedy, "other credentials")
	l, _ = (&Limits{}).explainError(Failure{Op: "register MR", Device: "x", Err: syscall.EPERM}, syscall.EPERM)
	require.Equal(t, verbs.LimitMemlock, l, "RLIMIT_MEMLOCK of 0")
	// EAGAIN: no group has the device
	for _, err := range []error{syscall.EINVAL, syscall.EAGAIN, errors.New("other")} {
		l, remedy = ExplainError(&verbs.Error{Op: "create QP", Device: "x", Err: err})
		require.Zero(t, l, err)
		require.Empty(t, remedy, err)
	}
}

func TestExplainReadsTheLimitsItself(t *testing.T) {
	require.Contains(t, Explain(Failure{Op: "open", Device: "x", Err: syscall.EMFILE}), "RLIMIT_NOFILE is ")
	require.Empty(t, Explain(Failure{Op: "open", Device: "x", Err: errors.New("other")}))
}

func TestSizesAreReadable(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 bytes", 1023: "1023 bytes", 64 << 10: "64 KiB", 3 << 19: "1.5 MiB", 8 << 30: "8 GiB", 1 << 50: "1024 TiB", NoLimit: "unlimited",
	} {
		require.Equal(t, want, size(n))
	}
}

// FuzzStatus reads arbitrary text as /proc/self/status, alone and before lines
// that are right: those count.
func FuzzStatus(f *testing.F) {
	f.Add("Name:\tx\nVmLck:\t       8 kB\nVmPin:\t    2048 kB\nCapEff:\t0000000000004000", uint32(1))
	f.Add("VmPin: 99999999999999999999 kB\r\nVmLck: -1 kB\n:\nCapEff", uint32(1<<32-1))
	f.Add("CapEff: 10000000000000000\n\x00VmPin", uint32(0))
	f.Fuzz(func(t *testing.T, text string, kib uint32) {
		m := parseStatus(text)
		require.Zero(t, m.Pinned%1024)
		require.Zero(t, m.Locked%1024)
		require.Zero(t, m.Soft+m.Hard, "are not there")
		m = parseStatus(fmt.Sprintf("%s\nVmLck:\t%8d kB\nVmPin:\t%8d kB\nCapEff:\t%016x\n", text, kib, kib/2, kib))
		require.Equal(t, Memlock{Locked: uint64(kib) << 10, Pinned: uint64(kib/2) << 10, Exempt: kib&(1<<unix.CAP_IPC_LOCK) != 0}, m)
	})
}

// FuzzCgroup reads arbitrary text as the files of /proc and of a cgroup.
func FuzzCgroup(f *testing.F) {
	f.Add("0::/a/b\n", mountsV2, "rxe0 hca_handle=2 hca_object=max \n", "VmPin:\t 4 kB\nCapEff:\tff\n")
	f.Add("4:rdma:/a\n", mountsV1, "rxe0\n\nx hca_handle=99999999999 hca_object=-1", "VmPin: 99999999999999999999 kB")
	f.Add("0::/../../x\n", "1 1 0:1 /r\\04 /m\\777\\ rw - cgroup2 a b\n", "=", ":")
	f.Fuzz(func(t *testing.T, membership, mounts, most, status string) {
		for _, g := range cgroupsOf(membership, mounts) {
			require.True(t, strings.HasPrefix(g.name, "/"), "%q", g.name)
			require.False(t, strings.HasPrefix(g.dir, "/"), "%q", g.dir)
		}
		for _, l := range parseCgroup(most) {
			require.NotEmpty(t, l.device)
			require.True(t, l.handles == NoLimit || l.handles <= 1<<31)
		}
		m := parseStatus(status)
		require.Zero(t, m.Pinned%1024)
		h := cgroupHost().with("", machine{
			"sys/fs/cgroup/a/b/rdma.max": most, "sys/fs/cgroup/a/rdma.current": most, "proc/self/cgroup": membership,
		}).host()
		list, err := h.cgroupLimits()
		require.NoError(t, err)
		l := Limits{Memlock: m, Cgroups: list}
		l.Explain(Failure{Op: "create QP", Device: "rxe0", Err: syscall.EAGAIN})
		l.Explain(Failure{Op: "open", Device: "rxe0", Err: syscall.ENOMEM})
	})
}
