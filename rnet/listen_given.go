package rnet

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
)

// tcpListener is what a listener needs of the TCP listener beside it. It is a
// *net.TCPListener, or of a type that has one in it.
type tcpListener interface {
	net.Listener
	syscall.Conn
	SetDeadline(time.Time) error
}

// NewListener is Listen for a TCP listener that there is already: one that systemd or
// the process before this one has handed over, or another package has made. See
// [ListenConfig.NewListener].
func NewListener(ln net.Listener) (net.Listener, error) {
	var lc ListenConfig
	return lc.NewListener(ln)
}

// NewListener makes a listener that serves the TCP peers of ln, and streams at the
// same address. From then on ln is its own, and is closed with it; if there is an
// error, ln is as it was. The function Control and the fields of keep-alive are not looked at. A
// listener that is not of TCP, or one of this package, is returned as it is, and so is
// any if the transport is TCP, or the socket has an option of packets, see Control.
//
// ln must be a *net.TCPListener or have the methods SyscallConn and SetDeadline of
// one. A listener around another one, as of TLS or with a limit, sees no streams: make
// a listener of what is in it, and put the other around that. So one that does not
// show its socket is refused.
//
// While another process still listens at the address, which has handed the socket
// over, streams go to that one, until it closes its listener. From that moment on they go to this
// one. Over shared memory, if both run as the same user, no dial comes between the two; over
// an RDMA device such a dial takes TCP.
func (lc *ListenConfig) NewListener(ln net.Listener) (net.Listener, error) {
	if _, ours := ln.(*Listener); ours || !strings.HasPrefix(ln.Addr().Network(), "tcp") {
		return ln, nil
	}
	fail := func(err error) (net.Listener, error) {
		return nil, &net.OpError{Op: "listen", Net: ln.Addr().Network(), Addr: ln.Addr(), Err: err}
	}
	set, err := lc.settings()
	if err != nil {
		return fail(err)
	}
	if set.Transport == fallback.TCP || set.Transport == fallback.Auto && fakeTime() {
		return ln, nil
	}
	tcp, ok := ln.(tcpListener)
	if _, isTCP := ln.Addr().(*net.TCPAddr); !ok || !isTCP {
		return fail(fmt.Errorf("rnet: a %T does not show its socket: make a listener of the *net.TCPListener in it, and put what is around that around the result", ln))
	}
	if err := socketOpen(tcp); err != nil {
		return fail(err)
	}
	if onlyForPackets(packetOptionSet(tcp), set) {
		return ln, nil
	}
	network := "tcp"
	if onlyV6(tcp) {
		network = "tcp6"
	}
	l := newListener(ln.Addr(), network, set, nil)
	if err := l.listenFabrics(lc.Peers, false); err != nil {
		l.Close()
		return fail(err)
	}
	l.acceptFrom(tcp)
	return l, nil
}

// socketOpen returns an error if c is closed: its address may be somebody else's.
func socketOpen(c syscall.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(uintptr) {})
}

// SyscallConn gives access to the socket of the TCP listener, as that of a
// *net.TCPListener does. Peers that connect by another transport are not in its queue:
// accept with Accept.
func (l *Listener) SyscallConn() (syscall.RawConn, error) {
	return l.tcp.SyscallConn()
}

// File returns a copy of the TCP listener's socket, as that of a *net.TCPListener
// does: what is given to another process is that. NewListener makes a Listener of it
// there, by way of net.FileListener. It takes the other transports over when this one
// is closed, see Close.
//
// Unlike with a *net.TCPListener, its Fd does not make the descriptor block: that would
// hold for the listener's descriptor too, and an Accept that blocks in the kernel is not
// interrupted by streams.
func (l *Listener) File() (*os.File, error) {
	file, err := copyOf(l.tcp)
	if err != nil {
		return nil, l.opError("file", err)
	}
	return file, nil
}
