//go:build amd64 || arm64

package frame

import (
	"golang.org/x/sys/unix"
)

// A MethodID names a method of the ioctl interface of uverbs
// (include/uapi/rdma/ib_user_ioctl_cmds.h, and those of the drivers).
type MethodID struct{ Object, Method uint16 }

// A Kind says how an attribute of a method is passed.
type Kind int

// The kinds of attributes.
const (
	In        Kind = iota // data for the kernel
	Out                   // room for data of the kernel
	Object                // the handle of an object, or the descriptor that it is
	NewObject             // room for that of an object that the method makes
)

// An Attribute is what a method takes.
type Attribute struct {
	Kind     Kind
	Min, Max int  // size of the data; a Max of 0: any
	Grows    bool // more than Max is a newer program's, and must be zero (zero_trailing)
	Optional bool
	Destroys bool // the object: the method does (UVERBS_ACCESS_DESTROY)
}

// Methods are those that a device has besides INVOKE_WRITE, with their attributes by number.
type Methods map[MethodID]map[uint16]Attribute

// A Call is a method of the ioctl interface with the arguments that a program has passed.
// They are as its [Attribute] says. Its memory is the frame's.
type Call struct {
	MethodID
	process   *Process
	program   *Program
	id        uint64 // of the notification
	arguments map[uint16]argument
}

// An argument is a struct ib_uverbs_attr of the program.
type argument struct {
	at   uint64 // its address
	size int
	data uint64 // a handle, or an address
	in   []byte
}

// The ioctl of uverbs (include/uapi/rdma/rdma_user_ioctl_cmds.h), and its method that carries
// write commands.
const (
	verbsIoctl     = 0xc0181b01
	attrCoreIn     = 0
	attrCoreOut    = 1
	attrCommand    = 2
	attrDriverIn   = 0x1000
	attrDriverOut  = 0x1001
	mandatory      = 1 << 0
	validOutput    = 1 << 1
	ioctlHeader    = 24
	ioctlAttribute = 16
	inlineSize     = 8 // input of up to so many bytes is in the attribute
)

var (
	invokeWrite           = MethodID{0, 0}
	invokeWriteAttributes = map[uint16]Attribute{
		attrCoreIn: {Kind: In, Min: 4, Optional: true}, attrCoreOut: {Kind: Out, Optional: true},
		attrCommand:  {Kind: In, Min: 8, Max: 8},
		attrDriverIn: {Kind: In, Optional: true}, attrDriverOut: {Kind: Out, Optional: true},
	}
)

// ParseIoctl takes the buffer of RDMA_VERBS_IOCTL of a process apart, with the checks of
// drivers/infiniband/core/uverbs_ioctl.c. A method that is not there is EPROTONOSUPPORT, on
// which libibverbs takes the write command. The header names the driver (RDMA_DRIVER_*). Descriptors
// cannot be given for a call that is not a system call's.
func ParseIoctl(p *Process, addr uint64, driver uint32, methods Methods) (*Call, unix.Errno) {
	header := make([]byte, ioctlHeader)
	if p.Read(addr, header) != nil {
		return nil, unix.EFAULT // core/uverbs_ioctl.c, ib_uverbs_ioctl
	}
	length, count := int(le.Uint16(header)), int(le.Uint16(header[6:]))
	if length > 4096 || length != ioctlHeader+count*ioctlAttribute {
		return nil, unix.EINVAL // the same
	}
	c := &Call{MethodID: MethodID{le.Uint16(header[2:]), le.Uint16(header[4:])}, process: p, arguments: map[uint16]argument{}}
	attributes, ok := methods[c.MethodID]
	if c.MethodID == invokeWrite {
		attributes, ok = invokeWriteAttributes, true
	}
	switch {
	case le.Uint64(header[8:]) != 0 || le.Uint32(header[20:]) != 0:
		return nil, unix.EPROTONOSUPPORT // core/uverbs_ioctl.c, ib_uverbs_ioctl
	case le.Uint32(header[16:]) != driver:
		return nil, unix.EINVAL // core/uverbs_ioctl.c, ib_uverbs_cmd_verbs
	case !ok:
		return nil, unix.EPROTONOSUPPORT // the same
	}
	given := make([]byte, count*ioctlAttribute)
	if p.Read(addr+ioctlHeader, given) != nil {
		return nil, unix.EFAULT // core/uverbs_ioctl.c, ib_uverbs_run_method
	}
	for i := range count {
		if errno := c.take(attributes, given[i*ioctlAttribute:], addr+uint64(ioctlHeader+i*ioctlAttribute)); errno != 0 {
			return nil, errno
		}
	}
	for id, a := range attributes {
		if _, ok := c.arguments[id]; !ok && !a.Optional {
			return nil, unix.EINVAL // the same
		}
	}
	return c, 0
}

// take checks an argument (uverbs_set_attr and uverbs_process_attr).
func (c *Call) take(attributes map[uint16]Attribute, b []byte, at uint64) unix.Errno {
	id := le.Uint16(b)
	a, ok := attributes[id]
	if !ok {
		if le.Uint16(b[4:])&mandatory != 0 {
			return unix.EPROTONOSUPPORT // core/uverbs_ioctl.c, uverbs_set_attr
		}
		return 0
	}
	if _, twice := c.arguments[id]; twice || le.Uint16(b[6:]) != 0 {
		return unix.EINVAL // core/uverbs_ioctl.c, uverbs_set_attr; core/uverbs_ioctl.c, uverbs_process_attr
	}
	v := argument{at: at, size: int(le.Uint16(b[2:])), data: le.Uint64(b[8:])}
	switch {
	case a.Kind == Object || a.Kind == NewObject:
		if v.size != 0 {
			return unix.EINVAL // core/uverbs_ioctl.c, uverbs_process_attr
		}
		if a.Kind == Object && v.data>>32 != 0 {
			return unix.ENOENT // core/rdma_core.c, lookup_get_idr_uobject: no handle is so large
		}
	case v.size < a.Min || a.Max != 0 && v.size > a.Max && !a.Grows:
		return unix.EINVAL // core/uverbs_ioctl.c, uverbs_process_attr
	case a.Kind == In && v.size <= inlineSize:
		v.in = append([]byte(nil), b[8:8+v.size]...)
	case a.Kind == In:
		v.in = make([]byte, v.size)
		if c.process.Read(v.data, v.in) != nil {
			return unix.EFAULT // the same
		}
	}
	if a.Max != 0 && v.size > a.Max {
		for _, x := range v.in[min(a.Max, len(v.in)):] {
			if x != 0 {
				return unix.EOPNOTSUPP // the same
			}
		}
	}
	c.arguments[id] = v
	return 0
}

// Request returns the request of a command that does the same as the method: its struct is given,
// and the driver's part is that of the call.
func (c *Call) Request(core []byte) *Request {
	return &Request{Core: core, Driver: c.In(attrDriverIn), process: c.process, program: c.program, id: c.id,
		driver: c.room(attrDriverOut), call: c}
}

// Driver adds the driver's parts to the attributes of a method (UVERBS_ATTR_UHW).
func Driver(attributes map[uint16]Attribute) map[uint16]Attribute {
	attributes[attrDriverIn] = Attribute{Kind: In, Optional: true}
	attributes[attrDriverOut] = Attribute{Kind: Out, Optional: true}
	return attributes
}

// Give copies a descriptor of this process to the program, and returns its number there.
func (c *Call) Give(fd int) (int, unix.Errno) {
	if c.program == nil {
		return 0, unix.EINVAL // the model gives descriptors to programs alone
	}
	return c.program.give(c.id, fd, -1)
}

// Has says whether an argument was passed.
func (c *Call) Has(id uint16) bool {
	_, ok := c.arguments[id]
	return ok
}

// Process returns the process whose call it is.
func (c *Call) Process() *Process { return c.process }

// In returns the data of an argument, nil if it was not passed.
func (c *Call) In(id uint16) []byte { return c.arguments[id].in }

// Uint64 returns an argument that is a number of at most 8 bytes.
func (c *Call) Uint64(id uint16) uint64 {
	var b [8]byte
	copy(b[:], c.In(id))
	return le.Uint64(b[:])
}

// Handle returns the handle of an object.
func (c *Call) Handle(id uint16) uint32 { return uint32(c.arguments[id].data) }

// Room returns the size of the room that the program has for an answer.
func (c *Call) Room(id uint16) int { return c.arguments[id].size }

func (c *Call) room(id uint16) span { return span{c.arguments[id].data, c.arguments[id].size} }

// Answer writes an answer for which the program must have room, if it has asked for it
// (uverbs_copy_to).
func (c *Call) Answer(id uint16, b []byte) unix.Errno {
	v, ok := c.arguments[id]
	if !ok {
		return 0
	}
	if c.process.Answer(v.data, b[:min(len(b), v.size)]) != nil {
		return unix.EFAULT // core/uverbs_ioctl.c, uverbs_copy_to
	}
	return c.valid(v)
}

// valid marks an argument as written (uverbs_set_output).
func (c *Call) valid(v argument) unix.Errno {
	var flags [2]byte
	if c.process.Read(v.at+4, flags[:]) != nil {
		return unix.EFAULT // core/uverbs_ioctl.c, uverbs_set_output
	}
	flags[0] |= validOutput
	if c.process.Answer(v.at+4, flags[:]) != nil {
		return unix.EFAULT // the same
	}
	return 0
}

// AnswerHandle gives the program the handle of an object that was made.
func (c *Call) AnswerHandle(id uint16, handle uint32) unix.Errno {
	if c.process.Answer(c.arguments[id].at+8, le.AppendUint64(nil, uint64(handle))) != nil {
		return unix.EFAULT // core/uverbs_ioctl.c, uverbs_process_attr
	}
	return 0
}
