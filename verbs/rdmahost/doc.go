// Package rdmahost tells what a host has for RDMA, and what its administrator allows,
// without opening a device:
//
//   - [Describe] lists the kernel's devices and their ports, with addresses and states.
//   - [ReadCounters] reads what a port has counted.
//   - [ReadLimits] reads the limits of this process, and [Explain] says which of them an
//     error came from.
//   - [PreferredGID] chooses the address of a RoCE port to connect from.
//
// The rest is for those who open devices and connect them, as package uverbs and package
// rcm do. All of it comes from the kernel's RDMA netlink and from sysfs, and is read anew
// with each call. examples/rdmainfo prints most of it.
//
// On systems other than Linux a host has no devices.
package rdmahost
