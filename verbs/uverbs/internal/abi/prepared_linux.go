package abi

import (
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// A PreparedCommand is laid out once and handed to the kernel again and again,
// which allocates nothing: POST_SEND without requests, which is the doorbell of
// a send queue, and REQ_NOTIFY_CQ.
//
// It goes by write(2), which is cheaper than the ioctl, until the kernel
// refuses that because the credentials of the process have changed.
type PreparedCommand struct {
	file   *File
	cell   []byte // nil once freed
	inline bool   // the ioctl holds the command itself, not its address
}

// The parts of a cell: the ioctl, and the command with its header before it,
// which is what write(2) takes.
const (
	CellSize    = 128
	cellIoctl   = 0  // header and three attributes: 72 bytes
	cellHeader  = 72 // CommandHeader
	cellCommand = 80
	cellAnswer  = 120
)

// Prepare lays out a command. If it has an answer, it is of four bytes.
func (f *File) Prepare(cmd Command, in []byte, answer bool) (PreparedCommand, error) {
	cell, err := f.prepared.take()
	if err != nil {
		return PreparedCommand{}, err
	}
	copy(cell[cellCommand:cellAnswer], in)
	outWords := 0
	call := Call{Page: cell, Object: ObjectDevice, Method: methodInvokeWrite}
	call.In(attrCoreIn, cellCommand, len(in))
	if answer {
		call.Out(attrCoreOut, cellAnswer, 4)
		*ViewAt[uint64](cell, cellCommand) = AddressOf(cell[cellAnswer:])
		outWords = 1
	}
	call.Constant(attrWriteCommand, uint64(cmd))
	*ViewAt[IoctlHeader](cell, cellIoctl) = IoctlHeader{
		Length: uint16(IoctlHeaderSize + call.attrs*IoctlAttributeSize), ObjectID: call.Object, MethodID: call.Method,
		NumAttrs: uint16(call.attrs), DriverID: f.DriverID,
	}
	*ViewAt[CommandHeader](cell, cellHeader) = CommandHeader{
		Command: uint32(cmd), InWords: uint16((SizeOf[CommandHeader]() + len(in)) / 4), OutWords: uint16(outWords),
	}
	return PreparedCommand{file: f, cell: cell[: cellCommand+len(in) : CellSize], inline: len(in) <= inlineAttr}, nil
}

// SetWord changes the i-th word of the command.
func (c *PreparedCommand) SetWord(i int, value uint32) {
	*ViewAt[uint32](c.cell, cellCommand+4*i) = value
	if c.inline {
		copy(BytesOf(&ViewAt[IoctlAttr](c.cell, cellIoctl+IoctlHeaderSize).Data), c.cell[cellCommand:])
	}
}

// Run hands the command to the kernel. The caller holds the lock under which
// the object is abandoned, so that the descriptor is open. It never sleeps;
// but rxe of kernels before 6.7, and siw, send the packets in it, which takes
// its time if they are many. brief says that they are not.
func (c *PreparedCommand) Run(brief bool) error {
	if !c.file.preparedByIoctl.Load() {
		err := c.write(brief)
		if err != unix.EACCES || c.file.ByWrite {
			return err
		}
		c.file.preparedByIoctl.Store(true)
	}
	return ioctlPage(c.file.FD, c.cell)
}

// write does not go through unix.Write, which looks at more than it must, and
// if it is brief it does not tell the scheduler either: who is told of a system
// call gives others the chance to take the CPU's goroutines over.
func (c *PreparedCommand) write(brief bool) error {
	command := c.cell[cellHeader:]
	at, n := uintptr(unsafe.Pointer(unsafe.SliceData(command))), uintptr(len(command))
	for {
		var errno syscall.Errno
		if brief {
			_, _, errno = unix.RawSyscall(unix.SYS_WRITE, uintptr(c.file.FD), at, n)
		} else {
			_, _, errno = unix.Syscall(unix.SYS_WRITE, uintptr(c.file.FD), at, n)
		}
		if errno == 0 {
			return nil
		}
		if errno != unix.EINTR {
			return errno
		}
	}
}

// Free gives the memory of the command back. It may be called more than once,
// and on the zero value.
func (c *PreparedCommand) Free() {
	if c.cell != nil {
		c.file.prepared.give(c.cell[:CellSize])
		c.cell = nil
	}
}

// FreePrepared gives back the memory of all prepared commands. None runs any more.
func (f *File) FreePrepared() { f.prepared.free() }

// cells is memory for the prepared commands of one device: mapped, so that it does not
// move, and cut into cells.
type cells struct {
	mu    sync.Mutex
	pages [][]byte // guarded by mu
	idle  [][]byte // guarded by mu
	freed bool     // guarded by mu
}

func (c *cells) take() ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.freed {
		return nil, verbs.ErrClosed
	}
	if len(c.idle) == 0 {
		p, err := TakePage()
		if err != nil {
			return nil, err
		}
		c.pages = append(c.pages, p)
		for off := 0; off < commandPageSize; off += CellSize {
			c.idle = append(c.idle, p[off:off+CellSize:off+CellSize])
		}
	}
	n := len(c.idle) - 1
	cell := c.idle[n]
	c.idle = c.idle[:n]
	clear(cell)
	return cell, nil
}

func (c *cells) give(cell []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.freed {
		c.idle = append(c.idle, cell)
	}
}

// free returns all pages. No command runs any more.
func (c *cells) free() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pages {
		ReturnPage(p)
	}
	c.pages, c.idle, c.freed = nil, nil, true
}
