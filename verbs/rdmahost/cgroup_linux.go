package rdmahost

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// cgroup is a control group of this process.
type cgroup struct {
	name string // path in its hierarchy
	dir  string // where that is mounted, without leading slash
}

// cgroupLimits reads rdma.max and rdma.current of this process's cgroup and
// of its ancestors, as far up as they are mounted here.
func (h host) cgroupLimits() ([]CgroupLimit, error) {
	membership, err := h.text("proc/self/cgroup")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // a kernel without cgroups
	}
	if err != nil {
		return nil, err
	}
	mounts, err := h.text("proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var list []CgroupLimit
	for _, g := range cgroupsOf(membership, mounts) {
		list = append(list, h.groupLimits(g)...)
	}
	return list, nil
}

// groupLimits reads one group. One without the rdma controller has no such
// files, and neither has the root of a hierarchy.
func (h host) groupLimits(g cgroup) []CgroupLimit {
	most, err := h.text(g.dir, "rdma.max")
	if err != nil {
		return nil
	}
	var list []CgroupLimit
	used := parseCgroup(h.textOr("", g.dir, "rdma.current"))
	for _, m := range parseCgroup(most) {
		c := CgroupLimit{Group: g.name, Device: m.device, Handles: Quota{Max: m.handles}, Objects: Quota{Max: m.objects}}
		i := slices.IndexFunc(used, func(u cgroupLine) bool { return u.device == m.device })
		if i >= 0 {
			c.Handles.Current, c.Objects.Current = used[i].handles, used[i].objects
		}
		list = append(list, c)
	}
	return list
}

// cgroupsOf finds the groups that may have the rdma controller, from
// /proc/self/cgroup and /proc/self/mountinfo: in each hierarchy the group that
// this process is in, then its ancestors.
func cgroupsOf(membership, mounts string) []cgroup {
	var list []cgroup
	for line := range strings.Lines(membership) {
		// "4:rdma,pids:/a/b" of version 1, "0::/a/b" of version 2
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 || !strings.HasPrefix(f[2], "/") {
			continue
		}
		version2 := f[0] == "0" && f[1] == ""
		if !version2 && !slices.Contains(strings.Split(f[1], ","), "rdma") {
			continue
		}
		root, point, ok := cgroupMount(mounts, version2)
		if !ok {
			continue
		}
		list = append(list, ancestors(path.Clean(f[2]), root, point)...)
	}
	return list
}

// ancestors lists group and what is above it, up to root, which is the group
// that is mounted at point. A group that is not below root cannot be seen; its
// ancestor at the mount point can, as in a container.
func ancestors(group, root, point string) []cgroup {
	below, ok := strings.CutPrefix(group, strings.TrimSuffix(root, "/"))
	if !ok || below != "" && below[0] != '/' {
		group, below = root, ""
	}
	var list []cgroup
	for {
		below = strings.TrimSuffix(below, "/")
		list = append(list, cgroup{name: path.Join("/", group), dir: strings.TrimPrefix(path.Join(point, below), "/")})
		if below == "" {
			return list
		}
		group, below = path.Dir(group), path.Dir(below)
	}
}

// cgroupMount finds where the hierarchy with the rdma controller is mounted,
// and which of its groups is the root of that mount (proc(5), mountinfo).
func cgroupMount(mounts string, version2 bool) (root, point string, ok bool) {
	for line := range strings.Lines(mounts) {
		// 31 23 0:28 root point options ... - type source super-options
		before, after, _ := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if len(f) < 5 || len(g) < 3 {
			continue
		}
		if version2 && g[0] == "cgroup2" ||
			!version2 && g[0] == "cgroup" && slices.Contains(strings.Split(g[2], ","), "rdma") {
			return unescapeMount(f[3]), unescapeMount(f[4]), true
		}
	}
	return "", "", false
}

// unescapeMount undoes the octal escapes of blanks, tabs, newlines and
// backslashes in mountinfo.
func unescapeMount(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// cgroupLine is a line of rdma.max or rdma.current.
type cgroupLine struct {
	device           string
	handles, objects uint64
}

// parseCgroup reads lines like "rxe0 hca_handle=2 hca_object=max"
// (kernel/cgroup/rdma.c). What a line does not name is not limited.
func parseCgroup(text string) []cgroupLine {
	var list []cgroupLine
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		l := cgroupLine{device: f[0], handles: NoLimit, objects: NoLimit}
		for _, field := range f[1:] {
			key, value, _ := strings.Cut(field, "=")
			n, err := strconv.ParseUint(value, 10, 31)
			if err != nil {
				continue // "max"
			}
			switch key {
			case "hca_handle":
				l.handles = n
			case "hca_object":
				l.objects = n
			}
		}
		list = append(list, l)
	}
	return list
}
