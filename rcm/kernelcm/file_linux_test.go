package kernelcm

import (
	"os"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
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
			require.Eventually(t, closed, cmtest.Timeout, time.Millisecond)

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
