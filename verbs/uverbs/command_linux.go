package uverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// request is a command and its parts. in is the structure of the header with
// the address of the answer, if it has one, left 0; out is the answer. The
// driver's parts come behind both.
type request struct {
	cmd      command
	in, out  []byte
	extraIn  []byte
	extraOut []byte
}

// ioctlCommand is RDMA_VERBS_IOCTL (rdma/rdma_user_ioctl_cmds.h).
const ioctlCommand = 0xC0181B01

// The parts of a page. The write interface wants the driver's parts right
// behind the core's, and the ioctl interface takes them anywhere.
const (
	pageAttrs  = 0    // the ioctl header and attributes, or the write header before pageIn
	pageIn     = 512  // in, extraIn
	pageOut    = 2048 // out, extraOut
	pageAnswer = 3840 // what a driver answers through an address in extraIn
)

// command runs a command without a driver's part.
func (d *device) command(cmd command, in, out []byte) error {
	return d.run(&request{cmd: cmd, in: in, out: out})
}

// commandExtra runs a command with what the driver adds to it.
func (d *device) commandExtra(cmd command, in, out []byte, e extra) error {
	return d.run(&request{cmd: cmd, in: in, out: out, extraIn: e.in, extraOut: e.out})
}

// run runs a command. It ends when the kernel has done it; registering
// memory may take its time.
func (d *device) run(r *request) error {
	d.life.RLock()
	defer d.life.RUnlock()
	if d.closed {
		return verbs.ErrClosed
	}
	p, err := takePage()
	if err != nil {
		return err
	}
	defer returnPage(p)
	err = d.submit(p, r)
	if err != nil {
		return d.failed(r.cmd.String(), err)
	}
	return nil
}

// runOn lays the command out on a page and hands it to the kernel.
func (d *device) runOn(p []byte, r *request) error {
	if pageIn+len(r.in)+len(r.extraIn) > pageOut || pageOut+len(r.out)+len(r.extraOut) > pageAnswer {
		return fmt.Errorf("%w: command of %d and %d bytes", verbs.ErrInvalid, len(r.in)+len(r.extraIn), len(r.out)+len(r.extraOut))
	}
	copy(p[pageIn:], r.in)
	copy(p[pageIn+len(r.in):], r.extraIn)
	var err error
	if d.byWrite {
		err = d.write(p, r)
	} else {
		err = d.invokeWrite(p, r)
	}
	if err == nil {
		copy(r.out, p[pageOut:])
		copy(r.extraOut, p[pageOut+len(r.out):])
	}
	return err
}

// The object, method and attributes of INVOKE_WRITE
// (rdma/ib_user_ioctl_cmds.h).
const (
	objectDevice       = 0
	methodInvokeWrite  = 0
	attrCoreIn         = 0
	attrCoreOut        = 1
	attrWriteCommand   = 2
	attrDriverIn       = 0x1000
	attrDriverOut      = 0x1001
	attrFlagMandatory  = 1
	inlineAttr         = 8 // input of up to so many bytes lies in the attribute
	ioctlHeaderSize    = 24
	ioctlAttributeSize = 16
)

// invokeWrite runs the command through the INVOKE_WRITE ioctl.
func (d *device) invokeWrite(p []byte, r *request) error {
	call := ioctlCall{page: p, object: objectDevice, method: methodInvokeWrite}
	call.in(attrCoreIn, pageIn, len(r.in))
	if len(r.out) > 0 {
		call.out(attrCoreOut, pageOut, len(r.out))
	}
	call.constant(attrWriteCommand, uint64(r.cmd))
	if len(r.extraIn) > 0 {
		call.in(attrDriverIn, pageIn+len(r.in), len(r.extraIn))
	}
	if len(r.extraOut) > 0 {
		call.out(attrDriverOut, pageOut+len(r.out), len(r.extraOut))
	}
	return call.run(d)
}

// ioctlCall collects the attributes of a call of the ioctl interface at the
// beginning of a page.
type ioctlCall struct {
	page           []byte
	object, method uint16
	attrs          int
}

func (c *ioctlCall) add(a ioctlAttr) {
	a.flags = attrFlagMandatory
	*viewAt[ioctlAttr](c.page, pageAttrs+ioctlHeaderSize+c.attrs*ioctlAttributeSize) = a
	c.attrs++
}

// in adds n bytes at off of the page as input.
func (c *ioctlCall) in(id uint16, off, n int) {
	a := ioctlAttr{attrID: id, len: uint16(n)}
	if n <= inlineAttr {
		copy(bytesOf(&a.data), c.page[off:off+n])
	} else {
		a.data = addressOf(c.page[off:])
	}
	c.add(a)
}

// out adds n bytes at off of the page as room for an answer.
func (c *ioctlCall) out(id uint16, off, n int) {
	c.add(ioctlAttr{attrID: id, len: uint16(n), data: addressOf(c.page[off:])})
}

// constant adds a number of eight bytes.
func (c *ioctlCall) constant(id uint16, value uint64) {
	c.add(ioctlAttr{attrID: id, len: 8, data: value})
}

// handle adds a handle of an object, or a descriptor; 0 for one that the call
// makes.
func (c *ioctlCall) handle(id uint16, value uint64) {
	c.add(ioctlAttr{attrID: id, data: value})
}

// attr is what the kernel has left in the i-th attribute, for instance a new
// handle.
func (c *ioctlCall) attr(i int) uint64 {
	return viewAt[ioctlAttr](c.page, pageAttrs+ioctlHeaderSize+i*ioctlAttributeSize).data
}

func (c *ioctlCall) run(d *device) error {
	*viewAt[ioctlHeader](c.page, pageAttrs) = ioctlHeader{
		length: uint16(ioctlHeaderSize + c.attrs*ioctlAttributeSize), objectID: c.object, methodID: c.method,
		numAttrs: uint16(c.attrs), driverID: uint32(d.entry.DriverID),
	}
	return ioctlPage(d.fd, c.page)
}

// ioctlPage hands a page to the kernel. Syscall, not RawSyscall: a command may
// sleep.
func ioctlPage(fd int, page []byte) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), ioctlCommand, uintptr(unsafe.Pointer(unsafe.SliceData(page))))
		if errno == 0 {
			return nil
		}
		if errno != unix.EINTR {
			return errno
		}
	}
}

// write runs the command through write(2), for kernels before 5.0 and
// sandboxes that let no ioctl through. The kernel refuses it with EACCES if
// the process's credentials have changed since the descriptor was opened.
func (d *device) write(p []byte, r *request) error {
	from := writeHeader(p, r)
	end := pageIn + len(r.in) + len(r.extraIn)
	for {
		n, err := unix.Write(d.fd, p[from:end])
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n != end-from:
			return fmt.Errorf("kernel took %d of %d bytes", n, end-from)
		default:
			return nil
		}
	}
}

// writeHeader puts the header of the write interface before pageIn, and the
// address of the answer into it. It returns where the command begins.
func writeHeader(p []byte, r *request) int {
	answer := addressOf(p[pageOut:])
	if r.cmd&cmdExtended == 0 {
		if len(r.out) > 0 {
			binary.NativeEndian.PutUint64(p[pageIn:], answer)
		}
		from := pageIn - sizeOf[commandHeader]()
		*viewAt[commandHeader](p, from) = commandHeader{
			command:  uint32(r.cmd),
			inWords:  uint16((sizeOf[commandHeader]() + len(r.in) + len(r.extraIn)) / 4),
			outWords: uint16((len(r.out) + len(r.extraOut)) / 4),
		}
		return from
	}
	from := pageIn - sizeOf[commandHeader]() - sizeOf[extendedHeader]()
	*viewAt[commandHeader](p, from) = commandHeader{
		command: uint32(r.cmd), inWords: uint16(len(r.in) / 8), outWords: uint16(len(r.out) / 8),
	}
	*viewAt[extendedHeader](p, from+sizeOf[commandHeader]()) = extendedHeader{
		response: answer, driverInWords: uint16(len(r.extraIn) / 8), driverOutWords: uint16(len(r.extraOut) / 8),
	}
	return from
}

// noIoctl reports whether an error of the first command means that the ioctl
// interface is not there.
func noIoctl(err error) bool {
	return errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ENOSYS) ||
		errors.Is(err, unix.EPERM)
}
