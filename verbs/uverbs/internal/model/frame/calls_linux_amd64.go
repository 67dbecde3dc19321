package frame

import "golang.org/x/sys/unix"

const (
	auditArch = unix.AUDIT_ARCH_X86_64
	sysStatAt = unix.SYS_NEWFSTATAT
)
