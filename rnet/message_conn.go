package rnet

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

// Messages of a Unix socket of the network "unixpacket" go over a stream of bytes, each as
//
//	4 bytes   length of the message
//	...       the message
//	1 byte    wholeMessage, or tornMessage
//
// (docs/protocol.md, "Messages at a Unix socket"). All of it is given to one Write of the
// stream, which is one frame where it fits.
//
// A Write whose deadline passes when part of the message has gone has not sent it. What is
// left goes before the next message, with tornMessage at its end, and the reader drops it.
// So a reader gets whole messages only. It takes what has come off the stream, whether a
// message is whole or not: many that are not would otherwise use up the session's window,
// and none would ever be.

const (
	messageHeader   = 4
	messageOverhead = messageHeader + 1

	wholeMessage = 0
	tornMessage  = 1
)

// maxMessage is the longest message, in bytes, whatever SetWriteBuffer said.
const maxMessage = 1<<20 - messageOverhead

// MessageConn is a connection of messages, as a *net.UnixConn of the network "unixpacket" is
// one: a Write sends a message, and a Read receives one. Dial and Accept return a
// MessageConn for that network where the connection is accelerated, and a *net.UnixConn where
// it is not.
//
// All methods may be called from any goroutine. Errors are those of [Conn]. What is not
// as over a socket is listed in docs/differences.md.
type MessageConn struct {
	conn  *Conn
	limit atomic.Int32 // of a message's length in bytes

	readMu sync.Mutex // one Read at a time, which holds it while it waits
	in     *mux.Chunk // taken off the stream and not returned yet; nil: nothing; guarded by readMu

	writeMu sync.Mutex // one Write at a time, which holds it while it waits
	torn    *mux.Chunk // the rest of a message that is torn; nil: none; guarded by writeMu
}

func newMessageConn(c *Conn) *MessageConn {
	m := &MessageConn{conn: c}
	m.limit.Store(usualMessageLimit())
	return m
}

// usualMessageLimit is the limit of a socket of which nobody has changed a buffer.
var usualMessageLimit = sync.OnceValue(func() int32 {
	n, err := messageLimit(nil)
	if err != nil {
		return 212992 - 32 // on a Linux that nobody has configured
	}
	return n
})

// Read receives the next message into p and returns its length. If the message is longer
// than p its rest is lost, and nobody is told. A message of no bytes is returned as io.EOF,
// and cannot be told from the end, which the peer's Close or CloseWrite is. With an empty
// p it does not wait and receives nothing.
func (c *MessageConn) Read(p []byte) (int, error) {
	c.readMu.Lock()
	n, err := c.read(p)
	c.readMu.Unlock()
	if err != nil && err != io.EOF {
		err = c.conn.opError("read", err)
	}
	return n, err
}

// read is Read without the lock.
func (c *MessageConn) read(p []byte) (int, error) {
	if len(p) == 0 {
		if c.conn.st.Closed() {
			return 0, net.ErrClosed
		}
		return 0, nil
	}
	for {
		if err := c.conn.st.MayRead(); err != nil {
			return 0, err
		}
		message, mark, err := c.next()
		if err != nil {
			return 0, err
		}
		n := copy(p, message)
		c.skip(len(message) + messageOverhead)
		switch {
		case mark == tornMessage:
		case len(message) == 0:
			return 0, io.EOF // as package net has it
		default:
			return n, nil
		}
	}
}

// next waits for a message, and returns it, and the mark after it. It stays until skip.
// What has come of a message that is not whole stays, whatever ends the wait.
func (c *MessageConn) next() ([]byte, byte, error) {
	for {
		message, mark, missing, err := c.first()
		if missing == 0 || err != nil {
			return message, mark, err
		}
		k, err := c.conn.st.Next() // ended by data, FIN, reset, deadline, close, peer death
		if err != nil {
			// What is there of a message is a part: its sender ended in the middle of it.
			return nil, 0, err
		}
		c.arrived(k)
	}
}

// arrived adds to in what was taken off the stream.
func (c *MessageConn) arrived(k *mux.Chunk) {
	if c.in == nil {
		c.in = k
	} else {
		// The length of a message is what a peer says: room for it is taken as it comes,
		// and no more than the longest has, for what was there is not whole.
		c.in = c.in.Append(k.Unread(), min(2*len(c.in.Unread()), maxMessage+messageOverhead))
		k.Recycle()
	}
}

// first returns the message that in begins with, and the mark after it, or how many more
// bytes it takes at least, until it is whole.
func (c *MessageConn) first() (message []byte, mark byte, missing int, err error) {
	if c.in == nil {
		return nil, 0, messageOverhead, nil
	}
	in := c.in.Unread()
	if len(in) < messageHeader {
		return nil, 0, messageOverhead - len(in), nil
	}
	length := binary.LittleEndian.Uint32(in)
	if length > maxMessage {
		return nil, 0, 0, fmt.Errorf("%w: a message of %d bytes", mux.ErrProtocol, length)
	}
	end := messageHeader + int(length)
	if len(in) <= end {
		return nil, 0, end + 1 - len(in), nil
	}
	if in[end] > tornMessage {
		return nil, 0, 0, fmt.Errorf("%w: a message ends with %d", mux.ErrProtocol, in[end])
	}
	return in[messageHeader:end], in[end], 0, nil
}

// skip takes n bytes off in.
func (c *MessageConn) skip(n int) {
	c.in.Skip(n)
	if len(c.in.Unread()) == 0 {
		c.in.Recycle()
		c.in = nil
	}
}

// Write sends p as one message. It returns when all bytes have been copied out of p; the
// peer may not have them yet. It blocks while the peer's window or its ring is full. With an
// error nothing of the message is received. One that is longer than the write buffer allows,
// 212,960 bytes where Linux was left as it is, fails with an error that wraps EMSGSIZE: see
// SetWriteBuffer.
func (c *MessageConn) Write(p []byte) (int, error) {
	c.writeMu.Lock()
	err := c.write(p)
	c.writeMu.Unlock()
	if err != nil {
		return 0, c.conn.opError("write", err)
	}
	return len(p), nil
}

// write is Write without the lock.
func (c *MessageConn) write(p []byte) error {
	if err := c.conn.st.MayWrite(); err != nil {
		return err
	}
	if len(p) > int(c.limit.Load()) {
		return syscall.EMSGSIZE
	}
	if c.torn != nil {
		if _, err := c.send(c.torn); err != nil {
			return err
		}
		c.torn.Recycle()
		c.torn = nil
	}
	size := len(p) + messageOverhead
	k := mux.NewChunk(size)
	k.SetLen(size)
	frame := k.Unread()
	binary.LittleEndian.PutUint32(frame, uint32(len(p)))
	copy(frame[messageHeader:], p)
	frame[size-1] = wholeMessage
	n, err := c.send(k)
	if err != nil && n > 0 {
		frame[size-1] = tornMessage
		c.torn = k
		return err
	}
	k.Recycle()
	return err
}

// send sends what is unread of k, and takes off what has gone, which it returns the length of.
func (c *MessageConn) send(k *mux.Chunk) (int, error) {
	n, err := c.conn.st.Write(k.Unread())
	k.Skip(n)
	return n, err
}

// Close is that of [Conn]: messages that were written are delivered, and if one that the
// peer has sent was not read, the peer learns that by an error that wraps ECONNRESET.
func (c *MessageConn) Close() error {
	if err := c.conn.st.BeginClose(); err != nil {
		return c.conn.closeError(err)
	}
	linger := c.conn.linger.Load() - 1
	c.readMu.Lock() // ended by the Read that BeginClose has woken
	if _, _, missing, _ := c.first(); missing == 0 {
		linger = 0 // a Read has taken it off the stream, and no Read returns it
	}
	if c.in != nil {
		c.skip(len(c.in.Unread()))
	}
	c.readMu.Unlock()
	c.conn.st.EndClose(linger)
	return nil
}

// CloseWrite is that of [Conn].
func (c *MessageConn) CloseWrite() error { return c.conn.CloseWrite() }

// CloseRead is that of [Conn].
func (c *MessageConn) CloseRead() error { return c.conn.CloseRead() }

// LocalAddr returns the local address, a *net.UnixAddr: that of the socket on the listening
// side, and without a name on the other. It must not be changed.
func (c *MessageConn) LocalAddr() net.Addr { return c.conn.LocalAddr() }

// RemoteAddr returns the peer's address, see LocalAddr.
func (c *MessageConn) RemoteAddr() net.Addr { return c.conn.RemoteAddr() }

// SetDeadline sets the read and the write deadline; zero means none.
func (c *MessageConn) SetDeadline(t time.Time) error { return c.conn.SetDeadline(t) }

// SetReadDeadline sets the time after which Read fails with an error that wraps
// os.ErrDeadlineExceeded; zero means never. What has come of a message by then is not lost.
func (c *MessageConn) SetReadDeadline(t time.Time) error { return c.conn.SetReadDeadline(t) }

// SetWriteDeadline is SetReadDeadline for Write.
func (c *MessageConn) SetWriteDeadline(t time.Time) error { return c.conn.SetWriteDeadline(t) }

// SetReadBuffer does nothing: see Dialer and ListenConfig for the window.
func (c *MessageConn) SetReadBuffer(bytes int) error { return c.open() }

// open returns an error after Close.
func (c *MessageConn) open() error {
	if c.conn.st.Closed() {
		return c.conn.setError(net.ErrClosed)
	}
	return nil
}

// SetWriteBuffer sets how long a message may be to what it would be over a socket with that
// buffer; a mebibyte at most. Nothing else depends on it.
func (c *MessageConn) SetWriteBuffer(bytes int) error {
	if err := c.open(); err != nil {
		return err
	}
	n, err := messageLimit(&bytes)
	if err != nil {
		return c.conn.setError(err)
	}
	c.limit.Store(n)
	return nil
}

// File fails, see that of [Conn].
func (c *MessageConn) File() (*os.File, error) { return c.conn.File() }

// Stats returns the statistics of the stream that carries the messages, the bytes of their
// headers included.
func (c *MessageConn) Stats() StreamStats { return c.conn.Stats() }
