package rgnet

import (
	"io"
	"net"
	"os"

	"github.com/panjf2000/gnet/v2"
	gerrors "github.com/panjf2000/gnet/v2/pkg/errors"
	"github.com/panjf2000/gnet/v2/pkg/pool/byteslice"
)

// OutboundBuffered returns how many bytes wait for room.
func (c *conn) OutboundBuffered() int { return c.out.size }

// Write takes all of p, and never waits. If it fails the connection is closed. As in gnet the error is
// bare, and that of OnClose is not.
func (c *conn) Write(p []byte) (int, error) {
	if c.state != connOpen && c.state != connClosing {
		return 0, net.ErrClosed
	}
	if err := c.put(p); err != nil {
		c.close(os.NewSyscallError("write", err))
		return 0, err
	}
	return len(p), nil
}

// put sends p, or keeps what there is no room for.
func (c *conn) put(p []byte) error {
	if c.out.size > 0 {
		c.out.Write(p)
		err := c.flush()
		c.tell()
		return err
	}
	n, err := c.stream.Write(p)
	if err == nil && n < len(p) {
		c.blocked = true
		c.out.Write(p[n:])
		c.tell()
	}
	return err
}

// flush sends what waits, as far as there is room.
func (c *conn) flush() error {
	for !c.blocked && c.out.size > 0 {
		p := c.out.first()
		n, err := c.stream.Write(p)
		if err != nil {
			c.out.release()
			return err
		}
		c.blocked = n < len(p)
		c.out.discard(n)
	}
	return nil
}

// smallWrite is up to how many bytes Writev sends in one piece, which costs a
// copy.
const smallWrite = 4 << 10

// Writev is Write for several pieces.
func (c *conn) Writev(bs [][]byte) (int, error) {
	total := 0
	for _, b := range bs {
		total += len(b)
	}
	if total <= smallWrite && len(bs) > 1 {
		if c.l.whole == nil {
			c.l.whole = make([]byte, 0, smallWrite)
		}
		whole := c.l.whole
		for _, b := range bs {
			whole = append(whole, b...)
		}
		return c.Write(whole)
	}
	for _, b := range bs {
		if _, err := c.Write(b); err != nil {
			return 0, err
		}
	}
	return total, nil
}

// readFromSize is how much ReadFrom reads at a time.
const readFromSize = 32 << 10

// ReadFrom takes all that r has. It is sent by Flush, or with the next Write.
func (c *conn) ReadFrom(r io.Reader) (n int64, err error) {
	piece := byteslice.Get(readFromSize)
	defer byteslice.Put(piece)
	return io.CopyBuffer(&c.out, struct{ io.Reader }{r}, piece)
}

// Flush sends what there is room for, also what is being gathered to be sent
// together with what other connections write.
func (c *conn) Flush() error {
	if c.state != connOpen && c.state != connClosing {
		return nil
	}
	err := c.flush()
	c.stream.Flush()
	c.tell()
	if err != nil {
		c.close(os.NewSyscallError("write", err))
	}
	return err
}

// SendTo is for datagrams.
func (c *conn) SendTo([]byte, net.Addr) (int, error) { return 0, gerrors.ErrUnsupportedOp }

// AsyncWrite writes on the loop, and calls back there. p must not be changed
// before that.
func (c *conn) AsyncWrite(p []byte, callback gnet.AsyncCallback) error {
	return c.l.post(task{kind: taskWrite, c: c, p: p, callback: callback})
}

// AsyncWritev is AsyncWrite for several pieces.
func (c *conn) AsyncWritev(bs [][]byte, callback gnet.AsyncCallback) error {
	return c.l.post(task{kind: taskWritev, c: c, bs: bs, callback: callback})
}
