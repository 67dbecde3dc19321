package uverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
	"golang.org/x/sys/unix"
)

// file is an open descriptor of a device's node, as commands are handed to it.
type file struct {
	fd       int
	driverID uint32 // of the device: it goes into the header of each ioctl
	byWrite  bool   // commands go by write(2)

	bells       cells       // memory for doorbells
	bellByIoctl atomic.Bool // write(2) is refused
}

// submit lays a command out on a page and hands it to the kernel. An error of
// the kernel is an errno.
func (f *file) submit(p []byte, r *request) error {
	if pageIn+len(r.in)+len(r.extraIn) > pageOut || pageOut+len(r.out)+len(r.extraOut) > commandPageSize {
		return fmt.Errorf("%w: command of %d and %d bytes", verbs.ErrInvalid, len(r.in)+len(r.extraIn), len(r.out)+len(r.extraOut))
	}
	copy(p[pageIn:], r.in)
	copy(p[pageIn+len(r.in):], r.extraIn)
	var err error
	if f.byWrite {
		err = f.write(p, r)
	} else {
		err = f.invokeWrite(p, r)
	}
	if err == nil {
		copy(r.out, p[pageOut:])
		copy(r.extraOut, p[pageOut+len(r.out):])
	}
	return err
}

// invokeWrite runs the command through the INVOKE_WRITE ioctl.
func (f *file) invokeWrite(p []byte, r *request) error {
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
	return call.run(f)
}

// write runs the command through write(2), for kernels before 5.0 and
// sandboxes that let no ioctl through. The kernel refuses it with EACCES if
// the process's credentials have changed since the descriptor was opened.
func (f *file) write(p []byte, r *request) error {
	from := writeHeader(p, r)
	end := pageIn + len(r.in) + len(r.extraIn)
	for {
		n, err := unix.Write(f.fd, p[from:end])
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
