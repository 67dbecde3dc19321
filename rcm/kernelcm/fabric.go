package kernelcm

import (
	"net/netip"
	"slices"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// Config says over which of the kernel's devices to connect, and how; the zero
// value means all of them.
type Config struct {
	// Device is the only device to use, "rxe0" or the like; empty means
	// whichever the routing table leads to.
	Device string
	// Port is the only port of its devices to use, from 1; 0 means any. The
	// address here of a connection then is one of that port's.
	Port uint8
	// Transports are those to use, all if empty. iWARP is worth a fabric of
	// its own: its devices take TCP ports, see Listen.
	Transports []verbs.Transport
	// Source is the address to dial from, the choice of the routing table if
	// invalid.
	Source netip.Addr
	// TOS is the type of service or traffic class of what is sent, 0 for the
	// system's.
	TOS uint8
}

// New returns the Fabric of the kernel's RDMA devices, over its connection
// manager rdma_cm: InfiniBand, RoCE and iWARP. Its calls return errors that wrap
// ErrNoRoute where there are no such devices, and on systems other than Linux.
func New(cfg Config) rcm.Fabric {
	cfg.Transports = slices.Clone(cfg.Transports)
	return &fabric{cfg}
}

type fabric struct{ cfg Config }

// Name returns "kernel".
func (f *fabric) Name() string { return "kernel" }
