package rdmahost

import (
	"fmt"
	"io/fs"
	"math"
)

// NoLimit is the value of a limit that is not set.
const NoLimit uint64 = math.MaxUint64

// Limits are what the administrator of this host lets this process do with
// RDMA devices, and how much of it is used.
type Limits struct {
	Memlock Memlock
	// OpenFiles is the soft RLIMIT_NOFILE.
	OpenFiles uint64
	// Cgroups has an entry for each device in each rdma cgroup that this
	// process is in: its own group first, then the ancestors. The tightest
	// of a device counts. It is empty if the controller is not enabled.
	Cgroups []CgroupLimit
	// Nodes are the character devices of RDMA that the kernel offers.
	Nodes []Node
	// MissingModules are the kernel modules that RDMA needs and that are not
	// loaded, the most basic one first.
	MissingModules []string
}

// Memlock is the limit on memory that is locked or pinned.
type Memlock struct {
	Soft, Hard uint64 // RLIMIT_MEMLOCK in bytes, or NoLimit
	// Pinned is what devices have pinned of this process, Locked what it
	// locked with mlock (VmPin and VmLck of /proc/self/status), in bytes.
	Pinned, Locked uint64
	// Exempt is set if the process has CAP_IPC_LOCK in the first user
	// namespace. Drivers then ignore the limit, but for siw.
	Exempt bool
}

// Free returns how many bytes the limit lets the process pin on top of what
// is pinned, or NoLimit. It does not look at Exempt.
func (m Memlock) Free() uint64 {
	if m.Soft == NoLimit {
		return NoLimit
	}
	return m.Soft - min(m.Soft, m.Pinned)
}

// CgroupLimit is what an rdma cgroup allows on one device (rdma.max and
// rdma.current; Documentation/admin-guide/cgroup-v2.rst of the kernel).
type CgroupLimit struct {
	Group   string // path of the cgroup in its hierarchy, "/a/b"
	Device  string
	Handles Quota // hca_handle: open devices
	Objects Quota // hca_object: PDs, MRs, CQs, QPs, SRQs, AHs and MWs
}

// Quota is a number of objects.
type Quota struct {
	Max     uint64 // NoLimit if not limited
	Current uint64
}

// Free returns how many more are allowed, or NoLimit.
func (q Quota) Free() uint64 {
	if q.Max == NoLimit {
		return NoLimit
	}
	return q.Max - min(q.Max, q.Current)
}

// Node is a character device of RDMA.
type Node struct {
	Path   string // "/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"
	Device string // the RDMA device behind it; empty for rdma_cm
	Driver string // its driver, if known
	Mode   fs.FileMode
	Owner  string // name or number of the user and of the group
	Group  string
	// Err says why this process may not open it: it wraps fs.ErrNotExist or
	// fs.ErrPermission. nil if it may, as far as the mode goes.
	Err error
}

// Tightest returns the cgroup entry of the device that allows the fewest more
// objects, or with handles set the fewest more open devices. ok is false if no
// group limits that.
func (l *Limits) Tightest(device string, handles bool) (c CgroupLimit, ok bool) {
	for _, g := range l.Cgroups {
		q := g.quota(handles)
		if g.Device != device || q.Max == NoLimit {
			continue
		}
		if !ok || q.Free() < c.quota(handles).Free() {
			c, ok = g, true
		}
	}
	return c, ok
}

func (c *CgroupLimit) quota(handles bool) Quota {
	if handles {
		return c.Handles
	}
	return c.Objects
}

// node returns the node through which a device is opened, or with an empty
// name that of rdma_cm.
func (l *Limits) node(device string) (Node, bool) {
	for _, n := range l.Nodes {
		if n.Device == device {
			return n, true
		}
	}
	return Node{}, false
}

// size writes bytes as people do: "64 KiB", "1.5 MiB".
func size(n uint64) string {
	if n == NoLimit {
		return "unlimited"
	}
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB"}
	v := float64(n)
	for v >= 1024 && len(units) > 1 {
		v /= 1024
		units = units[1:]
	}
	if v == math.Trunc(v) {
		return fmt.Sprintf("%.0f %s", v, units[0])
	}
	return fmt.Sprintf("%.1f %s", v, units[0])
}
