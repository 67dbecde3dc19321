// Package uverbs is the provider for RDMA devices of the Linux kernel. It
// speaks the kernel's command interface on /dev/infiniband/uverbsN directly,
// without libibverbs and without cgo. Import it for its side effect:
//
//	import _ "github.com/seed-b9b531af/ramjet/verbs/uverbs"
//
// The control path (open, register, create, modify) are commands in the
// layouts of rdma/ib_user_verbs.h, wrapped into the INVOKE_WRITE ioctl, or
// written to the descriptor where that ioctl is not let through. The data path
// does without the kernel as far as the driver allows: its queues are memory
// that the kernel's driver and this process share. What such a queue looks
// like differs from driver to driver; type driver is the seam. There are two:
// rxe (Soft-RoCE) and siw (Soft-iWARP). Devices of other drivers are listed,
// but opening them fails with an error that wraps [verbs.ErrUnsupported].
//
// Memory shared with the kernel is treated as hostile: every index and length
// is read once, checked, and then used.
//
// On other systems than Linux the package has no devices.
package uverbs
