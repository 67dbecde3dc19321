package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/rnet"
)

// drain is how long requests under way may take when the server shuts down.
const drain = 5 * time.Second

// serve answers requests on addr until ctx ends, and returns when the last
// one is answered.
func serve(ctx context.Context, addr string, out io.Writer) error {
	ln, err := rnet.Listen("tcp", addr) // was net.Listen; nothing else changes
	if err != nil {
		return err
	}
	fmt.Fprintln(out, child.Announcement+ln.Addr().String())
	server := &http.Server{Handler: handler()}

	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	select {
	case err := <-served: // ended by an error of the listener
		return err
	case <-ctx.Done(): // ended by the caller
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	err = server.Shutdown(ctx)
	if served := <-served; !errors.Is(served, http.ErrServerClosed) { // ended by Shutdown
		err = errors.Join(err, served)
	}
	return err
}

func handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength >= 0 {
			w.Header().Set("Content-Length", fmt.Sprint(r.ContentLength))
		}
		http.NewResponseController(w).EnableFullDuplex() // to answer before the body has ended
		_, _ = io.Copy(w, r.Body)                        // the client sees what is missing
	})
	return mux
}
