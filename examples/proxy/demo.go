package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/rnet"
)

// demonstrate sends a few lines from a TCP client to a TCP server,
//
//	client -TCP-> this process -rnet-> second process -TCP-> server
//
// and prints what comes back.
func demonstrate(ctx context.Context, out io.Writer) (err error) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var work sync.WaitGroup
	defer work.Wait() // ended by the listeners' Close
	defer server.Close()
	work.Go(func() { echo(server) })

	outer, err := child.Start(ctx, "-from", "rnet:127.0.0.1:0", "-to", "tcp:"+server.Addr().String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, outer.Stop()) }()

	p := proxy{from: side{"tcp", "127.0.0.1:0"}, to: side{"rnet", outer.Addr}}
	ln, err := p.from.listen()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	work.Go(func() { p.serve(ctx, ln) }) // ended by cancel

	echoed, err := exchange(ctx, ln.Addr().String(), "hello\nfrom a program\nthat knows only TCP\n")
	if err != nil {
		return err
	}
	for _, decision := range rnet.Explain(outer.Addr) {
		fmt.Fprintln(out, "transport between the proxies:", decision)
	}
	fmt.Fprint(out, echoed)
	return nil
}

// echo is the TCP server, of the kind that answers when it has everything.
func echo(ln net.Listener) {
	for {
		conn, err := ln.Accept() // ended by the proxy, or by Close
		if err != nil {
			return
		}
		if all, err := io.ReadAll(conn); err == nil { // ended by the client's half-close
			_, _ = conn.Write(all)
		}
		conn.Close()
	}
}

// exchange is the TCP client: it sends text as all there is, and returns what
// comes back.
func exchange(ctx context.Context, addr, text string) (string, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if _, err := io.WriteString(conn, text); err != nil {
		return "", err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	echoed, err := io.ReadAll(conn)
	return string(echoed), err
}
