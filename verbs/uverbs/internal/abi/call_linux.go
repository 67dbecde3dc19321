package abi

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Call collects the attributes of a call of the ioctl interface at the
// beginning of a page.
type Call struct {
	Page           []byte
	Object, Method uint16
	attrs          int
}

// Add adds an attribute.
func (c *Call) Add(a IoctlAttr) {
	a.Flags = attrFlagMandatory
	*ViewAt[IoctlAttr](c.Page, pageAttrs+IoctlHeaderSize+c.attrs*IoctlAttributeSize) = a
	c.attrs++
}

// In adds n bytes at off of the page as input.
func (c *Call) In(id uint16, off, n int) {
	a := IoctlAttr{AttrID: id, Len: uint16(n)}
	if n <= inlineAttr {
		copy(BytesOf(&a.Data), c.Page[off:off+n])
	} else {
		a.Data = AddressOf(c.Page[off:])
	}
	c.Add(a)
}

// Out adds n bytes at off of the page as room for an answer.
func (c *Call) Out(id uint16, off, n int) {
	c.Add(IoctlAttr{AttrID: id, Len: uint16(n), Data: AddressOf(c.Page[off:])})
}

// Constant adds a number of eight bytes.
func (c *Call) Constant(id uint16, value uint64) {
	c.Add(IoctlAttr{AttrID: id, Len: 8, Data: value})
}

// Handle adds a handle of an object, or a descriptor; 0 for one that the call
// makes.
func (c *Call) Handle(id uint16, value uint64) {
	c.Add(IoctlAttr{AttrID: id, Data: value})
}

// Attr is what the kernel has left in the i-th attribute, for instance a new
// handle.
func (c *Call) Attr(i int) uint64 {
	return ViewAt[IoctlAttr](c.Page, pageAttrs+IoctlHeaderSize+i*IoctlAttributeSize).Data
}

// Run hands the call to the kernel. The error is an errno.
func (c *Call) Run(f *File) error {
	*ViewAt[IoctlHeader](c.Page, pageAttrs) = IoctlHeader{
		Length: uint16(IoctlHeaderSize + c.attrs*IoctlAttributeSize), ObjectID: c.Object, MethodID: c.Method,
		NumAttrs: uint16(c.attrs), DriverID: f.DriverID,
	}
	return ioctlPage(f.FD, c.Page)
}

// ioctlCommand is RDMA_VERBS_IOCTL (rdma/rdma_user_ioctl_cmds.h).
const ioctlCommand = 0xC0181B01

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
