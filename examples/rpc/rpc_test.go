package main

import (
	"bytes"
	"context"
	"io"
	"net/rpc"
	"testing"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/examples/internal/killtest"
	"github.com/seed-b9b531af/ramjet/examples/internal/programtest"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/stretchr/testify/require"
)

// TestMain lets the test program be the server process that the client
// starts.
func TestMain(m *testing.M) { programtest.Main(m, "-listen", main) }

func TestTwoProcessesMakeCalls(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-n", "500"}, &out))
	require.Contains(t, out.String(), "500 calls in")
	killtest.RequireTransport(t, out.String(), "transport: %s", rnet.Auto)
}

func TestArgumentsLargerThanAnyWindowComeBack(t *testing.T) {
	require.NoError(t, run(t.Context(), []string{"-n", "10", "-workers", "4", "-body", "4194304"}, io.Discard))
}

func TestAnOrdinaryClientIsServedByTheSameListener(t *testing.T) {
	killtest.NeedTCP(t)
	server, err := child.Start(t.Context(), "-listen", "127.0.0.1:0")
	require.NoError(t, err)
	ordinary, err := rpc.Dial("tcp", server.Addr)
	require.NoError(t, err)
	var got []byte
	require.NoError(t, ordinary.Call("Echo.Bytes", []byte("hello"), &got))
	require.Equal(t, "hello", string(got))
	require.NoError(t, ordinary.Close())
	require.NoError(t, server.Stop())
}

func TestTheServerEndsAlthoughAClientStays(t *testing.T) {
	server, err := child.Start(t.Context(), "-listen", "127.0.0.1:0")
	require.NoError(t, err)
	c := client{addr: server.Addr}
	stays, err := c.connect(t.Context())
	require.NoError(t, err)
	defer stays.Close()
	require.NoError(t, server.Stop())
}

func TestAnInterruptEndsTheClientAlthoughTheServerDoesNotRead(t *testing.T) {
	ln, err := rnet.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"-workers", "4", "-body", "16777216", "-dial", ln.Addr().String()}, io.Discard)
	}()
	conn, err := ln.Accept()
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Read(make([]byte, 1)) // of arguments for which there is no room anywhere
	require.NoError(t, err)
	interrupt()
	require.ErrorIs(t, hang.Receive(t, ended, "the client ends"), context.Canceled)
}

func TestNoServerIsAnError(t *testing.T) {
	require.ErrorContains(t, run(t.Context(), []string{"-dial", programtest.NobodysAddress(t)}, io.Discard), "refused")
}
