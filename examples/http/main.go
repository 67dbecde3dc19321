// Http is a net/http server and client that talk over rnet.
//
//	go run ./examples/http
//
// starts both, the server in a process of its own, sends requests from many
// goroutines, checks every body, and says which transport they got.
// RNET_TRANSPORT=tcp in front of it shows the same over TCP. -http2 and -tls,
// alone and together, ask for HTTP/2 and for TLS:
//
//	go run ./examples/http -http2 -tls
//
// The two ends can be started apart, and the server answers to curl as well:
//
//	go run ./examples/http -listen 127.0.0.1:8080
//	go run ./examples/http -url http://127.0.0.1:8080
//	curl -d hello http://127.0.0.1:8080/echo
//
// With TLS they need a certificate, of which the demonstration makes its own:
//
//	go run ./examples/http -listen 127.0.0.1:8443 -cert cert.pem -key key.pem
//	go run ./examples/http -url https://127.0.0.1:8443 -ca cert.pem
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"

	"github.com/seed-b9b531af/ramjet/examples/internal/program"
)

func main() { program.Main("http", run) }

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("http", flag.ContinueOnError)
	var s server
	flags.StringVar(&s.addr, "listen", "", "be the server, on this `address`")
	flags.StringVar(&s.cert, "cert", "", "the server's certificate, a PEM `file`; without it there is no TLS")
	flags.StringVar(&s.key, "key", "", "its private key, a PEM `file`")
	var c client
	flags.StringVar(&c.url, "url", "", "be the client, of the server at this `URL`")
	flags.StringVar(&c.ca, "ca", "", "whom the client trusts, a PEM `file`; without it those whom the system trusts")
	flags.BoolVar(&c.http2, "http2", false, "the client speaks HTTP/2")
	flags.IntVar(&c.requests, "n", 2000, "requests that the client makes")
	flags.IntVar(&c.workers, "workers", 16, "goroutines that make them")
	flags.IntVar(&c.maxBody, "body", 64<<10, "longest body in bytes")
	secure := flags.Bool("tls", false, "with neither -listen nor -url: use TLS")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.requests < 1 || c.workers < 1 || c.maxBody < 0 {
		return errors.New("-n and -workers must be at least 1, -body at least 0")
	}
	switch {
	case (s.cert == "") != (s.key == ""):
		return errors.New("-cert and -key belong together")
	case s.addr != "":
		return s.run(ctx, out)
	case c.url != "":
		return c.run(ctx, out)
	}
	return demonstrate(ctx, &c, *secure, out)
}

// demonstrate starts a server in a process of its own and is its client.
func demonstrate(ctx context.Context, c *client, secure bool, out io.Writer) error {
	var args []string
	scheme := "http://"
	if secure {
		dir, err := os.MkdirTemp("", "http")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		cert, key, err := makeCertificate(dir)
		if err != nil {
			return err
		}
		c.ca, args, scheme = cert, []string{"-cert", cert, "-key", key}, "https://"
	}
	return program.WithServer(ctx, func(addr string) error {
		c.url = scheme + addr
		return c.run(ctx, out)
	}, args...)
}
