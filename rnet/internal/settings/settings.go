// Package settings combines what a program and its environment choose into the settings of rnet and
// rgnet.
package settings

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/link"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

// Environment is the policy that the environment asks for, read once. If a program has more rights
// than the user who starts it, the environment does not choose whom it meets and what it reads.
var Environment = sync.OnceValues(func() (fallback.Policy, error) {
	return fallback.FromEnv(func(name string) string {
		if (name == "RNET_DIR" || name == "RNET_KEY_FILE") && elevated() {
			return ""
		}
		return os.Getenv(name)
	})
})

// Wishes are what a program has chosen, see rnet.Dialer. What is zero is left to the
// environment.
type Wishes struct {
	Transport, Profile, Device, Dir string
	Allow                           softcm.Rules
	Limits                          Limits
	Logger                          *slog.Logger
}

// Limits are rnet.Limits.
type Limits struct{ RingSize, Window, SessionWindow, Streams int }

// Settings are what is to be done.
type Settings struct {
	Transport fallback.Transport
	Device    fallback.Device // the only one to use
	Dir       string          // where processes of other network namespaces are met; "" for nowhere
	Allow     Allow           // who is met there, beside our user
	Session   Session
	Log       *slog.Logger // never nil
}

// Session is what sessions are made from. Those that differ in it are not shared.
type Session struct {
	mux.Sizes
	Profile  fallback.Profile
	RingSize uint32
}

// The sizes of a session where nothing is said of them.
const (
	DefaultRingSize = 1 << 20
	DefaultWindow   = 512 << 10

	defaultSessionWindow = 16 << 20
	defaultStreams       = 1 << 17
)

// DebugLog prints to standard error, and NoLog nowhere.
var (
	DebugLog = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	NoLog    = slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError + 1}))
)

// DefaultDir is where processes of other network namespaces are met if nobody says where.
const DefaultDir = "/run/ramjet"

// Allow is softcm.Rules in a form that can be compared, and that is short: it is part of the
// keys by which a dial finds its session. The zero value is no rules.
type Allow struct {
	// packed has the users, the groups and the cgroups, each as the number of their bytes
	// and these, and then the key. It is empty if all of them are.
	packed string
}

func allowOf(r softcm.Rules) Allow {
	if len(r.Users)+len(r.Groups)+len(r.Cgroups)+len(r.Key) == 0 {
		return Allow{}
	}
	b := pack(nil, r.Users)
	b = pack(b, r.Groups)
	b = pack(b, r.Cgroups)
	return Allow{string(append(b, r.Key...))}
}

// Rules returns the rules.
func (a Allow) Rules() (r softcm.Rules) {
	if a.packed == "" {
		return r
	}
	b := []byte(a.packed)
	r.Users, b = unpack[uint32](b)
	r.Groups, b = unpack[uint32](b)
	r.Cgroups, b = unpack[uint64](b)
	r.Key = b
	return r
}

// Name tells these rules from others, and the key to nobody.
func (a Allow) Name() string {
	sum := sha256.Sum256([]byte(a.packed))
	return string(sum[:])
}

// pack appends numbers, sorted and each once.
func pack[N uint32 | uint64](b []byte, numbers []N) []byte {
	numbers = slices.Compact(slices.Sorted(slices.Values(numbers)))
	b = binary.NativeEndian.AppendUint64(b, uint64(binary.Size(numbers)))
	b, _ = binary.Append(b, binary.NativeEndian, numbers) // fails for other types
	return b
}

// unpack returns what pack has appended, and what follows it.
func unpack[N uint32 | uint64](b []byte) (list []N, rest []byte) {
	size := binary.NativeEndian.Uint64(b)
	packed, rest := b[8:8+size], b[8+size:]
	list = make([]N, len(packed)/binary.Size(N(0)))
	_, _ = binary.Decode(packed, binary.NativeEndian, list)
	return list, rest
}

// Resolve fills in what the environment wishes. The settings must not be changed.
func Resolve(w *Wishes) (*Settings, error) {
	if w.none() {
		return standard()
	}
	set, err := resolve(*w)
	return &set, err
}

// none reports whether all is left to the environment.
func (w *Wishes) none() bool {
	a := &w.Allow
	return w.Transport == "" && w.Profile == "" && w.Device == "" && w.Dir == "" && w.Logger == nil && w.Limits == Limits{} &&
		len(a.Users)+len(a.Groups)+len(a.Cgroups)+len(a.Key) == 0
}

// standard is what is to be done then: the environment is read once.
var standard = sync.OnceValues(func() (*Settings, error) {
	set, err := resolve(Wishes{})
	return &set, err
})

func resolve(w Wishes) (Settings, error) {
	env, err := Environment()
	if err != nil {
		return Settings{}, err
	}
	set := Settings{Transport: env.Transport, Device: env.Device, Log: w.Logger}
	set.Session.Profile = env.Profile
	if w.Device != "" {
		if set.Device, err = fallback.ParseDevice(w.Device); err != nil {
			return Settings{}, err
		}
	}
	if err := checkPort(set.Device); err != nil {
		return Settings{}, err
	}
	if w.Transport != "" {
		if set.Transport, err = fallback.ParseTransport(w.Transport); err != nil {
			return Settings{}, err
		}
	}
	if w.Profile != "" {
		if set.Session.Profile, err = fallback.ParseProfile(w.Profile); err != nil {
			return Settings{}, err
		}
	}
	dir, err := fallback.ParseDir(w.Dir)
	if err != nil {
		return Settings{}, err
	}
	if set.Dir = cmp.Or(dir, env.Dir, DefaultDir); set.Dir == fallback.NoDir {
		set.Dir = ""
	}
	if set.Allow = allowOf(w.Allow); set.Allow == (Allow{}) && env.KeyFile != "" {
		w.Allow.Key, err = environmentKey()
		set.Allow = allowOf(w.Allow)
	}
	if err != nil {
		return Settings{}, err
	}
	if n := len(w.Allow.Key); n > 0 && n < softcm.MinKey {
		return Settings{}, fmt.Errorf("rnet: %w", errShortKey(n))
	}
	if set.Log == nil {
		set.Log = NoLog
		if env.Debug {
			set.Log = DebugLog
		}
	}
	return set, w.Limits.apply(&set.Session)
}

// checkPort refuses a port that the software HCA has not. Those of kernel
// devices, which come and go, are looked for when a route is.
func checkPort(device fallback.Device) error {
	if device.Name == softcm.DefaultDevice && device.Port > 1 {
		return fmt.Errorf("rnet: device %s has one port, not %d", device.Name, device.Port)
	}
	return nil
}

func (l *Limits) apply(s *Session) error {
	ring, window := cmp.Or(l.RingSize, DefaultRingSize), cmp.Or(l.Window, DefaultWindow)
	all, streams := cmp.Or(l.SessionWindow, defaultSessionWindow), cmp.Or(l.Streams, defaultStreams)
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
	s.RingSize = uint32(ring)
	s.Sizes = mux.Sizes{Window: uint32(window), SessionWindow: uint32(all), Streams: uint32(streams)}
	return nil
}
