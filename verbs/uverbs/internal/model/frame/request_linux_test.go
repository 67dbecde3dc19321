//go:build amd64 || arm64

package frame

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A command for whose answer there is no room is refused before it is carried out.
func TestACommandNeedsRoomForItsAnswer(t *testing.T) {
	const queryPort, createCQ, deallocatePD, queryDeviceEx = 2, 18, 4, 1
	self := Self()
	byIoctl := func(command uint32, extended bool, core []byte, room int) unix.Errno {
		if extended {
			command |= 1 << 31
		}
		answer := make([]byte, 256)
		b := make([]byte, ioctlHeader)
		for _, a := range []struct {
			id, size int
			data     uint64
		}{{attrCoreIn, len(core), addressOf(core)}, {attrCoreOut, room, addressOf(answer)}, {attrCommand, 8, uint64(command)}} {
			entry := make([]byte, ioctlAttribute)
			le.PutUint16(entry, uint16(a.id))
			le.PutUint16(entry[2:], uint16(a.size))
			le.PutUint64(entry[8:], a.data)
			if a.id == attrCoreIn && a.size <= inlineSize {
				copy(entry[8:], core)
			}
			b = append(b, entry...)
		}
		le.PutUint16(b, uint16(len(b)))
		le.PutUint16(b[6:], 3)
		c, errno := ParseIoctl(self, addressOf(b), 0, nil)
		require.Zero(t, errno)
		_, errno = requestOf(c)
		return errno
	}
	byWrite := func(command uint32, extended bool, core []byte, room int) unix.Errno {
		b := make([]byte, 8)
		le.PutUint32(b, command)
		unit, size := 4, len(b)+len(core)
		if extended {
			le.PutUint32(b, command|1<<31)
			unit, size = 8, len(core)
			b = append(le.AppendUint64(b, 1), make([]byte, 8)...)
		}
		le.PutUint16(b[4:], uint16(size/unit))
		le.PutUint16(b[6:], uint16(room/unit))
		_, errno := ParseWrite(self, append(b, core...))
		return errno
	}
	if err := self.Read(addressOf(make([]byte, 1)), make([]byte, 1)); errors.Is(err, unix.ENOSYS) {
		t.Skip("left out, as in emulators: ", err)
	}
	for _, test := range []struct {
		name       string
		command    uint32
		extended   bool
		core, room int // sizes of the request, and of its answer
	}{
		{"QUERY_PORT", queryPort, false, 16, 40}, {"CREATE_CQ", createCQ, false, 32, 8}, {"DEALLOC_PD", deallocatePD, false, 4, 0},
		{"QUERY_DEVICE", queryDeviceEx, true, 8, 184},
	} {
		core := make([]byte, test.core)
		for name, call := range map[string]func(uint32, bool, []byte, int) unix.Errno{"ioctl": byIoctl, "write": byWrite} {
			require.Zero(t, call(test.command, test.extended, core, test.room), "%s by %s", test.name, name)
			if test.room > 0 {
				require.Equal(t, unix.ENOSPC, call(test.command, test.extended, core, test.room-8), "%s by %s, with less room", test.name, name)
			}
		}
	}
}

// The kernel does not answer where the program may not write. /proc/PID/mem would.
func TestAnAnswerIsNotWrittenToProtectedMemory(t *testing.T) {
	room, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(room)) }()
	r := &Request{process: Self(), core: span{addressOf(room), 4}}
	require.Equal(t, unix.EFAULT, r.Answer([]byte{1, 2, 3, 4}, nil))
	require.Equal(t, make([]byte, 4), room[:4])
	require.NoError(t, unix.Mprotect(room, unix.PROT_READ|unix.PROT_WRITE))
	require.Zero(t, r.Answer([]byte{1, 2, 3, 4}, nil))
	require.Equal(t, []byte{1, 2, 3, 4}, room[:4])
}

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }
