package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet"
)

const messageSize = 64

// call sends count messages to the server at addr, each when the one before
// has come back, and prints how long that took.
func call(ctx context.Context, addr string, count int, out io.Writer) error {
	var d rnet.Dialer // was net.Dialer
	conn, err := d.DialContext(ctx, networkOf(addr), addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now()) })
	defer stop()
	for _, decision := range rnet.Explain(addr) {
		fmt.Fprintln(out, "transport:", decision)
	}

	message, echo := make([]byte, messageSize), make([]byte, messageSize)
	begin := time.Now()
	for range count {
		rand.Read(message)
		if _, err := conn.Write(message); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, echo); err != nil {
			return err
		}
		if !bytes.Equal(echo, message) {
			return errors.New("the echo differs from the message")
		}
	}
	took := time.Since(begin)
	fmt.Fprintf(out, "%d messages of %d bytes echoed in %v, %v each\n",
		count, messageSize, took.Round(time.Microsecond), took/time.Duration(count))
	fmt.Fprintln(out, "One round trip after the other: a write, the server's echo, and a check of it.")
	return nil
}
