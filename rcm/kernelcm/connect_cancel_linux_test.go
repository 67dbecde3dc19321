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

// kernelOfCommands is a kernel that does nothing, and gives out the commands that come to it.
type kernelOfCommands struct{ *os.File }

func newKernelOfCommands(t *testing.T) (*kernelOfCommands, *ucmFile) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	f := &ucmFile{file: os.NewFile(uintptr(fds[0]), "rdma_cm"), ids: map[uint64]*cmID{}}
	k := &kernelOfCommands{os.NewFile(uintptr(fds[1]), "kernel")}
	t.Cleanup(func() {
		k.Close()
		f.file.Close()
	})
	f.raw, err = f.file.SyscallConn()
	require.NoError(t, err)
	return k, f
}

// next returns the next command, if one comes in time.
func (k *kernelOfCommands) next(t *testing.T, within time.Duration) (cmd ucmCommand, ok bool) {
	t.Helper()
	require.NoError(t, k.SetReadDeadline(time.Now().Add(within)))
	b := make([]byte, 512)
	if _, err := k.Read(b); err != nil {
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		return 0, false
	}
	return ucmCommand(binary.NativeEndian.Uint32(b)), true
}

// aMoment is for a command that should not come.
const aMoment = 5 * time.Millisecond

// newID returns an id that is not the last one of its file, which so stays open.
func (f *ucmFile) newID() *cmID {
	ucm.Lock()
	defer ucm.Unlock()
	f.register(1)
	return f.register(7)
}

// The caller of a Connect that has failed closes its QP, whose number another one, of another
// program perhaps, has next: a CONNECT that comes after that would connect that one.
func TestNoConnectIsGivenAfterItsContextHasEnded(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // a busy machine
	for range 20 {
		kernel, f := newKernelOfCommands(t)
		id := f.newID()
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // while the caller prepares the QP, say
		require.ErrorIs(t, connectTCP(ctx, id, new(ucmConnParam)), context.Canceled)
		cmd, came := kernel.next(t, aMoment)
		require.False(t, came && cmd == ucmConnect, "CONNECT after the return")
		device{transport: verbs.TransportIWARP}.drop(id)
		cmd, _ = kernel.next(t, cmtest.Timeout)
		require.Equal(t, ucmDestroyID, cmd)
	}
}

// The kernel gives the number of an id that was destroyed to the next one, at once: a CONNECT
// that comes after it would be that one's.
func TestAnIDIsNotDestroyedBeforeItsConnectWasGiven(t *testing.T) {
	kernel, f := newKernelOfCommands(t)
	id := f.newID()
	begin := make(chan struct{})
	id.busy.Go(func() { // as connectTCP does
		<-begin
		_ = id.connect(new(ucmConnParam))
	})
	device{transport: verbs.TransportIWARP}.drop(id)
	cmd, came := kernel.next(t, aMoment)
	require.False(t, came, "%v", cmd)
	close(begin)
	for _, want := range []ucmCommand{ucmConnect, ucmDestroyID} {
		cmd, _ = kernel.next(t, cmtest.Timeout)
		require.Equal(t, want, cmd)
	}
}
