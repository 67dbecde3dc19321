// Package inspect reads the statistics of other processes that use rnet. They
// need no code for it: a process that has a session or a listener tells other
// processes of its user, unless RNET_STATS=off is in its environment.
//
//	processes, err := inspect.Processes(ctx)
//	for _, p := range processes {
//		fmt.Println(p.PID, p.Snapshot.Program, len(p.Snapshot.Sessions), p.Err)
//	}
//
// docs/observability.md says which processes are told what. It works on
// Linux only, as sessions do.
package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/attach"
)

// Process is what one process told of itself. It is a process of our user, but
// that is all that is known of it: names in it are to be printed with care.
type Process struct {
	// PID is the process as this one sees it. If it does not, because the
	// process is in a PID namespace above or beside ours, it is 0, and
	// Snapshot.PID has the number from there.
	PID int
	// Endpoint is the name of the socket at which the process tells. No other
	// process has it, also where several have the same PIDs in namespaces of
	// their own. One that has had neither session nor listener meanwhile may
	// have another one.
	Endpoint string
	Snapshot Snapshot
	// Err says that the process told nothing, and the Snapshot is empty: it
	// is stopped, or far too busy. PID is the number that it has for itself.
	Err error
}

// Snapshot is what a process tells of one moment.
type Snapshot struct {
	Time    time.Time `json:"time"`    // on the clock of the host
	PID     int       `json:"pid"`     // as the process sees it
	Program string    `json:"program"` // its name, as it says itself
	rnet.Stats
	// Streams are up to 4096 open streams, those of the oldest session first.
	// Truncated says that there are more: Stats.Sessions has the number of
	// each session's.
	Streams   []rnet.StreamStats `json:"streams"`
	Truncated bool               `json:"truncated"`
}

// Timeout is how long a look takes at most.
const Timeout = 2 * time.Second

// Processes asks all processes of this user, in this network namespace, that
// have sessions or listeners, ordered by PID. It takes no longer than Timeout.
// If ctx ends before, its error comes with those that have answered. Otherwise
// it fails on systems other than Linux, where the kernel's list of sockets
// cannot be read, and where the kernel does not tell this user from others.
func Processes(ctx context.Context) ([]Process, error) {
	endpoints, err := attach.Find()
	if err != nil {
		return nil, fmt.Errorf("inspect: look for processes: %w", err)
	}
	l := look{list: []Process{}}
	l.ask(ctx, endpoints)
	slices.SortFunc(l.list, func(a, b Process) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Snapshot.PID, b.Snapshot.PID))
	})
	return l.list, ctx.Err()
}

// look gathers what the processes tell.
type look struct {
	mu   sync.Mutex
	list []Process // guarded by mu
}

func (l *look) add(p Process) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, p)
}

// ask asks all endpoints at the same time. Those with a full queue are tried
// again until the time is over: what strangers do to some delays no answer of
// the others.
func (l *look) ask(ctx context.Context, endpoints []attach.Endpoint) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	var asking sync.WaitGroup
	defer asking.Wait() // ended by the time limit
	full := func(e attach.Endpoint) bool {
		conn, err := e.Dial()
		switch {
		case err == nil:
			asking.Go(func() { l.read(ctx, e, conn) })
		case errors.Is(err, attach.ErrBusy):
			return true
		case errors.Is(err, attach.ErrStranger), errors.Is(err, syscall.ECONNREFUSED):
			// it has gone
		default:
			l.silent(e, err)
		}
		return false
	}
	for busy := onlyIf(full, endpoints); len(busy) > 0; busy = onlyIf(full, busy) {
		select { // ended by the clock, or the end of the look
		case <-time.After(attach.Rest):
		case <-ctx.Done():
			for _, e := range busy {
				l.silent(e, fmt.Errorf("%w: %w", ctx.Err(), attach.ErrBusy))
			}
			return
		}
	}
}

func onlyIf(f func(attach.Endpoint) bool, list []attach.Endpoint) (some []attach.Endpoint) {
	for _, e := range list {
		if f(e) {
			some = append(some, e)
		}
	}
	return some
}

// silent notes that an endpoint cannot be asked, unless it may be a stranger's.
func (l *look) silent(e attach.Endpoint, err error) {
	if e.Ours {
		l.add(failed(e, err))
	}
}

func failed(e attach.Endpoint, err error) Process {
	return Process{PID: e.PID, Endpoint: e.Name(), Err: fmt.Errorf("inspect: process %d: %w", e.PID, err)}
}

// read reads the statistics of one process. One that has ended meanwhile is left out.
func (l *look) read(ctx context.Context, e attach.Endpoint, conn *attach.Conn) {
	document, pid, err := conn.Read(ctx)
	if err == nil && len(document) == 0 {
		return
	}
	p := Process{PID: pid, Endpoint: e.Name()}
	if err == nil {
		err = json.Unmarshal(document, &p.Snapshot)
	}
	if err != nil {
		p = failed(e, err)
	}
	l.add(p)
}
