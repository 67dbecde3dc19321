package kernelcm

import (
	"context"
	"encoding/binary"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// The kernel gives the number of an id that was destroyed to the next one, at once: a CONNECT
// that comes after it would be that one's.
func TestNoConnectIsGivenAfterItsIDWasDestroyed(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // a busy machine
	for range 20 {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		require.NoError(t, err)
		f := &ucmFile{file: os.NewFile(uintptr(fds[0]), "rdma_cm"), ids: map[uint64]*cmID{}}
		kernel := os.NewFile(uintptr(fds[1]), "kernel")
		defer kernel.Close()
		f.raw, err = f.file.SyscallConn()
		require.NoError(t, err)
		ucm.Lock()
		f.register(1) // another one, that keeps the file open
		id := f.register(7)
		ucm.Unlock()
		defer f.file.Close()

		ctx, cancel := context.WithCancel(t.Context())
		cancel()                                   // while the caller prepares the QP, say
		_ = connectTCP(ctx, id, new(ucmConnParam)) // it may have been sent
		device{transport: verbs.TransportIWARP}.drop(id)

		var got []ucmCommand
		require.NoError(t, kernel.SetReadDeadline(time.Now().Add(cmtest.Timeout)))
		for len(got) == 0 || got[len(got)-1] != ucmDestroyID {
			b := make([]byte, 512)
			_, err := kernel.Read(b)
			require.NoError(t, err)
			got = append(got, ucmCommand(binary.NativeEndian.Uint32(b)))
		}
		time.Sleep(5 * time.Millisecond)
		require.NoError(t, kernel.SetReadDeadline(time.Now().Add(time.Millisecond)))
		b := make([]byte, 512)
		if _, err := kernel.Read(b); err == nil {
			got = append(got, ucmCommand(binary.NativeEndian.Uint32(b)))
		}
		require.Equal(t, ucmDestroyID, got[len(got)-1], "%v", got)
	}
}
