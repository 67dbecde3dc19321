package rnet

import (
	"io"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/stretchr/testify/require"
)

func TestBytesGoRound(t *testing.T) {
	leak.Check(t)
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, s := k.pair(t)
		_, err := c.Write([]byte("ping"))
		require.NoError(t, err)
		buf := make([]byte, 4)
		_, err = io.ReadFull(s, buf)
		require.NoError(t, err)
		require.Equal(t, "ping", string(buf))
		_, err = s.Write([]byte("pong"))
		require.NoError(t, err)
		_, err = io.ReadFull(c, buf)
		require.NoError(t, err)
		require.Equal(t, "pong", string(buf))
	})
}
