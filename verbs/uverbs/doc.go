// Package uverbs is the provider for RDMA devices of the Linux kernel. It speaks
// the kernel's command interface on /dev/infiniband/uverbsN directly, without
// libibverbs and without cgo. Import it, and the devices are there:
//
//	import _ "github.com/seed-b9b531af/ramjet/verbs/uverbs"
//
//	ctx, err := verbs.Open("rxe0")
//
// It drives rxe (Soft-RoCE) and siw (Soft-iWARP). Devices of other drivers are
// listed, but opening them fails with an error that wraps [verbs.ErrUnsupported].
// So does opening a ConnectX (mlx5), whose driver here is experimental, unless the
// variable RAMJET_EXPERIMENTAL names it, in a list with commas: mlx5.
//
// To try a device, or to report on one, run
//
//	go run github.com/seed-b9b531af/ramjet/examples/rdmainfo -selftest
//
// It connects two queue pairs of each port with each other, and tests what they can do.
//
// Everything else goes by package verbs. Package rdmahost tells what a host has, and from which
// limit of an administrator an error came.
//
// # How it works
//
// Opening, registering, creating and modifying are commands, in the layouts of
// rdma/ib_user_verbs.h. They are wrapped into the INVOKE_WRITE ioctl, or written
// to the descriptor where that ioctl is not let through.
//
// Sending, receiving and polling do without the kernel as far as the driver
// allows: the queues are memory that the kernel's driver and this process share.
// What such a queue looks like differs from driver to driver, each of which is
// a package below this one. CONTRIBUTING.md says how to add one, and package
// internal/driver what it implements.
//
// Memory shared with the kernel is treated as hostile: every index and length is
// read once, checked, and then used.
//
// On systems other than Linux the package has no devices.
package uverbs

import "github.com/seed-b9b531af/ramjet/verbs/rdmahost"

// ProviderName is what [verbs.DeviceInfo] calls this provider.
const ProviderName = rdmahost.ProviderName
