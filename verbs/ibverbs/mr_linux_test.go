//go:build amd64 || arm64

package ibverbs_test

import (
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/ibverbs"
)

// One region has all memory: Go's, and what is mapped after it was registered.
func TestAllMemoryIsRegisteredAtOnce(t *testing.T) {
	l := newLoop(t, ibverbs.ProviderName)
	pd := l.qp.PD()
	if !pd.Context().Attr().Caps.Has(verbs.CapRegisterAll) {
		_, err := pd.RegisterAll(verbs.AccessLocalWrite)
		require.ErrorIs(t, err, verbs.ErrUnsupported)
		t.Skip("the device does not page all memory")
	}
	pinned := verbs.PinnedBytes()
	all, err := pd.RegisterAll(verbs.AccessLocalWrite | verbs.AccessRemoteWrite)
	require.NoError(t, err)
	require.Equal(t, pinned, verbs.PinnedBytes())
	require.Nil(t, all.Bytes())
	_, err = pd.RegisterAll(verbs.AccessZeroBased)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.ErrorIs(t, all.Reregister(verbs.MRUpdate{}, verbs.MRChangeAccess), verbs.ErrUnsupported)

	mapped, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(mapped)) }()
	var held runtime.Pinner
	defer held.Unpin()
	message := []byte("of Go's heap")
	held.Pin(&message[0])
	if pd.Context().Attr().Caps.Has(verbs.CapAdviseMR) {
		require.NoError(t, pd.AdviseMR(verbs.AdvicePrefetch, []verbs.SGE{all.SGEOf(message), all.SGEOf(mapped)}))
	}
	_, err = l.qp.PostSend([]verbs.SendWR{{
		Opcode: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{all.SGEOf(message)},
		RemoteAddr: all.SGEOf(mapped).Addr, RKey: all.RKey(),
	}})
	require.NoError(t, err)
	l.drain(t, 1)
	require.Equal(t, message, mapped[:len(message)])

	_, err = l.qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{all.SGEOf(mapped[64:])}}})
	require.NoError(t, err)
	_, err = l.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{all.SGEOf(message)}}})
	require.NoError(t, err)
	l.drain(t, 2)
	require.Equal(t, message, mapped[64:][:len(message)])
	require.NoError(t, all.Close())
}
