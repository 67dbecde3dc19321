package samehost

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Requests of linux/fuse.h.
const (
	fuseGetattr = 3
	fuseInit    = 26
	fuseRelease = 18
	fusePoll    = 40

	fuseInHeader = 40
	// fuseInitOut is the size of struct fuse_init_out, fuseAttrOut of fuse_attr_out.
	fuseInitOut = 64
	fuseAttrOut = 104
)

// fuseFile is a file system that is a single file. It counts how often the kernel asks
// it whether the file is ready; its owner could take an hour for the answer.
type fuseFile struct {
	dev    int
	path   string
	polled atomic.Int32
}

// newFuseFile mounts one until the test ends. Without the rights the test is skipped.
func newFuseFile(t *testing.T) *fuseFile {
	t.Helper()
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("needs FUSE:", err)
	}
	f := &fuseFile{dev: dev, path: filepath.Join(t.TempDir(), "file")}
	require.NoError(t, os.WriteFile(f.path, nil, 0o600))
	options := fmt.Sprintf("fd=%d,rootmode=100600,user_id=%d,group_id=%d", dev, os.Getuid(), os.Getgid())
	if err := unix.Mount("none", f.path, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(dev)
		t.Skip("needs the rights to mount:", err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		f.serve() // ended by the unmount
	}()
	t.Cleanup(func() {
		require.NoError(t, unix.Unmount(f.path, unix.MNT_DETACH))
		<-served
		unix.Close(dev)
	})
	return f
}

func (f *fuseFile) serve() {
	request := make([]byte, 1<<17)
	for {
		n, err := unix.Read(f.dev, request)
		if err == unix.EINTR || err == unix.ENOENT { // the second: a request that was withdrawn
			continue
		}
		if err != nil || n < fuseInHeader {
			return
		}
		native := binary.NativeEndian
		errno, body := unix.Errno(0), []byte(nil)
		switch native.Uint32(request[4:]) {
		case fuseInit:
			body = make([]byte, fuseInitOut)
			native.PutUint32(body, 7)
			native.PutUint32(body[4:], 31)
			native.PutUint32(body[20:], 4096) // max_write
		case fuseGetattr:
			body = make([]byte, fuseAttrOut)
			native.PutUint64(body[16:], 1)           // ino
			native.PutUint32(body[16+60:], 0o100600) // mode
			native.PutUint32(body[16+64:], 1)        // nlink
		case fuseRelease:
		case fusePoll:
			f.polled.Add(1)
			body = make([]byte, 8)
		default:
			errno = unix.ENOSYS
		}
		answer := make([]byte, 16, 16+len(body))
		native.PutUint32(answer, uint32(16+len(body)))
		native.PutUint32(answer[4:], uint32(-int32(errno)))
		copy(answer[8:], request[8:16])
		unix.Write(f.dev, append(answer, body...))
	}
}

// To ask a file whether it is ready is to wait for whoever serves it. The netpoller
// does so for what it is given, and while it waits nobody else can use it.
func TestDescriptorsThatNobodyWantsAreNotPolled(t *testing.T) {
	f := newFuseFile(t)
	fd, err := unix.Open(f.path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	own := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	_, err = unix.Poll(own, 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, f.polled.Load(), "polls are counted")
	within(t, "CloseReceived", func() { CloseReceived(fd) })
	closed(t)
	require.EqualValues(t, 1, f.polled.Load())
}
