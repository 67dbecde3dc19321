package rnet

import (
	"context"
	"net"
	"net/netip"
)

// What a Dialer and a ListenConfig leave to package net, and how.

// socketDialer returns the net.Dialer with our fields.
func (d *Dialer) socketDialer() *net.Dialer {
	plain := &net.Dialer{
		Timeout: d.Timeout, Deadline: d.Deadline, LocalAddr: d.LocalAddr, FallbackDelay: d.FallbackDelay,
		KeepAlive: d.KeepAlive, KeepAliveConfig: d.KeepAliveConfig, Resolver: d.Resolver, Control: d.Control, ControlContext: d.ControlContext,
	}
	d.mptcp.apply(plain)
	return plain
}

// socketConfig returns the net.ListenConfig with our fields.
func (lc *ListenConfig) socketConfig() net.ListenConfig {
	plain := net.ListenConfig{Control: lc.Control, KeepAlive: lc.KeepAlive, KeepAliveConfig: lc.KeepAliveConfig}
	lc.mptcp.apply(&plain)
	return plain
}

// multipath is whether a program wants Multipath TCP, if it has said so.
type multipath uint8

const (
	multipathUnsaid multipath = iota
	multipathOn
	multipathOff
)

func multipathIf(use bool) multipath {
	if use {
		return multipathOn
	}
	return multipathOff
}

func (m multipath) apply(to interface{ SetMultipathTCP(bool) }) {
	if m != multipathUnsaid {
		to.SetMultipathTCP(m == multipathOn)
	}
}

// MultipathTCP reports whether what goes over TCP will use Multipath TCP, as that of a
// net.Dialer does.
func (d *Dialer) MultipathTCP() bool { return d.socketDialer().MultipathTCP() }

// SetMultipathTCP directs what goes over TCP to use, or not use, Multipath TCP, as that of a
// net.Dialer does. It keeps no dial from another transport.
func (d *Dialer) SetMultipathTCP(use bool) { d.mptcp = multipathIf(use) }

// DialTCP is that of a net.Dialer. What it returns is a TCP connection, never a stream.
func (d *Dialer) DialTCP(ctx context.Context, network string, laddr, raddr netip.AddrPort) (*net.TCPConn, error) {
	return d.socketDialer().DialTCP(ctx, network, laddr, raddr)
}

// DialUDP is that of a net.Dialer.
func (d *Dialer) DialUDP(ctx context.Context, network string, laddr, raddr netip.AddrPort) (*net.UDPConn, error) {
	return d.socketDialer().DialUDP(ctx, network, laddr, raddr)
}

// DialIP is that of a net.Dialer.
func (d *Dialer) DialIP(ctx context.Context, network string, laddr, raddr netip.Addr) (*net.IPConn, error) {
	return d.socketDialer().DialIP(ctx, network, laddr, raddr)
}

// DialUnix is that of a net.Dialer. What it returns is a plain Unix socket, never a stream.
func (d *Dialer) DialUnix(ctx context.Context, network string, laddr, raddr *net.UnixAddr) (*net.UnixConn, error) {
	return d.socketDialer().DialUnix(ctx, network, laddr, raddr)
}

// MultipathTCP reports whether TCP listeners will use Multipath TCP, as that of a
// net.ListenConfig does.
func (lc *ListenConfig) MultipathTCP() bool {
	plain := lc.socketConfig()
	return plain.MultipathTCP()
}

// SetMultipathTCP directs TCP listeners to use, or not use, Multipath TCP, as that of a
// net.ListenConfig does. They serve the other transports in any case.
func (lc *ListenConfig) SetMultipathTCP(use bool) { lc.mptcp = multipathIf(use) }

// ListenPacket is that of a net.ListenConfig.
func (lc *ListenConfig) ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error) {
	plain := lc.socketConfig()
	return plain.ListenPacket(ctx, network, address)
}
