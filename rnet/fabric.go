package rnet

import (
	"net/netip"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/kernelcm"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/settings"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// fabric is a way to connect sessions.
type fabric struct {
	transport fallback.Transport
	rcm.Fabric
	// port is the port at which the fabric's listener stands beside the TCP
	// listener at a port, 0 if there can be none; nil means the same port.
	port func(uint16) uint16
}

// Reaches reports, without waiting, why no device of the fabric leads to the
// address, nil if one may.
func (f *fabric) Reaches(addr netip.AddrPort) error {
	if kernel, ok := f.Fabric.(interface{ Reaches(netip.AddrPort) error }); ok {
		return kernel.Reaches(f.at(addr))
	}
	return nil
}

// at returns the address at which the fabric's listener for addr is.
func (f *fabric) at(addr netip.AddrPort) netip.AddrPort {
	if f.port == nil {
		return addr
	}
	return netip.AddrPortFrom(addr.Addr(), f.port(addr.Port()))
}

// fabrics are the ways to connect a session, the fastest first.
var fabrics = []fabric{
	{fallback.Soft, softcm.New(softcm.Config{Directory: settings.DefaultDir}), nil},
	{fallback.RDMA, kernelcm.New(kernelcm.Config{Transports: ownPorts}), nil},
	{fallback.RDMA, kernelcm.New(kernelcm.Config{Transports: tcpPorts}), iwarpPort},
}

// On InfiniBand and RoCE the connection manager has ports of its own. iWARP
// listens at a TCP port, which cannot be the one that the TCP listener beside
// it has.
var (
	ownPorts = []verbs.Transport{verbs.TransportIB, verbs.TransportRoCE}
	tcpPorts = []verbs.Transport{verbs.TransportIWARP}
)

// iwarpPort is where the iWARP listener of an address is whose TCP listener is
// at port: 16,384 away. Of the ports below 32,768 none is led into the range
// from which Linux takes those of clients (32,768 to 60,999):
//
//	1 to 16,383        16,385 to 32,767, where hardly a service is registered
//	16,384             none
//	16,385 to 32,767   1 to 16,383: 16,464 leads to 80, and up to 17,407 the
//	                   ports are privileged
//	32,768 to 49,151   49,152 to 65,535
//	49,152 to 65,535   32,768 to 49,151
//
// A listener whose second port is taken goes without iWARP, unless any port
// will do and others are left to try.
func iwarpPort(port uint16) uint16 { return port ^ 0x4000 }

// fabricsFor returns those that the settings allow, the fastest first.
func fabricsFor(set settings.Settings) []fabric {
	anyDevice, usualDir := set.Device == fallback.Device{}, set.Dir == settings.DefaultDir && set.Allow == settings.Allow{}
	if anyDevice && usualDir && set.Transport == fallback.Auto {
		return fabrics
	}
	all := fabrics
	if !anyDevice {
		all = fabricsOn(set.Device)
	}
	var list []fabric
	for _, f := range all {
		if set.Transport != fallback.Auto && set.Transport != f.transport {
			continue
		}
		if host, ok := f.Fabric.(interface {
			In(dir string, allow softcm.Rules) rcm.Fabric
		}); ok && !usualDir {
			f.Fabric = host.In(set.Dir, set.Allow.Rules())
		}
		list = append(list, f)
	}
	return list
}

// fabricsAt is fabricsFor at a Unix socket, unless that is the zero one.
func fabricsAt(socket softcm.UnixSocket, set settings.Settings) []fabric {
	if socket == (softcm.UnixSocket{}) {
		return fabricsFor(set)
	}
	var list []fabric
	for _, f := range fabricsFor(set) {
		if host, ok := f.Fabric.(interface {
			At(softcm.UnixSocket) rcm.Fabric
		}); ok {
			f.Fabric = host.At(socket)
			list = append(list, f)
		}
	}
	return list
}

// fabricsOn returns the fabrics that may use a device.
func fabricsOn(device fallback.Device) []fabric {
	if device.Name == softcm.DefaultDevice {
		return []fabric{{fallback.Soft, softcm.New(softcm.Config{Device: device.Name, Directory: settings.DefaultDir}), nil}}
	}
	kernel := kernelcm.Config{Device: device.Name, Port: device.Port, Transports: ownPorts}
	iwarp := kernel
	iwarp.Transports = tcpPorts
	return []fabric{{fallback.RDMA, kernelcm.New(kernel), nil}, {fallback.RDMA, kernelcm.New(iwarp), iwarpPort}}
}
