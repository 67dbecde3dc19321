package rnet

import "io"

// Read reads up to len(p) bytes. It waits until there is at least one, or the
// peer has ended its half: then it returns io.EOF. Of several Reads at once
// one waits, the others wait for it.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.st.Read(p)
	if err != nil && err != io.EOF {
		err = c.opError("read", err)
	}
	return n, err
}

// Peek returns at least the next n bytes without taking them, and all that
// lies together with them; it waits until they are there. The bytes lie where
// they arrived, if the connection was dialed with a session of its own
// (Dialer.Dedicated), else in ordinary memory. With n greater than the stream's
// window (Limits.Window) it fails with an error that wraps bufio.ErrBufferFull;
// if the peer ends before, it returns what there is, and io.EOF. An n below 1
// counts as 1.
//
// The bytes are valid until the next call of Read, Discard, Peek or WriteTo,
// whatever happens meanwhile: a Close, by any goroutine, and the end of the
// session leave them where they are. After a Close they are freed by such a
// call, or when nothing refers to the connection any more, so keep the
// connection as long as the bytes.
//
// On a session of its own they lie where a peer that breaks the protocol could
// change them meanwhile: copy what is checked first and used afterwards. There
// a piece also takes room that the peer needs to send more: discard it soon.
func (c *Conn) Peek(n int) ([]byte, error) {
	p, err := c.st.Peek(n)
	if err != nil && err != io.EOF {
		err = c.opError("read", err)
	}
	return p, err
}

// Discard takes n bytes off the stream and waits until so many have arrived. If
// it takes fewer, it returns how many, and why: io.EOF if the peer has ended
// before. It may be more than Peek returned.
func (c *Conn) Discard(n int) (int, error) {
	done, err := c.st.Discard(n)
	if err != nil && err != io.EOF {
		err = c.opError("read", err)
	}
	return done, err
}
