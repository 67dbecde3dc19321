// Package verbs is the RDMA verbs model in Go: devices, protection domains,
// memory regions, completion queues, queue pairs, shared receive queues, work
// requests and completions, without cgo and the same for every kind of
// device.
//
// The types, in the order in which one meets them: [Devices] lists what is
// there, [Open] gives a [Context], AllocPD a [PD]; from the PD come memory
// ([MR]) and queue pairs ([QP]); a QP reports to a [CQ], and a [CompChannel]
// wakes whoever waits for it. Work is posted as [SendWR] and [RecvWR] and
// comes back as [WC]. Package rcm connects two QPs; by hand it takes three
// calls of [QP.Modify].
//
// Devices come from providers, which a program links in by importing them:
//
//	import _ "github.com/seed-b9b531af/ramjet/verbs/soft"
//
// Every method may be called from any goroutine. PostSend, PostRecv and Poll
// allocate nothing. Values keep the numbers that the kernel gives them
// (rdma/ib_user_verbs.h), names are those of the InfiniBand Architecture
// Specification.
package verbs
