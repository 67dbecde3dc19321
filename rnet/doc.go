// Package rnet makes connections that are carried by RDMA where that is
// possible and by TCP where it is not. It has the shape of package net: a
// program changes net.Dial to rnet.Dial and net.Listen to rnet.Listen, and
// that is all.
//
//	ln, err := rnet.Listen("tcp", ":9000")
//	conn, err := rnet.Dial("tcp", "storage-7:9000")
//
// One listening address serves peers of the same host through the software
// HCA, peers of other hosts through the RDMA devices of the kernel, and plain
// TCP peers that have never heard of ramjet; a dial takes the fastest way that
// works, and ends in a TCP connection if TCP would have worked. [Explain] says
// what the last dials to an address came to.
//
// [Dialer] and [ListenConfig] have the fields of their namesakes in package
// net, and a choice of transport, device and profile beside them. The
// environment has the same for programs that cannot be changed: RNET_TRANSPORT
// (auto, soft, rdma, tcp), RNET_DEVICE (rxe0, mlx5_0/2 or the like),
// RNET_PROFILE (latency, balanced, efficient), and RNET_LOG=debug.
//
// [ReadStats] tells what goes on. Other processes of the same user can read it
// (package rnet/inspect, examples/rnetstat) unless RNET_STATS=off is in the
// environment.
//
// A [*Conn] behaves as a *net.TCPConn does: deadlines, half close, errors and
// addresses are the same, and its methods may be called at once by any
// goroutines. Peek and Discard save the copy on the way in, Reserve and Commit
// the one on the way out.
//
// docs/getting-started.md begins with two programs, docs/transports.md and
// docs/tuning.md say what there is to choose, and docs/troubleshooting.md why it
// is not as expected. How it works is told in docs/architecture.md; what goes
// over the wire in docs/protocol.md.
package rnet
