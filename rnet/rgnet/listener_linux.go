package rgnet

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/panjf2000/gnet/v2"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/rnet/internal/loop"
)

// listenFirst listens for streams at addresses with a port before gnet listens
// for TCP there: a peer that dials again and again while we start must not come
// in between. Where it cannot be, for gnet cannot listen for example, listen
// comes when gnet has. The sessions wait for the loops in any case.
func (b *bridge) listenFirst() {
	for _, protoAddr := range b.addrs {
		network, address, ok := tcpScheme(protoAddr)
		if !ok {
			continue
		}
		at, err := net.ResolveTCPAddr(network, address)
		if err != nil || at.Port == 0 || b.listensAt(protoAddr) {
			continue
		}
		// As gnet makes it.
		v4 := at.IP.To4() != nil || at.IP == nil && network == "tcp4"
		socket := loop.Socket{
			V6: !v4, V6Only: !v4 && (at.IP != nil || network == "tcp6"),
			ReuseAddr: b.opts.ReuseAddr, ReusePort: b.opts.ReusePort,
		}
		ln, err := b.listenBeside(&loop.Listen{First: &socket, Ready: b.running, Place: b.place}, network, at)
		if err == nil && ln != nil {
			b.listeners[protoAddr] = ln
		}
	}
}

// listenBeside listens for streams where gnet listens for TCP, or will. It returns nil
// without an error if the configuration is for TCP alone.
func (b *bridge) listenBeside(request *loop.Listen, network string, at *net.TCPAddr) (loop.Listener, error) {
	ln, err := b.cfg.listenConfig().Listen(request.Context(context.Background()), network, at.String())
	if err != nil || ln == nil {
		return nil, err
	}
	return ln.(loop.Listener), nil
}

func (b *bridge) listensAt(protoAddr string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.listeners[protoAddr] != nil
}

func tcpScheme(protoAddr string) (network, address string, ok bool) {
	network, address, ok = strings.Cut(protoAddr, "://")
	network = strings.ToLower(network) // as gnet reads it
	return network, address, ok && strings.HasPrefix(network, "tcp")
}

// listen listens for streams where gnet listens for TCP.
func (b *bridge) listen(protoAddr string) error {
	network, address, ok := tcpScheme(protoAddr)
	if !ok || b.listensAt(protoAddr) {
		return nil
	}
	at, v6Only, err := b.tcpAddr(address)
	if err != nil {
		return err
	}
	ln, err := b.listenBeside(&loop.Listen{Place: b.place, V6Only: v6Only}, network, at)
	if err != nil || ln == nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		go ln.Close()
		return errStopped
	}
	b.listeners[protoAddr] = ln
	return nil
}

// tcpAddr returns the address at which gnet listens, whose port may have been
// 0, and whether it takes no IPv4 peers.
func (b *bridge) tcpAddr(address string) (at *net.TCPAddr, v6Only bool, err error) {
	fd, err := b.eng.DupListener("tcp", address)
	if err != nil {
		return nil, false, fmt.Errorf("rgnet: find the listener at %s: %w", address, err)
	}
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	only, err := unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
	v6Only = err == nil && only != 0 // the question fails for IPv4
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, false, fmt.Errorf("rgnet: find the listener at %s: %w", address, err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr), v6Only, nil
}

// closeListeners closes our listeners, which sessions that still wait for the
// loops end with.
func (b *bridge) closeListeners() {
	b.mu.Lock()
	b.stopped = true
	listeners := b.listeners
	b.listeners = nil
	b.mu.Unlock()
	for _, ln := range listeners {
		ln.Close()
	}
}

// countAccepted tells the statistics of the listener at the address that the peer
// has connected to. A connection that Register has made came by none.
func (b *bridge) countAccepted(c gnet.Conn) {
	at, ok := c.LocalAddr().(*net.TCPAddr)
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var best loop.Listener
	most := 0
	for _, ln := range b.listeners {
		if n := specificity(ln.Addr().(*net.TCPAddr), at); n > most {
			best, most = ln, n
		}
	}
	if best != nil {
		best.CountTCP()
	}
}

// specificity says how well a listener's address fits that of a connection, as the
// kernel chooses between several: 0 if it does not.
func specificity(ln, at *net.TCPAddr) int {
	sameFamily := (ln.IP.To4() != nil) == (at.IP.To4() != nil)
	switch {
	case ln.Port != at.Port:
		return 0
	case ln.IP.Equal(at.IP):
		return 3
	case !ln.IP.IsUnspecified() && ln.IP != nil:
		return 0
	case sameFamily:
		return 2
	}
	return 1
}
