package loopback_test

import (
	"io"
	"net"
	"testing"

	"github.com/seed-b9b531af/ramjet/examples/internal/loopback"
	"github.com/stretchr/testify/require"
)

func TestTheCounterOfANewNamespaceCountsTCPAndNothingElse(t *testing.T) {
	if !loopback.Alone(t) {
		return
	}
	require.Zero(t, loopback.Bytes(t))
	const size = 1 << 20
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	go func() {
		if conn, err := ln.Accept(); err == nil { // ended by the dial
			conn.Write(make([]byte, size))
			conn.Close()
		}
	}()
	conn, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	n, err := io.Copy(io.Discard, conn) // ended by Close
	require.NoError(t, err)
	require.EqualValues(t, size, n)
	require.InEpsilon(t, size, loopback.Bytes(t), 0.1)
}
