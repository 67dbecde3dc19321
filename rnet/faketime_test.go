package rnet_test

import (
	"context"
	"io"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet"
)

// Dials in a bubble end with the bubble, as those of package net do. A session
// that lived on in it would keep it from ending.
func TestDialsInASynctestBubbleEndWithIt(t *testing.T) {
	outside, err := rnet.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer outside.Close()
	go func() {
		for {
			c, err := outside.Accept() // ended by Close
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		inside, err := rnet.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer inside.Close()
		go func() {
			c, err := inside.Accept() // ended by the dial below
			if err == nil {
				io.Copy(c, c)
				c.Close()
			}
		}()
		for _, addr := range []string{outside.Addr().String(), inside.Addr().String()} {
			c, err := (&rnet.Dialer{}).DialContext(context.Background(), "tcp", addr)
			require.NoError(t, err)
			_, err = c.Write([]byte("hello"))
			require.NoError(t, err)
			_, err = io.ReadFull(c, make([]byte, 5))
			require.NoError(t, err)
			require.NoError(t, c.Close())
			decisions := rnet.Explain(addr)
			require.Equal(t, "fake-time", decisions[len(decisions)-1].Reason)
		}
	})
}
