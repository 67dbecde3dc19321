package main

import (
	"bytes"
	"io"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/examples/internal/killtest"
	"github.com/seed-b9b531af/ramjet/examples/internal/programtest"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/stretchr/testify/require"
)

// TestMain lets the test program be the server process that the clients use.
func TestMain(m *testing.M) { programtest.Main(m, "-listen", main) }

func TestTwoProcessesExchangeMessagesAndRequests(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-n", "2000", "-requests", "200"}, &out))
	require.Contains(t, out.String(), "2000 messages published and received in")
	require.Contains(t, out.String(), "200 requests in")
	killtest.RequireTransport(t, out.String(), "transport: %s", rnet.Auto)
}

func TestMessagesAsLongAsNATSAllowsCome(t *testing.T) {
	require.NoError(t, run(t.Context(), []string{"-n", "20", "-requests", "20", "-body", "1048000"}, io.Discard))
}

func TestAnOrdinaryClientIsServedByTheSameListener(t *testing.T) {
	killtest.NeedTCP(t)
	server, err := child.Start(t.Context(), "-listen", "127.0.0.1:0")
	require.NoError(t, err)
	ordinary, err := nats.Connect("nats://" + server.Addr)
	require.NoError(t, err)
	c := client{addr: server.Addr, maxBody: 1000}
	fast, err := c.connect()
	require.NoError(t, err)
	require.NoError(t, c.answer(fast))
	require.NoError(t, c.request(t.Context(), ordinary))
	ordinary.Close()
	fast.Close()
	require.NoError(t, server.Stop())
}

func TestTheServerEndsAlthoughAClientStays(t *testing.T) {
	server, err := child.Start(t.Context(), "-listen", "127.0.0.1:0")
	require.NoError(t, err)
	c := client{addr: server.Addr}
	stays, err := c.connect(nats.NoReconnect())
	require.NoError(t, err)
	defer stays.Close()
	require.NoError(t, server.Stop())
}

func TestTheServerEndsAlthoughAClientDoesNotRead(t *testing.T) {
	server, err := child.Start(t.Context(), "-listen", "127.0.0.1:0")
	require.NoError(t, err)
	silent, err := rnet.Dial("tcp", server.Addr)
	require.NoError(t, err)
	defer silent.Close()
	_, err = io.WriteString(silent, "CONNECT {}\r\nSUB much 1\r\nPING\r\n")
	require.NoError(t, err)
	for said := make([]byte, 4096); !bytes.Contains(said, []byte("PONG")); { // it knows of the subscription
		_, err = silent.Read(said)
		require.NoError(t, err)
	}
	c := client{addr: server.Addr}
	loud, err := c.connect(nats.NoReconnect())
	require.NoError(t, err)
	defer loud.Close()
	for range 64 { // more than anybody keeps for the other
		require.NoError(t, loud.Publish("much", make([]byte, 512<<10)))
	}
	require.NoError(t, loud.Flush())
	require.NoError(t, server.Stop())
}

func TestNoServerIsAnError(t *testing.T) {
	require.ErrorContains(t, run(t.Context(), []string{"-dial", programtest.NobodysAddress(t)}, io.Discard), "no servers available")
}
