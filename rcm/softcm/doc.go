// Package softcm connects queue pairs of the software HCA, between processes of one
// host, over a Unix socket in the abstract namespace, whose name is made of the
// listener's address. Anybody may take such a name, so both sides ask the kernel who
// the other is (SO_PEERCRED) before a byte is exchanged; the rules are those of
// package verbs/samehost. The socket stays open as long as the connection: its hang-up
// is the peer's death. [New] makes the fabric; a [Config] chooses the device and the
// peers. The names and each byte are in docs/protocol.md.
//
// UD QPs are looked up in the same way, over sockets of other names; not in a directory
// or beside a Unix socket, and only among processes that the PeerPolicy lets in. Who may then send
// them messages is for package verbs/soft to say (SetPeerPolicy).
package softcm
