// Package rnet makes connections that are carried by RDMA where that is possible
// and by TCP where it is not. It has the shape of package net: a program changes
// net.Dial to rnet.Dial and net.Listen to rnet.Listen, and that is all.
//
//	ln, err := rnet.Listen("tcp", ":9000")
//	conn, err := rnet.Dial("tcp", "storage-7:9000")
//
// [Dial] and [Listen] return a [net.Conn] and a [net.Listener]. A connection that
// is accelerated is a [*Conn], any other a *net.TCPConn or a *net.UnixConn. One listening address
// serves peers of the same host over shared memory (the software HCA), peers of
// other hosts over the RDMA devices of the kernel (rxe and siw), and everybody else
// over TCP. A dial takes the fastest of these that works, and fails only if TCP
// has failed. Both ends have to use this package for a connection to be fast.
//
// A [*Conn] behaves as a *net.TCPConn does: deadlines, half close, errors and
// addresses are the same, and its methods may be called at once by any goroutines.
// Listen and Dial do the same at Unix sockets, for "unix", and for "unixpacket" with a
// [*MessageConn].
// [Conn.Peek] and [Conn.Discard] save the program's buffer on the way in, [Conn.Reserve] and
// [Conn.Commit] the copy on the way out. A [*Conn] has no descriptor of
// its own; [Conn.SyscallConn] lends one.
//
// # Choosing
//
// [Dialer] and [ListenConfig] have the fields and methods of the types of the same name in package
// net, except the deprecated fields, and also a choice of transport, device, [Profile] and
// [Limits]. The environment chooses without a change to the program:
//
//	RNET_TRANSPORT   auto, soft, rdma or tcp
//	RNET_DEVICE      the only device to use: rxe0, or with a port mlx5_0/2
//	RNET_DIR         where containers of one host meet: a directory, or none
//	RNET_KEY_FILE    a file with the key of those who may meet there (see Allow)
//	RNET_PROFILE     how waiting is done: balanced, latency or efficient
//	RNET_LOG         debug: print each decision
//	RNET_STATS       off: nobody else can read the statistics
//
// # Looking
//
// [Explain] says which transport the last dials to an address took, and why not a
// faster one. [ReadStats] tells what goes on; other processes of the same user can
// read it too (package rnet/inspect, examples/rnetstat).
//
// # More
//
// docs/getting-started.md begins with two programs. docs/transports.md and
// docs/tuning.md say what there is to choose, docs/troubleshooting.md why something
// is not as expected, docs/security.md who can reach what. How it works is in
// docs/architecture.md, and what goes over the wire in docs/protocol.md.
package rnet
