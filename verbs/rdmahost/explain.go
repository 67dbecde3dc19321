package rdmahost

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// Failure is an operation that failed with an errno.
type Failure struct {
	// Op names the operation as verbs.Error.Op does: "open", "register MR",
	// "create QP"; of rdma_cm only "open" matters.
	Op string
	// Device is the name of the device, empty for rdma_cm.
	Device string
	// Bytes are those that the operation would pin, 0 if unknown or none.
	Bytes uint64
	// Err wraps a syscall.Errno.
	Err error
}

const opOpen = "open"

// Explain reads the limits and returns one sentence that names the limit
// which made an operation fail, and the remedy. It is empty if no limit that
// an administrator sets explains the failure. It takes a few dozen system
// calls: it is for error paths.
func Explain(f Failure) string {
	// What cannot be read does not explain anything; the rest may.
	l, _ := ReadLimits()
	return l.Explain(f)
}

// ExplainError is Explain for an error of package verbs, as a provider of the kernel's
// devices implements it.
func ExplainError(e *verbs.Error) (l verbs.Limit, remedy string) {
	var errno syscall.Errno
	if !errors.As(e.Err, &errno) || errnoLimits[errno] == verbs.LimitUnknown {
		return verbs.LimitUnknown, ""
	}
	limits, _ := ReadLimits() // as in Explain
	return limits.explainError(Failure{Op: e.Op, Device: e.Device, Err: e.Err}, errno)
}

func (l *Limits) explainError(f Failure, errno syscall.Errno) (verbs.Limit, string) {
	remedy := l.Explain(f)
	if remedy == "" {
		return verbs.LimitUnknown, ""
	}
	return errnoLimits[l.meaning(f.Op, errno)], remedy
}

var errnoLimits = map[syscall.Errno]verbs.Limit{
	syscall.EAGAIN: verbs.LimitCgroup,
	syscall.ENOMEM: verbs.LimitMemlock,
	syscall.EACCES: verbs.LimitPermission,
	syscall.EPERM:  verbs.LimitPermission,
	syscall.ENOENT: verbs.LimitMissing,
}

// Explain is the function of that name, for limits that were read already.
func (l *Limits) Explain(f Failure) string {
	var errno syscall.Errno
	if !errors.As(f.Err, &errno) {
		return ""
	}
	switch l.meaning(f.Op, errno) {
	case syscall.EAGAIN:
		return l.explainCgroup(f)
	case syscall.ENOMEM:
		return l.explainMemlock(f)
	case syscall.EACCES, syscall.EPERM:
		return l.explainPermission(f, errno)
	case syscall.ENOENT, syscall.ENODEV, syscall.ENXIO:
		return l.explainMissing(f)
	case syscall.EMFILE:
		return fmt.Sprintf("RLIMIT_NOFILE is %d, and no descriptor is left: ulimit -n, or LimitNOFILE= of systemd", l.OpenFiles)
	}
	return ""
}

// meaning is ENOMEM for the EPERM of a process that may pin nothing at all, which it gets before
// anything is counted (can_do_mlock, in ib_umem_get of drivers/infiniband/core/umem.c).
func (l *Limits) meaning(op string, errno syscall.Errno) syscall.Errno {
	if errno == syscall.EPERM && strings.HasSuffix(op, "MR") && l.Memlock.Soft == 0 && !l.Memlock.Exempt {
		return syscall.ENOMEM
	}
	return errno
}

// explainCgroup is for EAGAIN, by which the kernel refuses to charge a cgroup.
// What failed may have freed objects by now, so the group can have room again.
func (l *Limits) explainCgroup(f Failure) string {
	resource, handles := "hca_object", f.Op == opOpen
	if handles {
		resource = "hca_handle"
	}
	c, ok := l.Tightest(f.Device, handles)
	if !ok {
		return ""
	}
	q := c.quota(handles)
	room := fmt.Sprintf("allows %d more %s", q.Free(), resource)
	if q.Free() > 0 {
		room = fmt.Sprintf("allowed no more %s, and %d more by now", resource, q.Free())
	}
	return fmt.Sprintf("device %s: rdma cgroup %s %s (rdma.max %d): raise rdma.max", f.Device, c.Group, room, q.Max)
}

// explainMemlock is for ENOMEM, by which drivers refuse to pin.
func (l *Limits) explainMemlock(f Failure) string {
	m := l.Memlock
	if m.Soft == NoLimit || f.Bytes == 0 && !strings.HasSuffix(f.Op, "MR") {
		return "" // queues are the kernel's own memory
	}
	// siw compares with RLIMIT_MEMLOCK whoever asks (siw_umem_get and
	// siw_reg_user_mr of drivers/infiniband/sw/siw).
	node, _ := l.node(f.Device)
	strict := node.Driver == "siw"
	free := m.Free()
	if strict {
		free = min(free, m.Soft-min(m.Soft, m.Locked))
	}
	if m.Exempt && !strict || f.Bytes > 0 && f.Bytes <= free {
		return ""
	}
	var s strings.Builder
	fmt.Fprintf(&s, "RLIMIT_MEMLOCK is %s", size(m.Soft))
	if m.Pinned > 0 {
		fmt.Fprintf(&s, ", of which %s are pinned", size(m.Pinned))
	}
	switch {
	case f.Bytes > 0 && m.Pinned > 0:
		fmt.Fprintf(&s, ", %s more needed", size(f.Bytes))
	case f.Bytes > 0:
		fmt.Fprintf(&s, ", %s needed", size(f.Bytes))
	}
	if m.Exempt {
		s.WriteString(" (siw applies it to privileged processes too)")
	}
	s.WriteString(": ulimit -l, or LimitMEMLOCK= of systemd")
	return s.String()
}

func (l *Limits) explainPermission(f Failure, errno syscall.Errno) string {
	if f.Op != opOpen {
		if errno != syscall.EACCES {
			return "" // a right that the operation takes, as CAP_NET_RAW for some QKeys
		}
		// The kernel takes writes only from whoever opened the descriptor
		// (ib_safe_file_access of rdma/ib.h).
		return "the descriptor was opened with other credentials: open the device after changing user, group or capabilities"
	}
	n, ok := l.node(f.Device)
	if !ok {
		return ""
	}
	if errors.Is(n.Err, fs.ErrPermission) {
		return fmt.Sprintf("no permission to open %s (mode %#o %s %s): a udev rule or group", n.Path, n.Mode.Perm(), n.Owner, n.Group)
	}
	return fmt.Sprintf("no permission to open %s, though its mode allows it: the devices of a container (--device=%s) or a security module", n.Path, n.Path)
}

func (l *Limits) explainMissing(f Failure) string {
	for _, m := range l.MissingModules {
		if m != "rdma_ucm" || f.Device == "" {
			return fmt.Sprintf("kernel module %s is not loaded: modprobe %s", m, m)
		}
	}
	n, ok := l.node(f.Device)
	if ok && errors.Is(n.Err, fs.ErrNotExist) {
		return fmt.Sprintf("%s does not exist, though the kernel has the device: let udev make it, or give it to the container (--device=%s)", n.Path, n.Path)
	}
	return ""
}
