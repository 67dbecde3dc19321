package rnet

import "github.com/seed-b9b531af/ramjet/rnet/internal/mux"

// MaxReserve is the largest n of Reserve, in bytes: 262,144.
const MaxReserve = mux.MaxReserve

// Reserve returns n bytes of registered memory, at most MaxReserve, to be
// filled and then sent by Commit, without a copy of ours: the device sends
// them from where they lie. It waits until the device has done so with what
// was committed before. The memory stays the connection's: it must not be
// used after Commit or the next Reserve. Until then it is valid, whatever happens
// meanwhile: a Close by another goroutine and the end of the session leave it
// where it is. One goroutine at a time may use the two. The first Reserve of a
// connection registers MaxReserve bytes, which count as pinned memory until Close,
// or if there is nothing committed of the last Reserve then, until the next call
// of the two or until nothing refers to the connection any more: keep the
// connection as long as the memory. It fails if they cannot be had.
func (c *Conn) Reserve(n int) ([]byte, error) {
	p, err := c.st.Reserve(n)
	if err != nil {
		return nil, c.opError("write", err)
	}
	return p, nil
}

// Commit sends the first n bytes of what Reserve returned, 0 to all of them.
// Each Reserve allows one Commit. It blocks as Write does; if it fails some of
// the bytes may be on their way, and it does not tell how many.
func (c *Conn) Commit(n int) error {
	if err := c.st.Commit(n); err != nil {
		return c.opError("write", err)
	}
	return nil
}
