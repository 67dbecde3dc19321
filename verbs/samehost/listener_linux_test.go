package samehost

import (
	"errors"
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestBoundIsCalledWhileTheNameIsHeldAndNobodyConnects(t *testing.T) {
	cfg := ListenConfig{Type: unix.SOCK_SEQPACKET, Backlog: 1, Name: "@ramjet-test/" + strconv.Itoa(os.Getpid()) + t.Name()}
	dial := func() error {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: cfg.Name, Net: "unixpacket"})
		if err == nil {
			c.Close()
		}
		return err
	}
	refusal := errors.New("not now")
	refused := cfg
	refused.Bound = func() error {
		require.ErrorIs(t, dial(), unix.ECONNREFUSED)
		_, err := Listen(cfg)
		require.ErrorIs(t, err, unix.EADDRINUSE)
		return refusal
	}
	_, err := Listen(refused)
	require.ErrorIs(t, err, refusal)
	l, err := Listen(cfg)
	require.NoError(t, err, "the name was kept")
	require.NoError(t, dial())
	require.NoError(t, l.Close())
}
