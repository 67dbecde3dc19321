package rcm

import (
	"encoding/binary"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A command that another goroutine's denial overtakes says what that one said.
func TestACommandSaysWhyItsDescriptorWasLost(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(f *ucmFile, id *cmID)
		want error
	}{
		"the reader was denied":     {func(f *ucmFile, _ *cmID) { f.fail(unix.EACCES) }, unix.EACCES},
		"after the last of its ids": {func(f *ucmFile, id *cmID) { f.unregister(id) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r, w, err := os.Pipe()
			require.NoError(t, err)
			defer w.Close()
			f := &ucmFile{file: r, ids: map[uint64]*cmID{}}
			f.raw, err = r.SyscallConn()
			require.NoError(t, err)
			ucm.Lock()
			id := f.register(1)
			ucm.Unlock()
			c.end(f, id)
			closed := func() bool { return f.raw.Control(func(uintptr) {}) != nil }
			require.Eventually(t, closed, patience, time.Millisecond)

			err = command(f, ucmDestroyID, &ucmDestroyIDBody{}, 4)
			require.Error(t, err)
			if c.want != nil {
				require.ErrorIs(t, err, c.want)
			} else {
				require.ErrorContains(t, err, "DESTROY_ID")
			}
		})
	}
}

// The kernel gives the number of an id that is destroyed to the next one.
func TestNoCommandNamesAnIDThatWasDestroyed(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	kernel := os.NewFile(uintptr(fds[1]), "kernel")
	defer kernel.Close()
	f := &ucmFile{file: os.NewFile(uintptr(fds[0]), "rdma_cm"), ids: map[uint64]*cmID{}}
	defer f.file.Close()
	f.raw, err = f.file.SyscallConn()
	require.NoError(t, err)
	ucm.Lock()
	other, id := f.register(2), f.register(1)
	ucm.Unlock()
	heard := func() ucmCommand {
		var b [256]byte
		require.NoError(t, kernel.SetReadDeadline(time.Now().Add(patience)))
		_, err := kernel.Read(b[:]) // ends with a command
		require.NoError(t, err)
		return ucmCommand(binary.NativeEndian.Uint32(b[:]))
	}
	id.destroy()
	id.destroy()
	require.Equal(t, ucmDestroyID, heard())
	require.ErrorIs(t, id.disconnect(), unix.ENOENT)
	require.ErrorIs(t, id.listen(1), unix.ENOENT)
	_, err = id.query()
	require.ErrorIs(t, err, unix.ENOENT)
	require.NoError(t, other.disconnect())
	require.Equal(t, ucmDisconnect, heard(), "and none before it")
}
