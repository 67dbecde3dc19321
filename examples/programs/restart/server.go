package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/cloudflare/tableflip"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/rnet"
)

// drainTime is how long a process that was replaced goes on with what is open.
const drainTime = time.Minute

// serve serves at an address until ctx ends, or a new process has taken over.
func serve(ctx context.Context, address string, out io.Writer) error {
	upgrader, err := tableflip.New(tableflip.Options{})
	if err != nil {
		return err
	}
	defer upgrader.Stop()
	// The first process makes the listener, which shows its socket to the upgrader. The
	// others get the socket, and make a listener of it. From Ready on the old one may close.
	ln, err := upgrader.ListenWithCallback("tcp", address, rnet.Listen)
	if err != nil {
		return err
	}
	if ln, err = rnet.NewListener(ln); err != nil {
		return err
	}
	var open connections
	hs := &http.Server{Handler: handler(upgrader), ConnState: open.changed}
	defer hs.Close()
	served := make(chan error, 1)
	go func() { served <- hs.Serve(ln) }()
	if err := upgrader.Ready(); err != nil {
		return err
	}
	if !upgrader.HasParent() {
		fmt.Fprintf(out, "%s%v\n", child.Announcement, ln.Addr())
	}
	defer upgradeOnSignal(upgrader)()
	select {
	case <-upgrader.Exit():
	case <-ctx.Done():
		return nil
	}
	// Shutdown would do the rest, but for one thing: a request on a connection that was
	// accepted right before it is dropped, over TCP as well.
	ln.Close()
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		return err
	}
	hs.SetKeepAlivesEnabled(false) // closes what is idle now, and the others after their answers
	open.await(ctx, drainTime)
	return nil
}

// connections counts those that a server has.
type connections struct {
	mu   sync.Mutex
	n    int           // guarded by mu
	none chan struct{} // closed when there are none; nil if nobody waits for that; guarded by mu
}

// changed is told by the server when a connection comes or goes.
func (c *connections) changed(_ net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.n++
	case http.StateClosed, http.StateHijacked:
		c.n--
	}
	if c.n == 0 && c.none != nil {
		close(c.none)
		c.none = nil
	}
}

// await waits until there are none, or ctx ends, and no longer than most.
func (c *connections) await(ctx context.Context, most time.Duration) {
	c.mu.Lock()
	none := make(chan struct{})
	if c.none = none; c.n == 0 {
		close(none)
		c.none = nil
	}
	c.mu.Unlock()
	select {
	case <-none:
	case <-time.After(most):
	case <-ctx.Done():
	}
}

// handler answers with the number of the process, once or, at /ticks, again and again.
func handler(upgrader *tableflip.Upgrader) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, os.Getpid()) })
	mux.HandleFunc("GET /ticks", func(w http.ResponseWriter, r *http.Request) {
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for {
			fmt.Fprintln(w, os.Getpid())
			if err := http.NewResponseController(w).Flush(); err != nil {
				return
			}
			select {
			case <-ticker.C:
			case <-r.Context().Done(): // the client has enough
				return
			}
		}
	})
	mux.HandleFunc("POST /restart", func(w http.ResponseWriter, r *http.Request) {
		if err := upgrader.Upgrade(); err != nil { // returns when the new process is ready
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	return mux
}

// untilEOF returns a context that ends when in does.
func untilEOF(ctx context.Context, in io.Reader) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		io.Copy(io.Discard, in)
		cancel()
	}()
	return ctx
}
