package abi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// File is an open descriptor of a device's node, as commands are handed to it.
type File struct {
	FD       int
	DriverID uint32 // of the device: it goes into the header of each ioctl
	ByWrite  bool   // commands go by write(2)

	prepared        cells       // memory for prepared commands
	preparedByIoctl atomic.Bool // write(2) is refused to them
}

// Submit lays a command out on a page and hands it to the kernel. An error of
// the kernel is an errno.
func (f *File) Submit(p []byte, r *Request) error {
	if PageIn+len(r.In)+len(r.UdataIn) > PageOut || PageOut+len(r.Out)+len(r.UdataOut) > commandPageSize {
		return fmt.Errorf("%w: command of %d and %d bytes", verbs.ErrInvalid, len(r.In)+len(r.UdataIn), len(r.Out)+len(r.UdataOut))
	}
	copy(p[PageIn:], r.In)
	copy(p[PageIn+len(r.In):], r.UdataIn)
	var err error
	if f.ByWrite {
		err = f.write(p, r)
	} else {
		err = f.invokeWrite(p, r)
	}
	if err == nil {
		copy(r.Out, p[PageOut:])
		copy(r.UdataOut, p[PageOut+len(r.Out):])
	}
	return err
}

// invokeWrite runs the command through the INVOKE_WRITE ioctl.
func (f *File) invokeWrite(p []byte, r *Request) error {
	call := Call{Page: p, Object: ObjectDevice, Method: methodInvokeWrite}
	call.In(attrCoreIn, PageIn, len(r.In))
	if len(r.Out) > 0 {
		call.Out(attrCoreOut, PageOut, len(r.Out))
	}
	call.Constant(attrWriteCommand, uint64(r.Cmd))
	if len(r.UdataIn) > 0 {
		call.In(attrDriverIn, PageIn+len(r.In), len(r.UdataIn))
	}
	if len(r.UdataOut) > 0 {
		call.Out(attrDriverOut, PageOut+len(r.Out), len(r.UdataOut))
	}
	return call.Run(f)
}

// write runs the command through write(2), for kernels before 5.0 and
// sandboxes that let no ioctl through. The kernel refuses it with EACCES if
// the process's credentials have changed since the descriptor was opened.
func (f *File) write(p []byte, r *Request) error {
	from := writeHeader(p, r)
	end := PageIn + len(r.In) + len(r.UdataIn)
	for {
		n, err := unix.Write(f.FD, p[from:end])
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

// writeHeader puts the header of the write interface before PageIn, and the
// address of the answer into it. It returns where the command begins.
func writeHeader(p []byte, r *Request) int {
	answer := AddressOf(p[PageOut:])
	if r.Cmd&cmdExtended == 0 {
		if len(r.Out) > 0 {
			binary.NativeEndian.PutUint64(p[PageIn:], answer)
		}
		from := PageIn - SizeOf[CommandHeader]()
		*ViewAt[CommandHeader](p, from) = CommandHeader{
			Command:  uint32(r.Cmd),
			InWords:  uint16((SizeOf[CommandHeader]() + len(r.In) + len(r.UdataIn)) / 4),
			OutWords: uint16((len(r.Out) + len(r.UdataOut)) / 4),
		}
		return from
	}
	from := PageIn - SizeOf[CommandHeader]() - SizeOf[extendedHeader]()
	*ViewAt[CommandHeader](p, from) = CommandHeader{
		Command: uint32(r.Cmd), InWords: uint16(len(r.In) / 8), OutWords: uint16(len(r.Out) / 8),
	}
	if len(r.Out)+len(r.UdataOut) == 0 {
		answer = 0 // or the kernel refuses the command
	}
	*ViewAt[extendedHeader](p, from+SizeOf[CommandHeader]()) = extendedHeader{
		Response: answer, DriverInWords: uint16(len(r.UdataIn) / 8), DriverOutWords: uint16(len(r.UdataOut) / 8),
	}
	return from
}

// NoIoctl reports whether an error of the first command means that the ioctl
// interface is not there.
func NoIoctl(err error) bool {
	return errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ENOSYS) ||
		errors.Is(err, unix.EPERM)
}
