//go:build amd64 || arm64

package frame

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// A Request is a uverbs command (include/uapi/rdma/ib_user_verbs.h) without the
// framing of the system call that brought it. Its memory is the frame's.
type Request struct {
	Command  uint32 // IB_USER_VERBS_CMD_*
	Extended bool   // IB_USER_VERBS_EX_CMD_*
	Core     []byte // the request struct, with its u64 response if it has one
	Driver   []byte // what the provider added

	process    *Process
	program    *Program
	id         uint64 // of the notification
	core       span
	driver     span
	contiguous bool  // write(2): the driver's answer follows the core's, whatever that has room for
	call       *Call // whose request it is, if it is none of a command; the core's answer is kept then
	answered   []byte
}

type span struct {
	addr uint64
	size int
}

// Process returns the process whose command it is.
func (r *Request) Process() *Process { return r.process }

// Answer writes the response: the core's struct and the provider's part. Both are cut
// to the room that the program gave.
func (r *Request) Answer(core, driver []byte) unix.Errno {
	if r.call != nil {
		r.answered = core
		return r.call.Answer(attrDriverOut, driver)
	}
	if r.contiguous {
		core, driver = append(append([]byte(nil), core...), driver...), nil
	}
	if r.process.Answer(r.core.addr, core[:min(len(core), r.core.size)]) != nil ||
		r.process.Answer(r.driver.addr, driver[:min(len(driver), r.driver.size)]) != nil {
		return unix.EFAULT // core/uverbs_cmd.c, uverbs_response; core/uverbs_ioctl.c, uverbs_copy_to
	}
	return 0
}

// DriverRoom returns how many bytes of the provider's answer the program has room for, if
// that of the core has so many.
func (r *Request) DriverRoom(core int) int {
	if r.contiguous {
		return max(r.core.size-core, 0)
	}
	return r.driver.size
}

// Answered returns what the core's part of the answer to [Call.Request] was.
func (r *Request) Answered() []byte { return r.answered }

// Give copies a descriptor of this process to the program, and returns its number there.
func (r *Request) Give(fd int) (int, unix.Errno) {
	if r.program == nil {
		return 0, unix.EINVAL // the model gives descriptors to programs alone
	}
	return r.program.give(r.id, fd, -1)
}

// sizes of the request structs, without the header: what follows is the provider's.
var coreSize = map[uint32]int{
	0: 8, 1: 8, 2: 16, 3: 8, 4: 4, 5: 56, 8: 4, 9: 40, 11: 48, 13: 4, 14: 16, 16: 4, 17: 8, 18: 32, 19: 16, 20: 16,
	24: 56, 25: 16, 26: 112, 27: 16, 30: 24, 31: 24, 32: 32, 33: 16, 34: 16, 35: 16, 37: 16, 38: 4, 39: 48, 40: 32,
}

// sizes of the response structs, without what is the provider's: a command that has
// less room is refused.
var (
	answerSize = map[uint32]int{
		0: 8, 1: 176, 2: 40, 3: 4, 5: 4, 9: 12, 11: 8, 14: 8, 17: 4, 18: 8, 19: 8, 20: 8,
		24: 32, 25: 128, 27: 4, 32: 16, 34: 16, 35: 4, 37: 4, 39: 16, 40: 32,
	}
	extendedAnswerSize = map[uint32]int{1: 184} // through response_length
)

// noAnswer are the commands whose request struct does not begin with a u64 response.
var noAnswer = map[uint32]bool{4: true, 8: true, 13: true, 16: true, 26: true, 30: true, 31: true, 33: true, 38: true}

var le = binary.LittleEndian

// ParseWrite takes the bytes of a write(2) by a process apart
// (drivers/infiniband/core/uverbs_main.c, verify_hdr and ib_uverbs_write). Descriptors cannot
// be given for a request that is not a system call's.
func ParseWrite(p *Process, b []byte) (*Request, unix.Errno) {
	const extended = 1 << 31
	if len(b) < 8 {
		return nil, unix.EINVAL // core/uverbs_main.c, ib_uverbs_write
	}
	r := &Request{process: p, Command: le.Uint32(b) &^ (0xff << 24), Extended: le.Uint32(b)&extended != 0}
	in, out := int(le.Uint16(b[4:])), int(le.Uint16(b[6:]))
	if le.Uint32(b)&(0x7f<<24) != 0 {
		return nil, unix.EINVAL // core/rdma_core.h, uapi_get_method
	}
	if r.Extended {
		if len(b) < 24 || le.Uint32(b[20:]) != 0 {
			return nil, unix.EINVAL // core/uverbs_main.c, ib_uverbs_write; core/uverbs_main.c, verify_hdr
		}
		driverIn, driverOut := int(le.Uint16(b[16:])), int(le.Uint16(b[18:]))
		if len(b) != 24+(in+driverIn)*8 {
			return nil, unix.EINVAL // core/uverbs_main.c, verify_hdr
		}
		answer := le.Uint64(b[8:])
		if (answer == 0) != (out+driverOut == 0) {
			return nil, unix.EINVAL // the same
		}
		r.Core, r.Driver = b[24:24+in*8], b[24+in*8:]
		if answer != 0 && out*8 < extendedAnswerSize[r.Command] {
			return nil, unix.ENOSPC // core/uverbs_main.c, verify_hdr
		}
		r.core = span{answer, out * 8}
		r.driver = span{answer + uint64(out*8), driverOut * 8}
		return r, 0
	}
	if len(b) != in*4 {
		return nil, unix.EINVAL // the same
	}
	size, ok := coreSize[r.Command]
	if !ok {
		return nil, unix.EOPNOTSUPP // core/rdma_core.h, uapi_get_method
	}
	if len(b) < 8+size {
		return nil, unix.ENOSPC // core/uverbs_main.c, verify_hdr
	}
	if out*4 < answerSize[r.Command] {
		return nil, unix.ENOSPC // the same
	}
	r.Core, r.Driver, r.contiguous = b[8:8+size], b[8+size:], true
	if !noAnswer[r.Command] {
		r.core = span{le.Uint64(r.Core), out * 4}
	}
	return r, 0
}

// requestOf takes the attributes of INVOKE_WRITE, which carries a write command
// (drivers/infiniband/core/uverbs_std_types_device.c).
func requestOf(c *Call) (*Request, unix.Errno) {
	command := uint32(c.Uint64(attrCommand))
	r := &Request{process: c.process, Command: command &^ (0xff << 24), Extended: command&(1<<31) != 0,
		Core: c.In(attrCoreIn), Driver: c.In(attrDriverIn), core: c.room(attrCoreOut), driver: c.room(attrDriverOut)}
	least, room := coreSize[r.Command], answerSize[r.Command]
	if r.Extended {
		least, room = 0, extendedAnswerSize[r.Command]
	}
	if len(r.Core) < least || r.core.size < room {
		return nil, unix.ENOSPC // core/uverbs_std_types_device.c, UVERBS_METHOD_INVOKE_WRITE
	}
	return r, 0
}
