package uverbs

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
type doorbell struct {
	file   *file
	cell   []byte // nil once freed
	inline bool   // the ioctl holds the command itself, not its address
}

// The parts of a cell: the ioctl, and the command with its header before it,
// which is what write(2) takes.
const (
	cellSize    = 128
	cellIoctl   = 0  // header and three attributes: 72 bytes
	cellHeader  = 72 // commandHeader
	cellCommand = 80
	cellAnswer  = 120
)

// newDoorbell lays out a command. If it has an answer, it is of four bytes.
func (f *file) newDoorbell(cmd command, in []byte, answer bool) (doorbell, error) {
	cell, err := f.bells.take()
	if err != nil {
		return doorbell{}, err
	}
	copy(cell[cellCommand:cellAnswer], in)
	outWords := 0
	call := ioctlCall{page: cell, object: objectDevice, method: methodInvokeWrite}
	call.in(attrCoreIn, cellCommand, len(in))
	if answer {
		call.out(attrCoreOut, cellAnswer, 4)
		*viewAt[uint64](cell, cellCommand) = addressOf(cell[cellAnswer:])
		outWords = 1
	}
	call.constant(attrWriteCommand, uint64(cmd))
	*viewAt[ioctlHeader](cell, cellIoctl) = ioctlHeader{
		length: uint16(ioctlHeaderSize + call.attrs*ioctlAttributeSize), objectID: call.object, methodID: call.method,
		numAttrs: uint16(call.attrs), driverID: f.driverID,
	}
	*viewAt[commandHeader](cell, cellHeader) = commandHeader{
		command: uint32(cmd), inWords: uint16((sizeOf[commandHeader]() + len(in)) / 4), outWords: uint16(outWords),
	}
	return doorbell{file: f, cell: cell[: cellCommand+len(in) : cellSize], inline: len(in) <= inlineAttr}, nil
}

// setWord changes the i-th word of the command.
func (b *doorbell) setWord(i int, value uint32) {
	*viewAt[uint32](b.cell, cellCommand+4*i) = value
	if b.inline {
		copy(bytesOf(&viewAt[ioctlAttr](b.cell, cellIoctl+ioctlHeaderSize).data), b.cell[cellCommand:])
	}
}

// ring hands the command to the kernel. The caller holds the lock under which
// the object is abandoned, so that the descriptor is open. It never sleeps;
// but rxe of kernels before 6.7, and siw, send the packets in it, which takes
// its time if they are many. brief says that they are not.
func (b *doorbell) ring(brief bool) error {
	if !b.file.bellByIoctl.Load() {
		err := b.write(brief)
		if err != unix.EACCES || b.file.byWrite {
			return err
		}
		b.file.bellByIoctl.Store(true)
	}
	return ioctlPage(b.file.fd, b.cell)
}

// write does not go through unix.Write, which looks at more than it must, and
// if it is brief it does not tell the scheduler either: who is told of a system
// call gives others the chance to take the CPU's goroutines over.
func (b *doorbell) write(brief bool) error {
	command := b.cell[cellHeader:]
	at, n := uintptr(unsafe.Pointer(unsafe.SliceData(command))), uintptr(len(command))
	for {
		var errno syscall.Errno
		if brief {
			_, _, errno = unix.RawSyscall(unix.SYS_WRITE, uintptr(b.file.fd), at, n)
		} else {
			_, _, errno = unix.Syscall(unix.SYS_WRITE, uintptr(b.file.fd), at, n)
		}
		if errno == 0 {
			return nil
		}
		if errno != unix.EINTR {
			return errno
		}
	}
}

func (b *doorbell) free() {
	if b.cell != nil {
		b.file.bells.give(b.cell[:cellSize])
		b.cell = nil
	}
}

// freeDoorbells gives back the memory of all doorbells. None is rung any more.
func (f *file) freeDoorbells() { f.bells.free() }

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
		p, err := takePage()
		if err != nil {
			return nil, err
		}
		c.pages = append(c.pages, p)
		for off := 0; off < commandPageSize; off += cellSize {
			c.idle = append(c.idle, p[off:off+cellSize:off+cellSize])
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
		returnPage(p)
	}
	c.pages, c.idle, c.freed = nil, nil, true
}
