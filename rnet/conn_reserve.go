package rnet

import (
	"fmt"
	"net"
)

// Reserve returns n bytes of memory, at most 256 KiB, to be filled and then
// sent by Commit: where the device reads registered memory, the bytes are
// sent from where they lie. The memory belongs to the connection and is the
// caller's until Commit. One goroutine at a time may use Reserve and Commit.
func (c *Conn) Reserve(n int) ([]byte, error) {
	if n <= 0 || n > maxReserve {
		return nil, c.opError("write", fmt.Errorf("rnet: %d bytes reserved, want 1 to %d", n, maxReserve))
	}
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if c.closed.Load() {
		return nil, c.opError("write", net.ErrClosed)
	}
	if cap(c.reserved) < n {
		c.reserved = make([]byte, n)
	}
	c.reserved = c.reserved[:n]
	return c.reserved, nil
}

const maxReserve = 256 << 10

// Commit sends the first n bytes of what Reserve returned. It blocks as Write
// does. Afterwards the memory is the connection's again.
func (c *Conn) Commit(n int) error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if n < 0 || n > len(c.reserved) {
		return c.opError("write", fmt.Errorf("rnet: %d bytes committed, %d reserved", n, len(c.reserved)))
	}
	_, err := c.write(c.reserved[:n])
	if err != nil {
		err = c.opError("write", err)
	}
	return err
}
