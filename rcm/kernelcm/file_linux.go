package kernelcm

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"golang.org/x/sys/unix"
)

// One descriptor of /dev/infiniband/rdma_cm serves all ids of the process. It
// is opened for the first id and closed after the last. One goroutine reads
// its events and hands each to the id that it is about; commands are given by
// whoever needs them, so that one that takes long holds up nobody's events.
// That goroutine itself only refuses requests, when more come than anybody
// looks at.
//
// Ids could be moved to descriptors of their own (MIGRATE_ID), as librdmacm
// does for programs that poll each connection by itself; with one reader there
// is nothing to gain from it.

// ucmPath is where udev and devtmpfs put the device.
const ucmPath = "/dev/infiniband/rdma_cm"

var ucm struct {
	sync.Mutex
	file    *ucmFile // guarded by the mutex; nil without ids
	lastUID uint64   // guarded by the mutex
}

// ucmFile is an open /dev/infiniband/rdma_cm.
type ucmFile struct {
	file *os.File // nonblocking, on the netpoller
	raw  syscall.RawConn
	// ids are the ids by uid, which is the number by which the kernel names
	// them in events; guarded by ucm. Once it is nil the file is done with.
	ids  map[uint64]*cmID
	lost error // why fail closed the file; guarded by ucm
}

// openUCM opens the device. The error wraps ErrNoRoute and says what to do.
func openUCM() (*ucmFile, error) {
	fd, err := unix.Open(ucmPath, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == unix.ENOENT && rdmahost.LoadConnectionManager() {
		fd, err = unix.Open(ucmPath, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	}
	switch err {
	case nil:
	case unix.ENOENT, unix.ENXIO, unix.ENODEV:
		return nil, fmt.Errorf("%w: %w", rcm.ErrNoRoute, openError(err, "modprobe rdma_ucm"))
	case unix.EACCES, unix.EPERM:
		return nil, fmt.Errorf("%w: %w", rcm.ErrNoRoute, openError(err, "udev gives it mode 0666; in a container, pass the device in"))
	default:
		return nil, openError(err, "")
	}
	f := &ucmFile{file: os.NewFile(uintptr(fd), ucmPath), ids: make(map[uint64]*cmID)}
	if f.raw, err = f.file.SyscallConn(); err != nil {
		f.file.Close()
		return nil, openError(err, "")
	}
	return f, nil
}

// openError adds what an administrator can do: what the limits of this host tell, or else the hint.
func openError(err error, hint string) error {
	err = &fs.PathError{Op: "open", Path: ucmPath, Err: err}
	if hint = cmp.Or(rdmahost.Explain(rdmahost.Failure{Op: "open", Err: err}), hint); hint != "" {
		err = fmt.Errorf("%w (%s)", err, hint)
	}
	return err
}

// register adds an id, whose kernel number may still be unknown. The caller
// holds ucm.
func (f *ucmFile) register(num uint32) *cmID {
	ucm.lastUID++ // never 0, which the kernel takes for "none yet"
	id := &cmID{file: f, uid: ucm.lastUID, num: num, ready: make(chan struct{}, 1)}
	f.ids[id.uid] = id
	return id
}

// unregister removes an id and closes the file after the last.
func (f *ucmFile) unregister(id *cmID) {
	ucm.Lock()
	delete(f.ids, id.uid)
	last := f.ids != nil && len(f.ids) == 0
	if last {
		f.ids = nil
		if ucm.file == f {
			ucm.file = nil
		}
	}
	ucm.Unlock()
	if last {
		// Close waits for the reader, whose goroutine this may be.
		go f.file.Close()
	}
}

// read hands out events until the file is closed.
func (f *ucmFile) read() {
	var fatal error
	// Ends with an error of the device or with close, by unregister or here.
	err := f.raw.Read(func(fd uintptr) bool {
		for {
			ev, err := getEvent(int(fd))
			switch {
			case err == nil:
				f.dispatch(ev)
			case err == unix.EAGAIN:
				return false
			case err == unix.EINTR || errors.Is(err, rcm.ErrMalformed):
			default:
				fatal = commandError(ucmGetEvent, err)
				return true
			}
		}
	})
	if fatal == nil {
		fatal = err
	}
	f.fail(fatal)
}

// dispatch gives an event to its id. An unknown uid is one of an id that was
// destroyed meanwhile. An id that a request brings has to be destroyed by us,
// whoever asked for it.
func (f *ucmFile) dispatch(ev cmEvent) {
	ucm.Lock()
	if f.ids == nil {
		ucm.Unlock()
		return // closing the file destroys the ids
	}
	to := f.ids[ev.uid]
	if ev.kind == eventConnectRequest {
		ev.conn = f.register(ev.id)
	}
	ucm.Unlock()
	switch {
	case to != nil:
		to.deliver(ev)
	case ev.conn != nil:
		go ev.conn.destroy()
	}
}

// fail gives up the file: its ids are told, and the next one opens another.
func (f *ucmFile) fail(err error) {
	ucm.Lock()
	ids := f.ids
	f.ids = nil
	if ucm.file == f {
		ucm.file = nil
	}
	if ids != nil {
		f.lost = err
	}
	ucm.Unlock()
	if ids == nil {
		return // closed by unregister
	}
	for _, id := range ids {
		id.deliver(cmEvent{kind: eventLost, lost: err})
	}
	f.file.Close()
}

// getEvent reads one event without waiting.
func getEvent(fd int) (cmEvent, error) {
	var response [eventSize]byte
	err := pinned(&response, func(addr uint64) error {
		return writeCommand(fd, ucmGetEvent, &ucmGetEventBody{response: addr}, eventSize)
	})
	if err != nil {
		return cmEvent{}, err
	}
	return parseEvent(response[:])
}

// command gives one command. out is how many bytes the response that body
// points to has room for. The error says what the command was, or why the
// descriptor was lost, and wraps the errno of either.
func command[B any](f *ucmFile, cmd ucmCommand, body *B, out uintptr) error {
	var err error
	if controlErr := f.raw.Control(func(fd uintptr) {
		err = writeCommand(int(fd), cmd, body, out)
		for err == unix.EINTR {
			err = writeCommand(int(fd), cmd, body, out)
		}
	}); controlErr != nil {
		return f.closed(cmd, controlErr)
	}
	if err != nil {
		return commandError(cmd, err)
	}
	return nil
}

// closed returns why a command found the file closed: what fail has told its ids,
// or err if unregister has closed it.
func (f *ucmFile) closed(cmd ucmCommand, err error) error {
	ucm.Lock()
	defer ucm.Unlock()
	if f.lost != nil {
		return f.lost
	}
	return commandError(cmd, err)
}

// writeCommand is the one place where a command goes to the kernel. The error
// is a bare errno.
func writeCommand[B any](fd int, cmd ucmCommand, body *B, out uintptr) error {
	frame := struct {
		header ucmHeader
		body   B
	}{ucmHeader{cmd: uint32(cmd), in: uint16(unsafe.Sizeof(*body)), out: uint16(out)}, *body}
	_, err := unix.Write(fd, unsafe.Slice((*byte)(unsafe.Pointer(&frame)), unsafe.Sizeof(frame)))
	return err
}

// pinned runs do with the address of p, which does not move meanwhile.
func pinned[T any](p *T, do func(addr uint64) error) error {
	var pin runtime.Pinner
	pin.Pin(p)
	defer pin.Unpin()
	return do(uint64(uintptr(unsafe.Pointer(p))))
}

func commandError(cmd ucmCommand, err error) error {
	if err != unix.EACCES || cmd == ucmBind { // BIND: a port below 1024, see bindError
		return fmt.Errorf("rdma_cm %v: %w", cmd, err)
	}
	other := ""
	if cmd == ucmResolveAddr {
		other = "a route forbids the address (ip route), or "
	}
	// The kernel takes commands only from threads with the very credentials
	// that the descriptor was opened with (ib_safe_file_access). After a setuid
	// in a running process each thread has credentials of its own.
	return fmt.Errorf("rdma_cm %v: %w (%sthe process has changed its credentials since it started: "+
		"start it as the user that it is to be, or let it execute itself again after setuid)", cmd, err, other)
}
