// Activated is a web server that systemd starts when somebody connects to it: it serves
// streams at the socket that it is given.
//
// For a service of one's own, build it, copy both units, and change their names, the port
// and the user:
//
//	go build -o /usr/local/bin/activated ./examples/activated
//	cp examples/activated/activated.* /etc/systemd/system
//	systemctl daemon-reload
//	systemctl enable --now activated.socket
//
// systemd's program for trying it starts it without units:
//
//	systemd-socket-activate --listen=127.0.0.1:9000 /usr/local/bin/activated
//	curl http://127.0.0.1:9000/
//
// A path in place of the address, also in the unit, is that of a Unix socket.
//
// Its answer is what the request came over.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/seed-b9b531af/ramjet/examples/internal/program"
	"github.com/seed-b9b531af/ramjet/rnet"
)

func main() { program.Main("activated", run) }

// drain is how long requests under way may take when the service is stopped.
const drain = 5 * time.Second

// run serves until ctx ends, and returns when the last request is answered, or drain is over.
func run(ctx context.Context, _ []string, _ io.Writer) error {
	socket, err := given()
	if err != nil {
		return err
	}
	ln, err := rnet.NewListener(socket)
	if err != nil {
		socket.Close()
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(answer), ConnContext: withConn}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ln) }() // ended by Shutdown, or by an error of the listener
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	return server.Shutdown(ctx) // ended by the last answer, or the time
}

// given returns the listener that this process was given: descriptor 3 is the
// first, sd_listen_fds(3).
func given() (net.Listener, error) {
	pid, _ := strconv.Atoi(os.Getenv("LISTEN_PID"))
	if pid != os.Getpid() || os.Getenv("LISTEN_FDS") != "1" {
		return nil, errors.New("it needs one socket of systemd: start it by its socket unit, or by systemd-socket-activate")
	}
	file := os.NewFile(3, "activated.socket")
	defer file.Close() // FileListener makes a copy
	return net.FileListener(file)
}

type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

func answer(w http.ResponseWriter, r *http.Request) {
	over := "TCP"
	switch r.Context().Value(connKey{}).(type) {
	case *rnet.Conn:
		over = "a stream"
	case *net.UnixConn:
		over = "a Unix socket"
	}
	fmt.Fprintln(w, "this came over", over)
}
