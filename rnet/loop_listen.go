package rnet

import (
	"context"
	"io"
	"net"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rnet/internal/loop"
)

// listenOnLoops listens beside a TCP listener of somebody else's, for peers
// that are not served over TCP. Their sessions go to event loops.
func listenOnLoops(config any, network string, at *net.TCPAddr, place func(peer net.Addr) loop.Poller) (io.Closer, error) {
	lc := config.(*ListenConfig)
	set, err := lc.settings()
	if err != nil || set.transport == fallback.TCP {
		return nil, err
	}
	l := &Listener{addr: at, network: network, set: set, done: make(chan struct{})}
	l.place = func(peer net.Addr) *poller { return place(peer).(*poller) }
	l.open, l.stop = context.WithCancel(context.Background())
	if err := l.listenFabrics(lc.Peers, false); err != nil {
		l.closeFabrics()
		l.work.Wait() // ended by the closed listeners
		return nil, &net.OpError{Op: "listen", Net: network, Addr: at, Err: err}
	}
	liveListeners.add(l)
	return l, nil
}
