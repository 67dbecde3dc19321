//go:build amd64 || arm64

package frame

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// The descriptors of device nodes have these numbers in the program, so that the
// filter can tell them from others.
const (
	firstFD = 900
	lastFD  = 999
)

// An instruction jumps to labels; a label of "" is the next instruction.
type instruction struct {
	label     string
	code      uint16
	k         uint32
	yes, no   string
	condition bool
}

// filter is the BPF program: notify for what the frame may have to answer, refuse
// netlink sockets for RDMA (the kernel's devices are not the host's), allow the rest.
func filter() []unix.SockFilter {
	const (
		load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		least  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		ret    = unix.BPF_RET | unix.BPF_K
		number = 0 // offsets in struct seccomp_data
		arch   = 4
		arg0   = 16
		arg2   = 32
		arg4   = 48
	)
	program := []instruction{
		{code: load, k: arch},
		{code: equal, k: auditArch, no: "allow", condition: true},
		{code: load, k: number},
		{code: equal, k: unix.SYS_OPENAT, yes: "notify", condition: true},
		{code: equal, k: sysStatAt, yes: "notify", condition: true},
		{code: equal, k: unix.SYS_READLINKAT, yes: "notify", condition: true},
		{code: equal, k: unix.SYS_FACCESSAT, yes: "notify", condition: true},
		{code: equal, k: unix.SYS_FACCESSAT2, yes: "notify", condition: true},
		{code: equal, k: unix.SYS_FSTAT, yes: "descriptor", condition: true},
		{code: equal, k: unix.SYS_IOCTL, yes: "descriptor", condition: true},
		{code: equal, k: unix.SYS_WRITE, yes: "descriptor", condition: true},
		{code: equal, k: unix.SYS_CLOSE, yes: "descriptor", condition: true},
		{code: equal, k: unix.SYS_MMAP, yes: "mapped", condition: true},
		{code: equal, k: unix.SYS_SOCKET, yes: "socket", no: "allow", condition: true},
		{label: "mapped", code: load, k: arg4},
		{code: least, k: lastFD + 1, yes: "allow", condition: true},
		{code: least, k: firstFD, yes: "notify", no: "allow", condition: true},
		{label: "descriptor", code: load, k: arg0},
		{code: least, k: lastFD + 1, yes: "allow", condition: true},
		{code: least, k: firstFD, yes: "notify", no: "allow", condition: true},
		{label: "socket", code: load, k: arg0},
		{code: equal, k: unix.AF_NETLINK, no: "allow", condition: true},
		{code: load, k: arg2},
		{code: equal, k: unix.NETLINK_RDMA, yes: "refuse", no: "allow", condition: true},
		{label: "refuse", code: ret, k: unix.SECCOMP_RET_ERRNO | uint32(unix.EPROTONOSUPPORT)}, // net/netlink/af_netlink.c, netlink_create: as if nobody had registered it
		{label: "notify", code: ret, k: unix.SECCOMP_RET_USER_NOTIF},
		{label: "allow", code: ret, k: unix.SECCOMP_RET_ALLOW},
	}
	at := map[string]int{}
	for i, in := range program {
		if in.label != "" {
			at[in.label] = i
		}
	}
	jump := func(from int, label string) uint8 {
		if label == "" {
			return 0
		}
		to, ok := at[label]
		if !ok || to <= from || to-from > 256 {
			panic(fmt.Sprintf("frame: no jump from %d to %s", from, label))
		}
		return uint8(to - from - 1)
	}
	out := make([]unix.SockFilter, len(program))
	for i, in := range program {
		out[i] = unix.SockFilter{Code: in.code, K: in.k}
		if in.condition {
			out[i].Jt, out[i].Jf = jump(i, in.yes), jump(i, in.no)
		}
	}
	return out
}
