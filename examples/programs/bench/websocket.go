package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"

	"github.com/gorilla/websocket"
	"github.com/seed-b9b531af/ramjet/bench/harness"
)

// gorillaWebsocket are binary messages on a connection for each call at a
// time.
var gorillaWebsocket = harness.Program{
	Name:  "websocket",
	Title: "websocket",
	Serve: func(ln net.Listener, fail func(error)) (func(), error) {
		s := &http.Server{
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if err := echoMessages(w, r); err != nil {
					fail(err)
				}
			}),
			ErrorLog: log.New(failWriter(fail), "", 0),
		}
		go func() {
			if err := s.Serve(ln); !errors.Is(err, http.ErrServerClosed) { // ended by stop
				fail(fmt.Errorf("serve: %w", err))
			}
		}()
		return func() { s.Close() }, nil
	},
	Connect: func(dial harness.Dial, calls int) (harness.Client, error) {
		d := websocket.Dialer{NetDialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
		var conns websocketClient
		for range calls {
			conn, _, err := d.Dial("ws://server/", nil)
			if err != nil {
				return nil, errors.Join(err, conns.Close())
			}
			conns = append(conns, conn)
		}
		return conns, nil
	},
}

// failWriter makes failures of what net/http logs.
type failWriter func(error)

func (f failWriter) Write(line []byte) (int, error) {
	f(errors.New(string(bytes.TrimSpace(line))))
	return len(line), nil
}

// echoMessages sends each message back until the client says that it goes.
func echoMessages(w http.ResponseWriter, r *http.Request) error {
	var upgrader websocket.Upgrader
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	for {
		kind, message, err := conn.ReadMessage()
		if websocket.IsCloseError(err, websocket.CloseNormalClosure) {
			return nil
		}
		if err == nil {
			err = conn.WriteMessage(kind, message)
		}
		if err != nil {
			return err
		}
	}
}

type websocketClient []*websocket.Conn

func (c websocketClient) Call(caller int, message, answer []byte) error {
	if err := c[caller].WriteMessage(websocket.BinaryMessage, message); err != nil {
		return err
	}
	_, got, err := c[caller].ReadMessage()
	if err != nil {
		return err
	}
	return take(answer, got)
}

func (c websocketClient) Close() error {
	var errs error
	for _, conn := range c {
		bye := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
		errs = errors.Join(errs, conn.WriteMessage(websocket.CloseMessage, bye), conn.Close())
	}
	return errs
}
