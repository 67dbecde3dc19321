package rnet

import (
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/stretchr/testify/require"
)

// The session to the listener that was there a moment ago is still in the pool, and
// may have a word of its end to read.
func TestDialAfterARestartLeadsToTheNewListener(t *testing.T) {
	address := closedAddress(t)
	negatives.Forget(address)
	for range times(300, 2000) {
		ln, err := Listen("tcp", address)
		require.NoError(t, err)
		echoed := hang.Start(t, func() {
			s, err := ln.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			var b [1]byte
			if _, err = s.Read(b[:]); err == nil {
				_, err = s.Write(b[:])
			}
			if err != nil {
				t.Error(err)
			}
		})
		c, err := (&Dialer{HeadStart: hang.Time}).Dial("tcp", address)
		require.NoError(t, err)
		require.IsType(t, (*Conn)(nil), c)
		require.NoError(t, c.SetDeadline(time.Now().Add(hang.Time)))
		_, err = c.Write([]byte("x"))
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1))
		require.NoError(t, err, "from the new listener")
		require.NoError(t, c.Close())
		require.NoError(t, ln.Close())
		echoed()
	}
}
