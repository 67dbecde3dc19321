package rnet

import (
	"io"
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

// The ends of more streams than the peer has receives are not lost with the process, as those of
// TCP are not.
func TestAProcessMayExitRightAfterItHasClosedManyStreams(t *testing.T) {
	leak.Check(t)
	const streams = 3000
	ln := overSoft.listen(t)
	for range times(3, 20) {
		child := roles.Start(t, "closemany", ln.Addr().String(), strconv.Itoa(streams))
		conns := make([]net.Conn, streams)
		for i := range conns {
			c, err := ln.Accept()
			require.NoError(t, err)
			conns[i] = c
		}
		_, err := conns[0].Write([]byte("y")) // they may be closed now
		require.NoError(t, err)
		for i, c := range conns {
			got, err := io.ReadAll(c)
			require.NoError(t, err, "stream %d", i)
			require.Equal(t, "x", string(got))
			require.NoError(t, c.Close())
		}
		child.Stop()
	}
}

func init() {
	roles.Add("closemany", func(args []string) error {
		count, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		conns := make([]net.Conn, count)
		for i := range conns {
			if conns[i], err = overSoft.dialer().Dial("tcp", args[0]); err != nil {
				return err
			}
			if _, err := conns[i].Write([]byte("x")); err != nil {
				return err
			}
		}
		if _, err := conns[0].Read(make([]byte, 1)); err != nil {
			return err
		}
		for _, c := range conns {
			if err := c.Close(); err != nil {
				return err
			}
		}
		return nil // exits at once
	})
}
