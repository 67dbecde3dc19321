//go:build amd64 || arm64

package cm_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/kernelcm"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/mlx5"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/modeltest"
)

// Who dials while a listener on all addresses comes to nothing, for another has one of them, is
// refused.
func TestAListenThatFailsRefusesWhoHasCome(t *testing.T) {
	if !modeltest.On(t, modeltest.Config{Device: mlx5.Config{Link: fabric.Ethernet}, Hosts: 2, Network: true}) {
		return
	}
	const long = 3 * time.Second
	if modeltest.Host() == 0 {
		f := kernelcm.New(kernelcm.Config{})
		l, err := f.Listen(netip.AddrPortFrom(netip.MustParseAddr("fd77::1"), served), rcm.ListenConfig{})
		require.NoError(t, err)
		defer l.Close()
		modeltest.Exchange(t, nil)
		for begin := time.Now(); time.Since(begin) < long; {
			_, err := f.Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), served), rcm.ListenConfig{})
			require.ErrorIs(t, err, unix.EADDRINUSE)
		}
		modeltest.Exchange(t, nil)
		return
	}
	modeltest.Exchange(t, nil)
	d := dialer{t, open(t), 0}
	for begin := time.Now(); time.Since(begin) < long-500*time.Millisecond; {
		d.resolve(netip.AddrPortFrom(first, served))
		d.request("")
		d.rejected(true)
		d.destroy()
	}
	modeltest.Exchange(t, nil)
}
