package rdmahost

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ReadLimits reads the limits of this process. What could not be read is left
// zero and named by the error; the rest is valid beside it. It takes a few
// dozen system calls.
func ReadLimits() (Limits, error) {
	l := Limits{MissingModules: thisHost.missingModules(), Nodes: thisHost.nodes(mayOpen)}
	var memErr, capErr, cgErr error
	l.Memlock, memErr = thisHost.memlock()
	l.OpenFiles, _, capErr = rlimit(unix.RLIMIT_NOFILE)
	l.Cgroups, cgErr = thisHost.cgroupLimits()
	if err := errors.Join(memErr, capErr, cgErr); err != nil {
		return l, fmt.Errorf("read RDMA limits: %w", err)
	}
	return l, nil
}

func (h host) memlock() (Memlock, error) {
	soft, hard, err := rlimit(unix.RLIMIT_MEMLOCK)
	if err != nil {
		return Memlock{}, err
	}
	status, err := h.text("proc/self/status")
	if err != nil {
		return Memlock{Soft: soft, Hard: hard}, err
	}
	m := parseStatus(status)
	m.Soft, m.Hard = soft, hard
	// Drivers ask for the capability in the first user namespace, which is
	// the one that maps all users to themselves.
	users := strings.Fields(h.textOr("", "proc/self/uid_map"))
	m.Exempt = m.Exempt && len(users) == 3 && users[0] == "0" && users[1] == "0" && users[2] == "4294967295"
	return m, nil
}

// parseStatus reads VmPin, VmLck (in kB) and CapEff (hexadecimal) of
// /proc/self/status.
func parseStatus(text string) (m Memlock) {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		kib, _ := strconv.ParseUint(strings.TrimSuffix(value, " kB"), 10, 54)
		switch key {
		case "VmPin":
			m.Pinned = kib << 10
		case "VmLck":
			m.Locked = kib << 10
		case "CapEff":
			caps, _ := strconv.ParseUint(value, 16, 64)
			m.Exempt = caps&(1<<unix.CAP_IPC_LOCK) != 0
		}
	}
	return m
}

func rlimit(resource int) (soft, hard uint64, err error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(resource, &r); err != nil {
		return 0, 0, fmt.Errorf("getrlimit %d: %w", resource, err)
	}
	return r.Cur, r.Max, nil // RLIM_INFINITY is NoLimit
}

// missingModules tells from the classes of devices in sysfs, because what is
// built in is no module.
func (h host) missingModules() (missing []string) {
	for _, m := range []struct{ module, path string }{
		{"ib_core", classInfiniband},
		{"ib_uverbs", classVerbs},
		{"rdma_ucm", classRDMACM},
	} {
		if _, err := fs.Stat(h.FS, m.path); err != nil {
			missing = append(missing, m.module)
		}
	}
	return missing
}

const (
	classRDMACM = "sys/class/misc/rdma_cm"
	nodeDir     = "dev/infiniband"
)

// nodes lists what ib_uverbs and rdma_ucm serve, whether /dev has it or not.
// access asks whether this process may open a path.
func (h host) nodes(access func(path string) error) []Node {
	var list []Node
	names, _ := h.names(classVerbs)
	for _, name := range names {
		device, err := h.text(classVerbs, name, "ibdev")
		if err != nil {
			continue // abi_version stands there too
		}
		_, driver := h.guessDriver(device)
		list = append(list, Node{Path: path.Join("/", nodeDir, name), Device: device, Driver: driver})
	}
	if _, err := fs.Stat(h.FS, classRDMACM); err == nil {
		list = append(list, Node{Path: path.Join("/", nodeDir, "rdma_cm")})
	}
	for i := range list {
		n := &list[i]
		st, err := fs.Stat(h.FS, n.Path[1:])
		if err != nil {
			n.Err = err
			continue
		}
		n.Mode, n.Err = st.Mode(), access(n.Path)
		if sys, ok := st.Sys().(*syscall.Stat_t); ok {
			n.Owner = h.account("etc/passwd", sys.Uid)
			n.Group = h.account("etc/group", sys.Gid)
		}
	}
	return list
}

// mayOpen asks for the rights that opening takes without opening, which would
// cost the driver a context.
func mayOpen(path string) error {
	err := unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK|unix.W_OK, unix.AT_EACCESS)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	return nil
}

// account names a user or a group; one that the file does not know keeps its
// number. os/user would bring in cgo.
func (h host) account(file string, id uint32) string {
	number := strconv.FormatUint(uint64(id), 10)
	f, err := h.Open(file)
	if err != nil {
		return number
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Split(s.Text(), ":"); len(fields) > 2 && fields[2] == number {
			return fields[0]
		}
	}
	return number
}
