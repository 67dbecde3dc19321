package harness

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// readerLoop is what most clients of a protocol are made of: for each
// connection a goroutine that reads, and hands each message over a channel to
// the one that waits for it. The server reads and writes in one goroutine.
var readerLoop = Program{
	Name:  "reader",
	Title: "reader goroutine with a channel",
	Serve: func(ln net.Listener, fail func(error)) (func(), error) {
		go AcceptUntilClosed(ln, fail, func(conn net.Conn) error {
			// ended by the client
			_, err := io.CopyBuffer(struct{ io.Writer }{conn}, struct{ io.Reader }{conn}, make([]byte, swallowBuffer))
			return err
		})
		return func() { ln.Close() }, nil
	},
	Connect: func(dial Dial, calls int) (Client, error) {
		return connectEach(dial, calls, func(conn net.Conn) connClient { return newReading(conn) })
	},
}

// reading is a connection with its reader. Each message begins with its
// length.
type reading struct {
	conn     net.Conn
	out      []byte
	messages chan []byte // closed when the reader ends
	err      error       // why; valid then
	reader   sync.WaitGroup
}

const lengthBytes = 4

func newReading(conn net.Conn) *reading {
	r := &reading{conn: conn, messages: make(chan []byte, 1)}
	r.reader.Go(r.read)
	return r
}

// read hands on each message until the connection ends, as it does by close.
func (r *reading) read() {
	defer close(r.messages)
	in := bufio.NewReader(r.conn)
	var length [lengthBytes]byte
	for {
		if _, r.err = io.ReadFull(in, length[:]); r.err != nil {
			return
		}
		n := binary.LittleEndian.Uint32(length[:])
		if n > largestMessage {
			r.err = fmt.Errorf("a message of %d bytes", n)
			return
		}
		message := make([]byte, n)
		if _, r.err = io.ReadFull(in, message); r.err != nil {
			return
		}
		r.messages <- message // there is room: one call is under way
	}
}

func (r *reading) call(message, answer []byte) error {
	r.out = binary.LittleEndian.AppendUint32(r.out[:0], uint32(len(message)))
	r.out = append(r.out, message...)
	if _, err := r.conn.Write(r.out); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	got, ok := <-r.messages // ended by the reader
	if !ok {
		return fmt.Errorf("read: %w", r.err)
	}
	if n := copy(answer, got); n != len(answer) || n != len(got) {
		return fmt.Errorf("the answer has %d bytes", len(got))
	}
	return nil
}

func (r *reading) close() error {
	err := r.conn.Close()
	for range r.messages { // ended by the reader, which the close has ended
	}
	r.reader.Wait()
	return err
}

// AcceptUntilClosed serves each connection of ln in a goroutine of its own, and returns
// when ln is closed. What fails it tells fail, from any of them.
func AcceptUntilClosed(ln net.Listener, fail func(error), serve func(net.Conn) error) {
	for {
		conn, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			fail(fmt.Errorf("accept: %w", err))
			continue
		}
		go func() {
			defer conn.Close()
			if err := serve(conn); err != nil {
				fail(err)
			}
		}()
	}
}
