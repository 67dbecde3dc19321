package rnet

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/settings"
)

// At a Unix socket package net listens for plain peers, and the software HCA beside it, at a
// name that is made of the socket's identity (softcm.UnixSocket). A dial asks at each time
// which socket the path is, and whether it may connect to it: a session serves the dials to
// its own socket only, and none after the path leads elsewhere or is forbidden.

// unixPackets is the network of Unix sockets that keep messages apart: see message_conn.go.
const unixPackets = "unixpacket"

// isUnix reports whether a network is one of those of Unix sockets that streams serve.
func isUnix(network string) bool { return network == "unix" || network == unixPackets }

// listenUnix listens at a Unix socket.
func (lc *ListenConfig) listenUnix(ctx context.Context, config net.ListenConfig, network, address string, set settings.Settings) (net.Listener, error) {
	ln, err := config.Listen(ctx, network, address)
	if err != nil || plainUnix(set) {
		return ln, err
	}
	l := newListener(ln.Addr(), network, set, nil)
	err = l.besideUnix(ln.(*net.UnixListener), lc.Peers)
	if err != nil && set.Transport == fallback.Auto { // the path leads elsewhere by now, or there is no software HCA
		set.Log.Debug("rnet: listen at a plain Unix socket", "address", ln.Addr(), "err", err)
		return ln, nil
	}
	if err != nil {
		ln.Close()
		return nil, &net.OpError{Op: "listen", Net: network, Addr: ln.Addr(), Err: err}
	}
	return l, nil
}

// plainUnix reports whether Unix sockets are left to package net. RDMA devices are for
// networks: to demand them says nothing of what is on this host by its nature.
func plainUnix(set settings.Settings) bool {
	return set.Transport == fallback.TCP || set.Transport == fallback.RDMA || set.Transport == fallback.Auto && fakeTime()
}

// besideUnix makes a listener that listens nowhere yet the one that has ln in it. If there is an
// error it is closed, and ln is not.
func (l *Listener) besideUnix(ln tcpListener, peers func(PeerProcess) bool) (err error) {
	if l.socket, err = softcm.UnixSocketAt(l.network, ln.Addr().String()); err == nil {
		err = l.listenFabrics(peers, false)
	}
	if err != nil {
		l.Close()
		return err
	}
	l.acceptFrom(ln)
	return nil
}

func (l *Listener) atUnixSocket() bool { return isUnix(l.network) }

// SetUnlinkOnClose is that of a *net.UnixListener, and does nothing for one of TCP.
func (l *Listener) SetUnlinkOnClose(unlink bool) {
	if u, ok := l.tcp.(interface{ SetUnlinkOnClose(bool) }); ok {
		u.SetUnlinkOnClose(unlink)
	}
}

// dialUnix dials a Unix socket.
func (a *attempt) dialUnix(ctx context.Context) (net.Conn, error) {
	a.begun = time.Now()
	reason := a.tcpOnly()
	var why error
	switch {
	case reason != fallback.None:
	case plainUnix(a.set):
		reason = fallback.Forced
	case a.set.Transport == fallback.Auto && a.d.hasControl():
		reason, why = fallback.SocketOptions, errors.New("rnet: the dialer has a control function, which may set anything of a Unix socket")
	}
	if reason != fallback.None {
		return a.dialTCP(ctx, reason, why)
	}
	c, err := a.dialBesideUnix(ctx)
	if err == nil {
		negatives.Forget(a.remembered())
		traceConnected(ctx, a.network, c)
		a.record(c.s.transport, c.s.device, fallback.None, nil, false)
		return connFor(a.network, c), nil
	}
	if a.set.Transport != fallback.Auto {
		a.record(a.set.Transport, "", fallback.Classify(err), err, true)
		return nil, a.opError(err)
	}
	conn, plainErr := a.dialSocket(ctx)
	if errors.Is(plainErr, syscall.EMFILE) {
		conn, plainErr = a.dialSocketAfter(ctx)
	}
	return a.decide(conn, err, plainErr)
}

// dialBesideUnix opens a stream to the server at a Unix socket.
func (a *attempt) dialBesideUnix(ctx context.Context) (*Conn, error) {
	var err error
	if a.socket, err = softcm.UnixSocketAt(a.network, a.address); err == nil {
		err = a.socket.MayConnect()
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, fallback.Because(fallback.Permission, err)
	}
	if err != nil {
		return nil, fallback.Because(fallback.NoListener, err)
	}
	if c := a.quick(ctx); c != nil {
		return c, nil
	}
	// What was not there a moment ago is asked for again: that costs one system call.
	if reason, ok := negatives.Recall(a.remembered()); ok && !reason.Nothing() && a.set.Transport == fallback.Auto {
		return nil, fallback.Because(fallback.Remembered, errors.New(reason.Meaning()))
	}
	a.own()
	defer region("rnet.dial").End()
	ctx, cancel := a.limit(ctx)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var o openOptions
	if a.set.Transport == fallback.Auto {
		o.hs = a.headStart(ctx)
		defer o.hs.Stop()
	}
	c, _, err := pool.open(ctx, a.key(), softcm.UnixSocketAddr, a, o)
	return c, err
}

// unixAddrs are the addresses of the connections of a session at a Unix socket. Those of
// package net are the same: the kernel knows the side that dials by no name.
type unixAddrs struct{ local, remote net.UnixAddr }

// noName is the address of a Unix socket without a name, as package net has it.
const noName = "@"

func (l *Listener) unixAddrs() *unixAddrs {
	if !l.atUnixSocket() {
		return nil
	}
	return &unixAddrs{local: net.UnixAddr{Name: l.addr.String(), Net: l.network}, remote: net.UnixAddr{Name: noName, Net: l.network}}
}

func (a *attempt) unixAddrs() *unixAddrs {
	if !isUnix(a.network) {
		return nil
	}
	return &unixAddrs{local: net.UnixAddr{Name: noName, Net: a.network}, remote: net.UnixAddr{Name: a.address, Net: a.network}}
}

// connFor returns the connection of a network that a stream is for.
func connFor(network string, c *Conn) net.Conn {
	if network == unixPackets {
		return newMessageConn(c)
	}
	return c
}

// name returns the name of the socket, "" at none.
func (u *unixAddrs) name() string {
	switch {
	case u == nil:
		return ""
	case u.local.Name != noName:
		return u.local.Name
	}
	return u.remote.Name
}
