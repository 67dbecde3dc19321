package abi

import (
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// A doorbell is a command that is laid out once and handed to the kernel again
// and again: POST_SEND without requests, which tells the kernel to look at
// the send queue, and REQ_NOTIFY_CQ. Ringing it allocates nothing.
//
// It goes by write(2), which is cheaper than the ioctl, until the kernel
// refuses that because the credentials of the process have changed.
type Doorbell struct {
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

// NewDoorbell lays out a command. If it has an answer, it is of four bytes.
func (f *File) NewDoorbell(cmd Command, in []byte, answer bool) (Doorbell, error) {
	cell, err := f.bells.take()
	if err != nil {
		return Doorbell{}, err
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
	return Doorbell{file: f, cell: cell[: cellCommand+len(in) : CellSize], inline: len(in) <= inlineAttr}, nil
}

// SetWord changes the i-th word of the command.
func (b *Doorbell) SetWord(i int, value uint32) {
	*ViewAt[uint32](b.cell, cellCommand+4*i) = value
	if b.inline {
		copy(BytesOf(&ViewAt[IoctlAttr](b.cell, cellIoctl+IoctlHeaderSize).Data), b.cell[cellCommand:])
	}
}

// Ring hands the command to the kernel. The caller holds the lock under which
// the object is abandoned, so that the descriptor is open. It never sleeps;
// but rxe of kernels before 6.7, and siw, send the packets in it, which takes
// its time if they are many. brief says that they are not.
func (b *Doorbell) Ring(brief bool) error {
	if !b.file.bellByIoctl.Load() {
		err := b.write(brief)
		if err != unix.EACCES || b.file.ByWrite {
			return err
		}
		b.file.bellByIoctl.Store(true)
	}
	return ioctlPage(b.file.FD, b.cell)
}

// write does not go through unix.Write, which looks at more than it must, and
// if it is brief it does not tell the scheduler either: who is told of a system
// call gives others the chance to take the CPU's goroutines over.
func (b *Doorbell) write(brief bool) error {
	command := b.cell[cellHeader:]
	at, n := uintptr(unsafe.Pointer(unsafe.SliceData(command))), uintptr(len(command))
	for {
		var errno syscall.Errno
		if brief {
			_, _, errno = unix.RawSyscall(unix.SYS_WRITE, uintptr(b.file.FD), at, n)
		} else {
			_, _, errno = unix.Syscall(unix.SYS_WRITE, uintptr(b.file.FD), at, n)
		}
		if errno == 0 {
			return nil
		}
		if errno != unix.EINTR {
			return errno
		}
	}
}

func (b *Doorbell) Free() {
	if b.cell != nil {
		b.file.bells.give(b.cell[:CellSize])
		b.cell = nil
	}
}

// FreeDoorbells gives back the memory of all doorbells. None is rung any more.
func (f *File) FreeDoorbells() { f.bells.free() }

// cells is memory for doorbells of one device: mapped, so that it does not
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

// free returns all pages. No doorbell is rung any more.
func (c *cells) free() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pages {
		ReturnPage(p)
	}
	c.pages, c.idle, c.freed = nil, nil, true
}
