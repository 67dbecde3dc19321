package rnet

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

// Transport says which way a connection may take. The zero value leaves it to
// the environment variable RNET_TRANSPORT, and that to Auto.
type Transport string

// The transports. All but Auto forbid the others: a dial that cannot take the
// one fails and says why.
const (
	Auto Transport = "auto" // the fastest that works, TCP at last
	Soft Transport = "soft" // the software HCA, to processes of this host
	RDMA Transport = "rdma" // a kernel RDMA device
	TCP  Transport = "tcp"  // plain TCP
)

// Profile says how much CPU time may be spent on waiting, on this side of a
// connection. The zero value leaves it to the environment variable
// RNET_PROFILE, and that to Balanced. docs/tuning.md has what each costs.
type Profile string

// The profiles.
const (
	Balanced  Profile = "balanced"  // polls up to 50 us, and up to 1 ms on a wire, where that has paid lately
	Latency   Profile = "latency"   // polls up to 2 ms
	Efficient Profile = "efficient" // never polls in vain
)

// Limits are the sizes that a Dialer or ListenConfig gives its sessions, for
// what this side receives; the peer has its own. Zero fields mean the defaults,
// which are good. A value out of range makes each Dial and Listen fail. See
// docs/tuning.md.
type Limits struct {
	// RingSize is the receive ring of a session in bytes, pinned as long as
	// the session lives: a power of two from 64 KiB to 1 GiB. Default 1 MiB.
	// Where memory is short a session gets a smaller one.
	RingSize int
	// Window is how much of one stream may be under way or unread, in bytes,
	// 4 KiB to 256 MiB. Default 512 KiB.
	Window int
	// SessionWindow is how much all streams of a session together may hold
	// unread, in bytes, 64 KiB to 1 GiB; each stream may hold 1 KiB besides.
	// Default 16 MiB.
	SessionWindow int
	// Streams is how many streams a session may have at once, 1 to 1,048,576.
	// Default 131,072. The lesser of both sides counts. What is dialed on top
	// goes over TCP.
	Streams int
}

const (
	defaultRingSize = 1 << 20
	defaultWindow   = 512 << 10

	defaultSessionWindow = 16 << 20
	defaultStreams       = 1 << 17
)

// environment is the policy that the environment asks for, read once.
var environment = sync.OnceValues(func() (fallback.Policy, error) {
	return fallback.FromEnv(os.Getenv)
})

// settings are a Dialer's or ListenConfig's wishes with the environment's
// filled in.
type settings struct {
	transport fallback.Transport
	device    fallback.Device // the only one to use
	session   sessionConfig
	log       *slog.Logger
}

var (
	debugLog = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	noLog    = slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError + 1}))
)

func resolveSettings(t Transport, p Profile, device string, l Limits, log *slog.Logger) (settings, error) {
	env, err := environment()
	if err != nil {
		return settings{}, err
	}
	set := settings{transport: env.Transport, device: env.Device, log: log}
	set.session.profile = env.Profile
	if device != "" {
		if set.device, err = fallback.ParseDevice(device); err != nil {
			return settings{}, err
		}
	}
	if err := checkPort(set.device); err != nil {
		return settings{}, err
	}
	if t != "" {
		if set.transport, err = fallback.ParseTransport(string(t)); err != nil {
			return settings{}, err
		}
	}
	if p != "" {
		if set.session.profile, err = fallback.ParseProfile(string(p)); err != nil {
			return settings{}, err
		}
	}
	if set.log == nil {
		set.log = noLog
		if env.Debug {
			set.log = debugLog
		}
	}
	return set, l.apply(&set.session)
}

func (l *Limits) apply(cfg *sessionConfig) error {
	ring, window, all, streams := l.RingSize, l.Window, l.SessionWindow, l.Streams
	if ring == 0 {
		ring = defaultRingSize
	}
	if window == 0 {
		window = defaultWindow
	}
	if all == 0 {
		all = defaultSessionWindow
	}
	if streams == 0 {
		streams = defaultStreams
	}
	switch {
	case ring < link.MinRing || ring > link.MaxRing || ring&(ring-1) != 0:
		return fmt.Errorf("rnet: ring of %d bytes, want a power of two from %d to %d", ring, link.MinRing, link.MaxRing)
	case window < mux.MinWindow || window > mux.MaxWindow:
		return fmt.Errorf("rnet: window of %d bytes, want %d to %d", window, mux.MinWindow, mux.MaxWindow)
	case all < mux.MinSessionWindow || all > mux.MaxSessionWindow:
		return fmt.Errorf("rnet: session window of %d bytes, want %d to %d", all, mux.MinSessionWindow, mux.MaxSessionWindow)
	case streams < 1 || streams > mux.MaxStreams:
		return fmt.Errorf("rnet: %d streams, want 1 to %d", streams, mux.MaxStreams)
	}
	cfg.ringSize = uint32(ring)
	cfg.Sizes = mux.Sizes{Window: uint32(window), SessionWindow: uint32(all), Streams: uint32(streams)}
	return nil
}
