// Package ibverbs is the provider for RDMA devices over the C library of rdma-core,
// libibverbs.so, and whatever drivers that has: mlx5, mlx4, irdma, bnxt_re, hns, erdma,
// mana and others. Import it, and its devices are there for packages verbs, rcm and
// rnet:
//
//	import _ "github.com/seed-b9b531af/ramjet/verbs/ibverbs"
//
// It takes no cgo: the library is opened when devices are asked for
// (github.com/ebitengine/purego). But a program that imports it is linked dynamically
// with the C library of the system, which is why this is a module of its own.
//
// [verbs.Open] says which provider serves a device that several have: package uverbs where that has
// a driver, otherwise this one. With RAMJET_PROVIDERS=ibverbs in the environment this one comes
// first.
//
// # What it does
//
// RC, UC and UD queue pairs, as far as the device has them, with SEND, WRITE, their
// immediates, READ, atomics and inline data; completion channels, shared receive queues,
// address handles and asynchronous events. It has no memory windows, FLUSH, ATOMIC_WRITE, on-demand
// paging and DMA buffers; the capabilities of a device say so.
//
// Work requests are laid out for the library in memory of the queue, and posting and
// polling call the operations of the device's context: a call of C costs some 50 ns, and
// allocates nothing. Goroutines that wait for completions are parked on Go's
// netpoller.
//
// The library has to be one of rdma-core 28 or later (2020). The versions of its symbols
// are checked, and one that has others is refused.
//
// On systems other than Linux, and processors other than amd64 and arm64, the package has
// no devices.
package ibverbs

// ProviderName is what [verbs.DeviceInfo] calls this provider.
const ProviderName = "ibverbs"
