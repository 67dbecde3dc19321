//go:build !linux

package rnet

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
)

// socketOptions are read on Linux only, where there are fabrics.
type socketOptions struct {
	family               int
	v6Only               bool
	reuseAddr, reusePort bool
}

func optionsOf(syscall.RawConn, bool) (o socketOptions, err error) { return o, errors.ErrUnsupported }

func holdPort(netip.AddrPort, socketOptions) (io.Closer, *net.TCPAddr, error) {
	return nil, nil, errors.ErrUnsupported
}

func onlyV6(syscall.Conn) bool { return false }

func copyOf(tcp tcpListener) (*os.File, error) {
	if l, ok := tcp.(interface{ File() (*os.File, error) }); ok {
		return l.File()
	}
	return nil, errors.ErrUnsupported
}
