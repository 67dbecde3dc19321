package uverbs

// The bits of device_cap_flags, and from bit 32 on of device_cap_flags_ex,
// that say which optional operations there are (enum ib_device_cap_flags,
// rdma/ib_user_verbs.h).
const (
	kernelCapMemWindow   = 1 << 17
	kernelCapWindow2A    = 1 << 23
	kernelCapWindow2B    = 1 << 24
	kernelCapFlushGlobal = 1 << 38
	kernelCapFlushPersis = 1 << 39
	kernelCapAtomicWrite = 1 << 40
)
