package rdmahost

import (
	"bytes"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// RemovalWatch sees the removal of a device. The kernel does not tell those
// who have opened a device of a driver like rxe or siw: it takes the device's
// node away, and then waits until they have closed it. What everybody is told
// is the change in sysfs, by netlink ("uevents",
// Documentation/core-api/kobject.rst).
type RemovalWatch struct {
	node string // "uverbs0"
	file *os.File
}

// WatchRemoval begins to listen. It returns nil where that is not allowed; the
// removal then shows only at the connection manager, and by errors.
func WatchRemoval(node string) *RemovalWatch {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil
	}
	const kernelGroup = 1
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup}); err != nil {
		unix.Close(fd)
		return nil
	}
	return &RemovalWatch{node: node, file: os.NewFile(uintptr(fd), "device events")}
}

// Wait returns true when the device is removed, and false after close.
func (w *RemovalWatch) Wait() bool {
	if w.missing() {
		return true // before we listened
	}
	conn, err := w.file.SyscallConn()
	if err != nil {
		return false
	}
	buf := make([]byte, 8192)
	for {
		var n int
		var from unix.Sockaddr
		var got error
		// Ends with a message or with close.
		err := conn.Read(func(fd uintptr) bool {
			n, from, got = unix.Recvfrom(int(fd), buf, 0)
			return !errors.Is(got, unix.EAGAIN)
		})
		switch {
		case err != nil:
			return false
		case errors.Is(got, unix.ENOBUFS): // messages were lost
			if w.missing() {
				return true
			}
		case got != nil && !errors.Is(got, unix.EINTR):
			return false
		case got == nil && fromKernel(from) && isRemoval(buf[:n], w.node):
			return true
		}
	}
}

func fromKernel(from unix.Sockaddr) bool {
	sa, ok := from.(*unix.SockaddrNetlink)
	return ok && sa.Pid == 0
}

// isRemoval reads "remove@/devices/virtual/infiniband_verbs/uverbs0", which
// ends with a zero byte.
func isRemoval(message []byte, node string) bool {
	head, _, _ := bytes.Cut(message, []byte{0})
	path, ok := bytes.CutPrefix(head, []byte("remove@"))
	return ok && bytes.HasSuffix(path, []byte("/infiniband_verbs/"+node))
}

// missing reports whether the device is gone already.
func (w *RemovalWatch) missing() bool { return thisHost.lacks(w.node) }

// lacks reports whether sysfs shows that there is no such device. A process may have no sysfs, as
// in a chroot. The class is there as long as anybody has a device open.
func (h host) lacks(node string) bool {
	if _, err := fs.Stat(h.FS, classVerbs); err != nil {
		return false
	}
	_, err := h.text(classVerbs, node, "dev")
	return errors.Is(err, fs.ErrNotExist)
}

// Close ends the watch, and a wait that runs.
func (w *RemovalWatch) Close() { w.file.Close() }
