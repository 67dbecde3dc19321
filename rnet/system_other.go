//go:build !linux

package rnet

import (
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/seed-b9b531af/ramjet/fallback"
)

// What the other systems lack. There are no fabrics there, so all connections go over TCP.

// socketOptions are read on Linux only.
type socketOptions struct {
	family               int
	v6Only               bool
	reuseAddr, reusePort bool
}

func optionsOf(syscall.RawConn, bool) (o socketOptions, err error) { return o, errors.ErrUnsupported }

func holdPort(netip.AddrPort, socketOptions) (io.Closer, *net.TCPAddr, error) {
	return nil, nil, errors.ErrUnsupported
}

func messageLimit(*int) (int32, error) { return 0, errors.ErrUnsupported }

func onlyV6(_ syscall.Conn, otherwise bool) bool { return otherwise }

func copyOf(tcp tcpListener) (*os.File, error) {
	if l, ok := tcp.(interface{ File() (*os.File, error) }); ok {
		return l.File()
	}
	return nil, errors.ErrUnsupported
}

func (l *Listener) tcpWaits() bool { return false }

// packetState is read on Linux only.
type packetState struct{}

func packetOptionsOf(syscall.RawConn) packetState { return packetState{} }

func (packetState) changed(packetState) string { return "" }

func (packetState) changedButAddress(packetState) string { return "" }

func usualPacketOptions(syscall.RawConn) (s packetState, ok bool) { return s, false }

func checkPairing(fallback.Transport) error { return nil }

func descriptorLimit() int { return math.MaxInt }

func procIsMissing() bool { return false }

// socketPair is made on Linux only.
type socketPair struct{}

func (c *Conn) dropSocketPair() {}

// rawConn is a Conn as a syscall.RawConn.
type rawConn Conn

func (r *rawConn) Control(func(uintptr)) error {
	return (*Conn)(r).opError("raw-control", errors.ErrUnsupported)
}

func (r *rawConn) Read(func(uintptr) bool) error {
	return (*Conn)(r).opError("raw-read", errors.ErrUnsupported)
}

func (r *rawConn) Write(func(uintptr) bool) error {
	return (*Conn)(r).opError("raw-write", errors.ErrUnsupported)
}
