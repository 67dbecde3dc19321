package softcm

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// UnixSocket is a Unix socket that a server listens at, as the kernel knows it: values
// that are equal mean the same one, as long as it is bound. See Fabric.At.
type UnixSocket struct {
	// Address is that of net.UnixAddr: a path, or an abstract name after an @.
	Address string
	// Packets says that it is of SOCK_SEQPACKET, and not of SOCK_STREAM.
	Packets bool

	device, inode uint64 // of the path's file; 0 for an abstract name
}

// String says which it is.
func (s UnixSocket) String() string {
	return fmt.Sprintf("%s %s (%x:%x)", s.kind(), s.Address, s.device, s.inode)
}

// kind is the name of the network, in package net and in that of the bootstrap socket.
func (s UnixSocket) kind() string {
	if s.Packets {
		return "unixpacket"
	}
	return "unix"
}

// ErrNotReached is wrapped by the error of Listen if the address of a Unix socket that the
// process was given does not lead to it from here.
var ErrNotReached = errors.New("rcm: the socket cannot be reached at its address")

// UnixSocketAddr stands where connections have addresses of a network, in those that are
// made at a Unix socket.
var UnixSocketAddr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 1)

// proofPrefix begins the abstract names of the connections by which dialers show that they
// may connect to a Unix socket.
const proofPrefix = "@ramjet/unix1/"

// IsProof reports whether a connection that was accepted at a Unix socket, from a peer with
// this address, only shows that a dialer may connect. Nothing comes over it.
func IsProof(peer string) bool { return strings.HasPrefix(peer, proofPrefix) }
