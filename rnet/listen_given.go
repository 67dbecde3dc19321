package rnet

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rnet/internal/settings"
)

// tcpListener is what a listener needs of the TCP listener beside it. It is a
// *net.TCPListener, or of a type that has one in it.
type tcpListener interface {
	net.Listener
	syscall.Conn
	SetDeadline(time.Time) error
}

// NewListener is Listen for a listener of TCP or at a Unix socket that there is already: one that
// systemd or the process before this one has handed over, or another package has made. See
// [ListenConfig.NewListener].
func NewListener(ln net.Listener) (net.Listener, error) {
	var lc ListenConfig
	return lc.NewListener(ln)
}

// NewListener makes a listener that serves the plain peers of ln, and streams at the
// same address. From then on ln is its own, and is closed with it; if there is an
// error, ln is as it was. The function Control and the fields of keep-alive are not looked at. A
// listener of another network, or one of this package, is returned as it is, and so is
// any if the transport is TCP, or the socket has an option of packets, see Control.
//
// ln must be a *net.TCPListener or a *net.UnixListener, or have the methods SyscallConn and
// SetDeadline of one. A listener around another one, as of TLS or with a limit, sees no
// streams: make a listener of what is in it, and put the other around that. So one that does
// not show its socket is refused.
//
// While another process still listens at the address, which has handed the socket
// over, streams go to that one, until it closes its listener. From that moment on they go to this
// one. Over shared memory, if both run as the same user, no dial comes between the two; over
// an RDMA device such a dial takes TCP.
//
// At a Unix socket, of "unix" or "unixpacket", a dial compares the process that serves streams with
// the one that the kernel names: the process that called listen last. So NewListener calls listen
// again for the socket of ln, when no other process serves streams there; its queue is then as long
// as the host allows. Of processes that share the socket one has the streams, while plain peers
// come to any of them. The next one has the streams within about a second of its end, if the path
// leads to the socket then; a dial before that is plain, and comes into the socket's queue. Whether
// Close removes the file is what ln would have done. If the path of ln does not lead to its socket,
// from this process, or this user may not connect to it, ln is returned as it is; with Soft there
// is an error.
//
// Processes that share a socket have to leave it non-blocking, which the method Fd of a file that
// package net made does not, and os/exec calls it: an Accept that blocks in the kernel is not
// interrupted by streams. File of a Listener makes a file that does.
func (lc *ListenConfig) NewListener(ln net.Listener) (net.Listener, error) {
	network := ln.Addr().Network()
	if _, ours := ln.(*Listener); ours || !strings.HasPrefix(network, "tcp") && !isUnix(network) {
		return ln, nil
	}
	fail := func(err error) (net.Listener, error) {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: ln.Addr(), Err: err}
	}
	set, err := lc.settings()
	if err != nil {
		return fail(err)
	}
	if set.Transport == fallback.TCP || set.Transport == fallback.Auto && fakeTime() || isUnix(network) && plainUnix(set) {
		return ln, nil
	}
	tcp, ok := ln.(tcpListener)
	if !ok || !isSocketAddr(ln.Addr()) {
		return fail(fmt.Errorf("rnet: a %T does not show its socket: call NewListener for package net's listener inside it, and wrap the result", ln))
	}
	if err := socketOpen(tcp); err != nil {
		return fail(err)
	}
	if isUnix(network) {
		l, err := lc.besideGiven(tcp, network, set)
		if err != nil {
			return fail(err)
		}
		return l, nil
	}
	if onlyForPackets(packetOptionSet(tcp), set) {
		return ln, nil
	}
	l := newListener(ln.Addr(), network, set, nil)
	l.v6Only = onlyV6(tcp, false)
	if err := l.listenFabrics(lc.Peers, false); err != nil {
		l.Close()
		return fail(err)
	}
	l.acceptFrom(tcp)
	return l, nil
}

// besideGiven makes a listener of one at a Unix socket, unless that is not reached at its
// address, and need not be.
func (lc *ListenConfig) besideGiven(ln tcpListener, network string, set settings.Settings) (net.Listener, error) {
	l := newListener(ln.Addr(), network, set, nil)
	l.given = ln
	err := l.besideUnix(ln, lc.Peers)
	if err == nil {
		return l, nil
	}
	if set.Transport == fallback.Auto {
		set.Log.Debug("rnet: a listener that was given is left as it is", "address", ln.Addr(), "err", err)
		return ln, nil
	}
	return nil, err
}

// isSocketAddr reports whether an address is of the sockets that streams can stand beside.
func isSocketAddr(a net.Addr) bool {
	switch a.(type) {
	case *net.TCPAddr, *net.UnixAddr:
		return true
	}
	return false
}

// socketOpen returns an error if c is closed: its address may be somebody else's.
func socketOpen(c syscall.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(uintptr) {})
}

// SyscallConn gives access to the socket of TCP, or to the Unix socket, as that of a
// *net.TCPListener does. Peers that connect by another transport are not in its queue:
// accept with Accept.
func (l *Listener) SyscallConn() (syscall.RawConn, error) {
	return l.tcp.SyscallConn()
}

// File returns a copy of the socket of TCP, or of the Unix socket, as that of a *net.TCPListener
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
		var op *net.OpError // of a call that nobody but us knows of
		if errors.As(err, &op) {
			err = op.Err
		}
		return nil, l.opError("file", err)
	}
	return file, nil
}
