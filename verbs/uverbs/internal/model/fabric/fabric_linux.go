//go:build amd64 || arm64

package fabric

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/cm"
)

// A Fabric is a subnet of devices, one port each, connected with each other. Its lock
// guards all that they have.
type Fabric struct {
	// Log, if not nil, is told what a driver does wrong, and what the devices do.
	Log func(format string, args ...any)

	// WQE, if not nil, is given each WQE of a send queue before it is executed. Like Hostile,
	// it is set before Run is called.
	WQE func(wqe []byte)

	// Hostile, if not nil, makes the devices as awkward as they may be, by its
	// numbers: doorbells are seen late, QPs are served in any order and a WQE at a time,
	// and CQEs come late, several at once. Nothing a program may rely on is broken.
	// It is set before Run is called.
	Hostile *rand.Rand

	// Addresses are the IP addresses of the first device's host; those of the others follow.
	// They are set before NewPort is called. The default is 127.0.0.1: at 127.0.0.0/8 TCP works
	// as well, on any machine and without privileges.
	Addresses []netip.Addr

	// Counted is read by Stats, and written by devices.
	Counted Stats

	network cm.Network

	mu         sync.Mutex // guards all ports and what their devices have, and what follows
	ports      []*Port
	violations []string
	queue      []*QP  // to be looked at by Run
	buffer     []byte // between the memories of two programs
}

// Stats counts what has happened on a fabric.
type Stats struct {
	Doorbells   int // times that written registers were found
	BlueFlames  int // WQEs found in registers: of several in one, the last
	Requests    int // WQEs executed on send queues
	Completions int // CQEs
	Events      int // of completion channels
}

// addresses returns the IP addresses of the n-th device's host.
func (f *Fabric) addresses(n int) []netip.Addr {
	list := slices.Clone(f.Addresses)
	for i := range list {
		for range n {
			list[i] = list[i].Next()
		}
	}
	return list
}

// New returns a fabric without devices.
func New() *Fabric {
	return &Fabric{Addresses: []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}, buffer: make([]byte, 1<<20)}
}

// Lock takes the lock of the fabric, as a device does for each command.
func (f *Fabric) Lock() { f.mu.Lock() }

// Unlock gives it back.
func (f *Fabric) Unlock() { f.mu.Unlock() }

// Stats returns the counters so far.
func (f *Fabric) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Counted
}

// Listens says whether a program listens for connections.
func (f *Fabric) Listens() bool { return f.network.Listens() }

// Members returns how many QPs are in multicast groups.
func (f *Fabric) Members() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.ports {
		for _, q := range p.QPs {
			n += min(len(q.groups), 1)
		}
	}
	return n
}

// Violations returns what drivers have done that a device cannot make sense of.
func (f *Fabric) Violations() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.violations...)
}

// Violation notes what a driver has done wrong. The caller has the lock.
func (f *Fabric) Violation(format string, args ...any) {
	const most = 100
	text := fmt.Sprintf(format, args...)
	if len(f.violations) < most {
		f.violations = append(f.violations, text)
	}
	f.Logf("violation: %s", text)
}

// Logf tells the log, if there is one.
func (f *Fabric) Logf(format string, args ...any) {
	if f.Log != nil {
		f.Log(format, args...)
	}
}

// Run is the devices' hardware. It returns when the context is done.
//
// Programs wait by looking at their CQs without end, and may have all processors. Run sleeps
// between its looks, so that the scheduler takes it for the one that has not had its
// share.
func (f *Fabric) Run(ctx context.Context) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const (
		spins  = 30
		short  = 20 * time.Microsecond
		long   = 500 * time.Microsecond
		asleep = 20 * time.Millisecond
	)
	idle := 0
	for last := time.Now(); ctx.Err() == nil; {
		now := time.Now()
		if f.Step(now) {
			last, idle = now, 0
			continue
		}
		if idle++; idle < spins {
			continue
		}
		pause := short
		if now.Sub(last) > asleep {
			pause = long
		}
		t := unix.NsecToTimespec(pause.Nanoseconds())
		_ = unix.Nanosleep(&t, nil)
	}
}

// CutLinks takes the links of the devices down one after the other, each for that time, and leaves
// all up for ten times as long in between. So a request rarely finds the link down in all of its
// eight tries. It returns when the context is done, with all links up.
func CutLinks(ctx context.Context, devices []Device, away time.Duration) {
	for n := 0; ; n++ {
		d := devices[n%len(devices)]
		for _, up := range []bool{false, true} {
			d.SetLink(up)
			pause := away
			if up {
				pause *= 10
			}
			select { // ends with the time, or the context
			case <-time.After(pause):
			case <-ctx.Done():
				d.SetLink(true)
				return
			}
		}
	}
}

// Step looks at all registers and queues once, and says whether there was something to do.
func (f *Fabric) Step(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	work := false
	for _, p := range f.ports {
		if !p.Removed {
			work = p.hardware.Look(now) || work
		}
	}
	queue := f.queue
	f.queue = nil
	if f.Hostile != nil {
		f.Hostile.Shuffle(len(queue), func(i, j int) { queue[i], queue[j] = queue[j], queue[i] })
	}
	for _, q := range queue {
		if q.Execute(now) {
			work = true
		}
	}
	return work
}

// Late says, of hostile devices, that what could be done now is left for later.
func (f *Fabric) Late() bool { return f.Hostile != nil && f.Hostile.IntN(4) != 0 }
