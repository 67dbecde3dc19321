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
// address handles, multicast groups and asynchronous events; memory windows of both types
// and LOCAL_INV; MRs without memory or at addresses of the caller's choice, and
// reregistration; completion queues whose events are moderated, or whose completions have
// the device's time, and the wall time of these; XRC; on-demand paging, of all memory too;
// device memory. It has no FLUSH and no ATOMIC_WRITE, which of the library's drivers that
// of rxe alone has, and no DMA buffers; the capabilities of a device say so.
//
// Work requests are laid out for the library in memory of the queue, and posting and
// polling call the operations of the device's context: a call of C costs some 50 ns, and
// allocates nothing. A batch is one call and one doorbell, but for binds of windows, of which each
// is a call of its own; and a completion with a time takes a call for each of its fields. An
// address handle, or a window and its memory, cannot be closed while a call posts them. Goroutines
// that wait for completions are parked on Go's netpoller.
//
// The library has to be one of rdma-core 28 or later (2020). The versions of its symbols
// are checked, and one that has others is refused.
//
// On systems other than Linux, and processors other than amd64 and arm64, the package has
// no devices.
package ibverbs

// ProviderName is what [verbs.DeviceInfo] calls this provider.
const ProviderName = "ibverbs"
