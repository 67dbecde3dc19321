package rnet

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// SyscallConn returns a raw connection, as that of a *net.TCPConn does. Its functions
// get the descriptor of a Unix socket, which is made when the first of them is called and
// kept until Close. While such a function runs, the socket is to it what the TCP
// connection's would be: what has arrived can be read and polled for, io.EOF and
// ECONNRESET are seen, and what is written is sent. So connection pools can find out
// whether the peer has closed an idle connection. Afterwards the descriptor is good for
// nothing: a program that keeps it, against syscall.RawConn's rule, waits for ever. It has
// the options of a Unix socket.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return (*rawConn)(c), nil }

// File fails: a stream lives in its process, and no descriptor stands for it in another.
// The error wraps errors.ErrUnsupported.
func (c *Conn) File() (*os.File, error) {
	if c.st.Closed() {
		return nil, c.opError("file", net.ErrClosed)
	}
	return nil, c.opError("file", fmt.Errorf("rnet: a stream has no descriptor to hand on: connect with Transport TCP: %w", errors.ErrUnsupported))
}

// MultipathTCP reports false: no packets take any path.
func (c *Conn) MultipathTCP() (bool, error) { return false, c.option() }
