// Package samehost has the rules of the Unix sockets over which processes of one
// host meet: the bootstrap sockets of package rcm, the pair sockets of package
// verbs/soft and the statistics sockets of package rnet. Their names are abstract,
// so that anybody in the network namespace can connect to them and can take a name
// that is free. This package decides who is at the other end ([Peer]), and what
// happens to others ([Conn.Refuse]).
//
// [Listen] takes a name, and [Listener.Accept] or [Listener.Serve] give a [Conn] for each
// peer that is admitted. [Dial] connects to a name, if the process that listens there is
// admitted. A Conn is a stream or a packet socket. It takes descriptors only after
// [Conn.TakeDescriptors].
//
// # Who a peer is
//
// The kernel tells the user of a peer (SO_PEERCRED) in numbers of our user
// namespace. All users for whom that has no number look like one, the overflow
// user. Nobody who looks so is known, and a process that runs as the overflow user
// knows nobody: [CheckUser].
//
// # What a stranger sends
//
// A packet can carry descriptors. The thread that receives or drops it may have to do the
// last close of one, and that can take as long as the sender likes: a TCP socket with
// SO_LINGER and data that nobody reads. So
//
//   - credentials are looked at before anything is received;
//   - nothing can be sent to us before that: listening sockets have SO_PASSRIGHTS
//     off, and connections in their queue inherit that (Linux 6.16). Only a
//     connection that needs descriptors takes them, once its peer is admitted
//     ([Conn.TakeDescriptors]);
//   - where the kernel lacks that, a connection with something unread is hung up on
//     at once, and closed later by one of a few threads that have nothing else to
//     do; a wait at the last close that a signal can end is ended by one
//     (closers_linux.go). How many connections wait for that is bounded, and as long
//     as that many do nothing more is accepted: peers who find the queue full go
//     over TCP.
package samehost
