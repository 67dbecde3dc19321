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

// server answers requests over HTTP/1.1 and HTTP/2.
type server struct {
	addr      string
	cert, key string // files for TLS, empty without
}

// run answers requests until ctx ends, and returns when the last one is
// answered.
func (s *server) run(ctx context.Context, out io.Writer) error {
	ln, err := rnet.Listen("tcp", s.addr) // was net.Listen; nothing else changes
	if err != nil {
		return err
	}
	fmt.Fprintln(out, child.Announcement+ln.Addr().String())
	h := &http.Server{Handler: handler(), Protocols: new(http.Protocols)}
	h.Protocols.SetHTTP1(true)
	h.Protocols.SetHTTP2(true)
	h.Protocols.SetUnencryptedHTTP2(true)

	served := make(chan error, 1)
	go func() {
		if s.cert != "" {
			served <- h.ServeTLS(ln, s.cert, s.key)
		} else {
			served <- h.Serve(ln)
		}
	}()
	select {
	case err := <-served: // ended by an error of the listener
		return errors.Join(err, ln.Close())
	case <-ctx.Done(): // ended by the caller
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	err = h.Shutdown(ctx)
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
