package rnet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/loop"
	"github.com/seed-b9b531af/ramjet/rnet/internal/settings"
)

// Listen is net.Listen: for "tcp", "tcp4" and "tcp6" the listener serves
// plain TCP peers, ramjet peers of this host, and those that come over the
// host's RDMA devices, on the same address; for "unix" and "unixpacket" plain
// peers and ramjet peers of the same user. Other networks go to package net.
func Listen(network, address string) (net.Listener, error) {
	var lc ListenConfig
	return lc.Listen(context.Background(), network, address)
}

// ListenConfig is net.ListenConfig with a choice of transport. The zero value
// is ready to use.
//
// RDMA devices, and addresses on them, have to be there when Listen is called:
// with Auto a listener that finds none serves no RDMA peers later either. What
// it has found may go and come back.
type ListenConfig struct {
	// Control is called as by package net, with the TCP socket. Where it sets an option that
	// says which packets come to the socket, or is checked on them, the listener serves TCP
	// alone; docs/differences.md has the list.
	Control         func(network, address string, c syscall.RawConn) error
	KeepAlive       time.Duration
	KeepAliveConfig net.KeepAliveConfig

	// Transport and Profile take precedence over the environment. With Soft or RDMA the
	// address is still taken as a TCP port, and TCP peers are reset.
	Transport Transport
	Profile   Profile
	// Device is the only device to use, or the only port of it, see Dialer.
	Device string
	// Dir is the directory in which the listener is found by processes of this host in
	// other network namespaces, containers for example, see docs/containers.md. If empty,
	// RNET_DIR has it, and if that is empty too it is /run/ramjet; "none" means none.
	// A directory that is missing or cannot be used costs no more than the acceleration.
	Dir string
	// Allow says whose processes may come beside those of this process's user.
	Allow Allow
	// Peers narrows down which processes of the same user, and of those of Allow, may connect
	// by the software HCA; nil means all of them. Others are served over TCP. It is asked once
	// for each session, on goroutines of the listener, by several at once, and delays only the
	// peer that it is asked about. Close of the listener waits for it, so it must not call Close.
	Peers func(PeerProcess) bool
	// Limits are the sizes of the sessions of this listener.
	Limits Limits
	// Logger gets each decision at debug level, see Dialer.
	Logger *slog.Logger

	mptcp multipath
}

// Allow says which processes, beside those of the same effective user, are served over shared
// memory: in the same network namespace, or if they are met in a directory (Dialer.Dir,
// ListenConfig.Dir). It is enough that one
// of its rules holds; but what is allowed is allowed by both sides, so that the Dialer has to
// allow the listening process, and the ListenConfig the dialing one. Others are served over TCP.
// A process that is allowed can listen at any address in the place of another one.
// The zero Allow leaves it to RNET_KEY_FILE, which names a file with a Key.
type Allow struct {
	// Users are effective user ids, as this process's user namespace has them.
	Users []uint32
	// Groups are group ids: a process of which one is the effective or a supplementary
	// group. Dir has to be readable then, not only to be searched.
	Groups []uint32
	// Cgroups are ids of control groups of version 2, as stat -c %i prints them of their
	// directories: a service or a container, of any user. The process has to be in the group
	// itself, not in one below it, when it is asked about. It takes Linux 6.13, and a process
	// that is seen in the PID namespace of this one: otherwise the rule does not hold. Whoever
	// may move processes into the group decides who is in it. Dir has to be readable then.
	Cgroups []uint64
	// Key is a secret that both sides have, of 16 random bytes or more, from a
	// file for example, for those who are met in Dir. Each proves to the other that it has it,
	// and sends nothing by which it could be learned. It works also where users cannot be told
	// apart, between user namespaces. Dir has to be readable then.
	Key []byte
}

// PeerProcess is a process of this host that wants to connect, as the kernel names it
// (SO_PEERCRED, of the moment in which it connected).
type PeerProcess struct {
	PID      int    // 0 if it is in a PID namespace that this process does not see
	UID, GID uint32 // effective
}

// Listen announces on the address. ctx bounds the look-up of the address, as in
// package net. With Auto it fails only if package net would have, or a setting
// cannot be read; with Soft or RDMA also if there is no such device, or it cannot
// listen.
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	tcpConfig := lc.socketConfig()
	if network != "tcp" && network != "tcp4" && network != "tcp6" && !isUnix(network) {
		return tcpConfig.Listen(ctx, network, address)
	}
	set, err := lc.settings()
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	request := loop.ListenOf(ctx)
	if isUnix(network) && request != nil {
		return tcpConfig.Listen(ctx, network, address)
	}
	if isUnix(network) {
		return lc.listenUnix(ctx, tcpConfig, network, address, set)
	}
	if request != nil {
		return lc.listenForLoops(request, network, address, set)
	}
	if set.Transport == fallback.TCP || set.Transport == fallback.Auto && fakeTime() {
		return tcpConfig.Listen(ctx, network, address)
	}
	packets := &packetListener{lc: lc}
	tcpConfig.Control = packets.control
	if !anyPort(address) {
		return lc.listenAt(ctx, tcpConfig, packets, network, address, set)
	}
	for try := 1; ; try++ {
		tcp, err := tcpConfig.Listen(ctx, network, address)
		if err != nil || onlyForPackets(packets.option, set) {
			return tcp, err
		}
		l, err := lc.listenBeside(tcp, network, set, try < portTries)
		if !errors.Is(err, errPortTaken) {
			return l, err
		}
	}
}

// listenAt listens where the port is named: see listen_first.go.
func (lc *ListenConfig) listenAt(ctx context.Context, tcpConfig net.ListenConfig, packets *packetListener, network, address string, set settings.Settings) (net.Listener, error) {
	var first *Listener
	tcpConfig.Control = func(name, resolved string, c syscall.RawConn) error {
		if err := packets.control(name, resolved, c); err != nil {
			return err
		}
		// net comes twice if it tries MPTCP in vain
		if first == nil && !onlyForPackets(packets.option, set) {
			first = lc.listenFirst(network, resolved, c, set)
		}
		return nil
	}
	tcp, err := tcpConfig.Listen(ctx, network, address)
	switch {
	case err != nil && first != nil:
		first.Close()
		return nil, err
	case err != nil || onlyForPackets(packets.option, set):
		if first != nil {
			first.Close()
		}
		return tcp, err
	case first != nil:
		first.acceptFrom(tcp.(*net.TCPListener))
		return first, nil
	}
	return lc.listenBeside(tcp, network, set, false)
}

// settings returns what the configuration and the environment together want.
func (lc *ListenConfig) settings() (settings.Settings, error) {
	set, err := settings.Resolve(&settings.Wishes{
		Transport: string(lc.Transport), Profile: string(lc.Profile), Device: lc.Device, Dir: lc.Dir, Allow: softcm.Rules(lc.Allow),
		Limits: settings.Limits(lc.Limits), Logger: lc.Logger,
	})
	return *set, err
}

// portTries is how many ports are tried where any will do: the connection
// managers of kernel devices have ports of their own, or share those of TCP,
// and a port that was free for our TCP listener may be taken there.
const portTries = 8

var errPortTaken = errors.New("the port is taken on another transport")

func anyPort(address string) bool {
	_, port, err := net.SplitHostPort(address)
	return err == nil && (port == "" || port == "0")
}

// listenBeside starts the listeners that stand beside a TCP listener. If one
// finds the port taken and another port will do, the error wraps errPortTaken.
func (lc *ListenConfig) listenBeside(tcp net.Listener, network string, set settings.Settings, otherPort bool) (net.Listener, error) {
	l := newListener(tcp.Addr(), network, set, nil)
	l.v6Only = onlyV6(tcp.(syscall.Conn), network == "tcp6")
	if err := l.listenFabrics(lc.Peers, otherPort); err != nil {
		l.Close()
		tcp.Close()
		return nil, &net.OpError{Op: "listen", Net: network, Addr: tcp.Addr(), Err: err}
	}
	l.acceptFrom(tcp.(*net.TCPListener))
	return l, nil
}

// sessionBacklog is how many peers may wait until a listener has time to set up
// a session with them. Each costs a descriptor; the further ones come again.
const sessionBacklog = 1024

// listenFabrics starts a listener on each fabric that the policy allows. With
// Auto a fabric that cannot listen now may do so later, see fabricListener.
func (l *Listener) listenFabrics(peers func(PeerProcess) bool, otherPort bool) error {
	addr := l.addrPort()
	addr = netip.AddrPortFrom(addr.Addr().WithZone(""), addr.Port())
	cfg := rcm.ListenConfig{V6Only: l.v6Only, Backlog: sessionBacklog}
	if peers != nil {
		cfg.PeerPolicy = func(p rcm.Peer) bool { return peers(PeerProcess{PID: p.PID, UID: p.UID, GID: p.GID}) }
	}
	var lastErr error
	listening := false
	for _, f := range fabricsAt(l.socket, l.set) {
		if host, ok := f.Fabric.(interface {
			Given(syscall.Conn) rcm.Fabric
		}); ok && l.given != nil {
			f.Fabric = host.Given(l.given)
		}
		at := f.at(addr)
		if at.Port() == 0 {
			continue
		}
		fl := l.newFabricListener(f, at, cfg)
		ln, err := f.Listen(at, fl.cfg)
		l.set.Log.Debug("rnet: listen", "address", at, "transport", f.transport, "err", err)
		if otherPort && errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%w: %w", errPortTaken, err)
		}
		if err != nil {
			lastErr = worse(lastErr, because(f.transport, err))
			if !worthWaiting(err) {
				continue
			}
			ln = nil
		} else if !l.addFabric(ln) {
			ln.Close()
			break
		}
		listening = listening || ln != nil
		fl.open(ln)
	}
	if !listening && (l.set.Transport != fallback.Auto || errors.Is(lastErr, softcm.ErrNotReached)) {
		if lastErr == nil {
			lastErr = fallback.Because(fallback.NoDevice, rcm.ErrNoRoute)
		}
		return &transportError{l.set.Transport, lastErr}
	}
	liveListeners.add(l, nil)
	attachable.hold()
	return nil
}
