// Package inspect reads the statistics of other processes that use rnet. They
// need no code for it: a process that has a session or a listener tells other
// processes of its user, unless RNET_STATS=off is in its environment.
//
//	processes, err := inspect.Processes(ctx)
//	for _, p := range processes {
//		fmt.Println(p.PID, p.Snapshot.Program, len(p.Snapshot.Sessions), p.Err)
//	}
//
// Who is told what, and who is not, is in docs/observability.md. It works on
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
	PID      int
	Snapshot rnet.Snapshot
	// Err says that the process told nothing, and the Snapshot is empty: it
	// is stopped, or far too busy. PID is the number that it has for itself.
	Err error
}

// Patience is how long one process may take to answer.
const Patience = 2 * time.Second

// readers is how many processes are asked at the same time.
const readers = 16

// Processes asks all processes of this user, in this network namespace, that
// have sessions or listeners, ordered by PID. It takes no longer than Patience
// for each sixteen of them. If ctx ends before, its error comes with those that
// have answered. Otherwise it fails on systems other than Linux, where
// /proc/net/unix cannot be read, and where the kernel does not tell this user
// from others.
func Processes(ctx context.Context) ([]Process, error) {
	endpoints, err := attach.Find()
	if err != nil {
		return nil, fmt.Errorf("inspect: look for processes: %w", err)
	}
	var mu sync.Mutex
	list := []Process{}
	var asking sync.WaitGroup
	turn := make(chan struct{}, readers)
	for _, e := range endpoints {
		turn <- struct{}{} // ended by a reader, which has a time limit
		asking.Go(func() {
			p, there := read(ctx, e)
			<-turn
			if there {
				mu.Lock()
				list = append(list, p)
				mu.Unlock()
			}
		})
	}
	asking.Wait() // ended by the time limit of each
	slices.SortFunc(list, func(a, b Process) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Snapshot.PID, b.Snapshot.PID))
	})
	return list, ctx.Err()
}

// read asks one. Who has gone meanwhile, and strangers, are not there.
func read(ctx context.Context, e attach.Endpoint) (p Process, there bool) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	document, pid, err := e.Read(ctx)
	switch {
	case errors.Is(err, attach.ErrStranger), errors.Is(err, syscall.ECONNREFUSED), err == nil && len(document) == 0:
		return Process{}, false
	case err != nil:
		return Process{PID: e.PID, Err: fmt.Errorf("inspect: process %d: %w", e.PID, err)}, true
	}
	p.PID = pid
	if err := json.Unmarshal(document, &p.Snapshot); err != nil {
		return Process{PID: e.PID, Err: fmt.Errorf("inspect: process %d told no statistics: %w", e.PID, err)}, true
	}
	return p, true
}
