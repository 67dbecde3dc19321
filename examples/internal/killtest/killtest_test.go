package killtest

import (
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/freeport"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/stretchr/testify/require"
)

func TestErrorsHaveTheirKind(t *testing.T) {
	for _, c := range []struct {
		err  error
		kind string
	}{
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, Refused},
		{&net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}, Reset},
		{fmt.Errorf("a library: %w", syscall.EPIPE), Reset},
		{fmt.Errorf("another: %v", syscall.ECONNRESET), Reset},
		{io.EOF, Ended},
		{fmt.Errorf("a library: %w", io.ErrUnexpectedEOF), Ended},
		{net.ErrClosed, Lost},
		{syscall.ETIMEDOUT, syscall.ETIMEDOUT.Error()},
	} {
		require.Equal(t, c.kind, Kind(c.err), "%v", c.err)
	}
}

func TestAnEndOverRamjetComesFromAProxy(t *testing.T) {
	require.NoError(t, noEnd(nil, false))
	require.NoError(t, noEnd([]string{Lost, Refused, Reset}, false))
	require.Error(t, noEnd([]string{Ended, Refused, Reset}, false))
	require.NoError(t, noEnd([]string{Ended, Refused, Reset}, true))
}

func TestKindsAgreeHoweverConnectionsAreLost(t *testing.T) {
	set := func(kinds ...string) map[string]bool {
		m := map[string]bool{}
		for _, k := range kinds {
			m[k] = true
		}
		return m
	}
	for name, c := range map[string]struct {
		tcp, fast map[string]bool
		agree     bool
	}{
		"the same":                     {set(Refused, Reset), set(Refused, Reset), true},
		"an end over TCP is a reset":   {set(Refused, Ended), set(Refused, Reset), true},
		"a proxy ends some":            {set(Lost, Reset), set(Lost, Reset, Ended), true},
		"nothing is lost over TCP":     {set(Refused), set(Refused, Reset), false},
		"nothing is refused by ramjet": {set(Refused, Reset), set(Reset), false},
		"another kind over ramjet":     {set(Refused), set(Refused, "timeout"), false},
		"another kind over TCP":        {set(Refused, "timeout"), set(Refused), false},
	} {
		if c.agree {
			require.NoError(t, agree(c.tcp, c.fast), name)
		} else {
			require.Error(t, agree(c.tcp, c.fast), name)
		}
	}
}

// A dial that found nobody and one that was refused have the same reason, and are told apart.
func TestDialsThatCameTooEarlyHaveConnected(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := ln.Addr().String()
	c, err := rnet.Dial("tcp", address)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.True(t, slices.ContainsFunc(rnet.Explain(address), connectedOnly))
	require.NoError(t, ln.Close())
	_, err = rnet.Dial("tcp", address)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.True(t, slices.ContainsFunc(rnet.Explain(address), connectedOnly), "the next one was refused")

	address, err = freeport.Address("127.0.0.1")
	require.NoError(t, err)
	_, err = rnet.Dial("tcp", address)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.False(t, slices.ContainsFunc(rnet.Explain(address), connectedOnly))
}
