package uverbs

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

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

// run hands the call to the kernel. The error is an errno.
func (c *ioctlCall) run(f *file) error {
	*viewAt[ioctlHeader](c.page, pageAttrs) = ioctlHeader{
		length: uint16(ioctlHeaderSize + c.attrs*ioctlAttributeSize), objectID: c.object, methodID: c.method,
		numAttrs: uint16(c.attrs), driverID: f.driverID,
	}
	return ioctlPage(f.fd, c.page)
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
