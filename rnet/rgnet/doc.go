// Package rgnet serves gnet handlers over RDMA streams. [Run] takes the place of
// gnet.Run, and [Client] that of gnet.Client; the handler stays as it is:
//
//	err := rgnet.Run(handler, "tcp://:9000", gnet.WithMulticore(true)) // was gnet.Run
//	client, err := rgnet.NewClient(handler)                            // was gnet.NewClient
//
// On gnet's event loops the handler serves TCP peers as before, and beside them
// peers that dial with package rnet or with a Client. Their streams appear as
// gnet.Conn values, and no two callbacks of one loop run at once. [Rotate] and
// [Stop] are gnet's too. [Config] chooses transport, profile, device, peers, limits
// and logger; without one, the environment decides, as for rnet. The directory in which
// containers meet, and the key of those who may, are chosen by RNET_DIR and RNET_KEY_FILE alone.
//
// A real gnet engine runs underneath: OnBoot gets it, and TCP connections are its
// own. On systems other than Linux that is all there is.
//
// # What differs on a stream
//
//   - Fd returns -1, and Dup fails with errors.ErrUnsupportedOp: a stream has no
//     descriptor. Do not use Fd as a name for a connection.
//   - SetReadBuffer, SetWriteBuffer, SetNoDelay, SetKeepAlive and
//     SetKeepAlivePeriod do nothing; SetLinger(0) makes Close reset the stream.
//   - The deadlines are unsupported, as they are in gnet, and so is SendTo.
//   - A peer that closes its writing half ends the connection, as in gnet: OnClose
//     gets an error that wraps io.EOF.
//   - What was written and not sent when a connection is closed still goes out, if
//     the peer takes it within a second, or the time that SetLinger said (gnet tries
//     once). The peer is told by a reset if it did not. Close, called again after
//     OnClose, ends that early.
//   - EventLoop returns a loop that can Register (dialing with rnet) and Close
//     streams. Do not give a stream to the Close method of a TCP connection's
//     EventLoop: gnet panics. The two are different values also where they stand
//     for one loop: a handler that keeps something for each EventLoop has it twice
//     there, and no callback for the one runs at once with one for the other.
//   - Next and Peek return the memory in which the bytes arrived, the connection's
//     buffer, or a copy. What Next returns is valid until the handler returns, what
//     Peek returns until then or until any of it is taken, as in gnet. A peer that
//     breaks the protocol can change bytes while you look at them: copy what you
//     check before you use it.
//   - The Register methods of gnet.Engine, and of a TCP connection's EventLoop, are
//     gnet's own: they dial TCP. Where the configuration demands a transport such a
//     connection is reset as a TCP peer's is, before OnOpen. Dial by a stream's
//     EventLoop, or by a [Client].
//   - Small writes of handlers that run one after the other may leave together, up
//     to two milliseconds later; Flush sends them at once.
//   - gnet.Engine.CountConnections counts TCP connections, and one more for each
//     loop; [CountConnections] counts both kinds.
//
// # Options
//
//   - LoadBalancing: the algorithm chooses the loop of each session, which is
//     all streams from one peer process; see [Client] for how a peer gets
//     several. RoundRobin becomes LeastConnections for TCP connections, because
//     connections are enrolled in a running engine.
//   - Multicore, NumEventLoop, LockOSThread, Ticker, Logger, LogPath, LogLevel:
//     as in gnet, for streams too.
//   - ReadBufferCap: the most that one OnTraffic is given anew.
//   - ReusePort, ReuseAddr, BindToDevice, TCPKeepAlive and its companions,
//     TCPNoDelay, the socket buffers, WriteBufferCap, EdgeTriggeredIO: of TCP
//     connections only.
//
// How it works is told in docs/gnet.md.
package rgnet
