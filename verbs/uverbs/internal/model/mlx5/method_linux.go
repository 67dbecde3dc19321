//go:build amd64 || arm64

package mlx5

import (
	"cmp"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// A method is one of the ioctl interface. Attributes are those of core/uverbs_std_types_*.c and
// of main.c.
type method struct {
	run        func(*ucontext, *frame.Call) unix.Errno
	attributes map[uint16]frame.Attribute
}

var (
	constant  = frame.Attribute{Kind: frame.In, Min: 8, Max: 8}
	flags     = frame.Attribute{Kind: frame.In, Min: 4, Max: 8, Optional: true}
	out32     = frame.Attribute{Kind: frame.Out, Min: 4, Max: 4}
	out64     = frame.Attribute{Kind: frame.Out, Min: 8, Max: 8}
	in32      = frame.Attribute{Kind: frame.In, Min: 4, Max: 4}
	in64      = frame.Attribute{Kind: frame.In, Min: 8, Max: 8}
	object    = frame.Attribute{Kind: frame.Object}
	destroyed = frame.Attribute{Kind: frame.Object, Destroys: true}
	newObject = frame.Attribute{Kind: frame.NewObject}
)

// Objects of the core (include/uapi/rdma/ib_user_ioctl_cmds.h, enum uverbs_default_objects).
const (
	objectDevice   = 0
	objectPD       = 1
	objectCQ       = 3
	objectQP       = 4
	objectSRQ      = 5
	objectAH       = 6
	objectMR       = 7
	objectMW       = 8
	objectDM       = 14
	objectCounters = 15
	objectAsync    = 16
)

// Attributes of the driver (include/uapi/rdma/mlx5_user_ioctl_cmds.h).
const (
	attrMemoryOffset = 0x1000
	attrMemoryPage   = 0x1001
	attrMemoryType   = 0x1002
	attrDMABufAccess = 0x1000
)

var (
	getContextMethod = frame.MethodID{Object: objectDevice, Method: 3}
	dmaBufMethod     = frame.MethodID{Object: objectMR, Method: 4}
)

// methods are without those attributes of XRC domains, of work queues and of tags, which the model
// does not have: for what needs one libibverbs goes back to the write interface.
var methods = map[frame.MethodID]method{
	{Object: objectDevice, Method: 2}: {(*ucontext).queryPortByMethod, map[uint16]frame.Attribute{0: constant, 1: {Kind: frame.Out, Min: 48}}},
	getContextMethod:                  {(*ucontext).getContextByMethod, frame.Driver(map[uint16]frame.Attribute{0: optional(out32), 1: optional(out64)})},
	{Object: objectDevice, Method: 5}: {func(c *ucontext, r *frame.Call) unix.Errno { return c.device.QueryGIDTable(r) }, map[uint16]frame.Attribute{
		0: constant, 1: flags, 2: {Kind: frame.Out}, 3: out64}},
	{Object: objectDevice, Method: 6}: {func(c *ucontext, r *frame.Call) unix.Errno { return c.device.QueryGIDEntry(r) }, map[uint16]frame.Attribute{
		0: constant, 1: constant, 2: flags, 3: {Kind: frame.Out, Min: 32}}},
	{Object: objectAsync}: {(*ucontext).allocAsync, map[uint16]frame.Attribute{0: newObject}},
	{Object: objectPD}:    {destroyBy((*ucontext).deallocPD, 0), map[uint16]frame.Attribute{0: destroyed}},
	{Object: objectAH}:    {destroyBy((*ucontext).destroyAH, 0), map[uint16]frame.Attribute{0: destroyed}},
	{Object: objectMW}:    {destroyBy((*ucontext).deallocMW, 0), map[uint16]frame.Attribute{0: destroyed}},
	{Object: objectMR}: {(*ucontext).registerMemory, map[uint16]frame.Attribute{
		0: newObject, 1: in64, 2: in64, 3: object, 4: flags, 5: object, 6: out32, 7: out32}},
	{Object: objectMR, Method: 2}: {(*ucontext).advise, map[uint16]frame.Attribute{
		0: object, 1: constant, 2: {Kind: frame.In, Min: 4, Max: 8}, 3: {Kind: frame.In, Min: 16}}},
	dmaBufMethod: {(*ucontext).registerDMABuf, map[uint16]frame.Attribute{
		0: newObject, 1: object, 2: in64, 3: in64, 4: in64, 5: in32, 6: flags, 7: out32, 8: out32, attrDMABufAccess: flags}},
	{Object: objectDM}: {(*ucontext).allocMemory, map[uint16]frame.Attribute{
		0: newObject, 1: in64, 2: in32, attrMemoryOffset: out64, attrMemoryPage: optional(frame.Attribute{Kind: frame.Out, Min: 2, Max: 2}), attrMemoryType: optional(constant)}},
	{Object: objectDM, Method: 1}:       {(*ucontext).freeMemory, map[uint16]frame.Attribute{0: destroyed}},
	{Object: objectCounters}:            {(*ucontext).createCounters, map[uint16]frame.Attribute{0: newObject}},
	{Object: objectCounters, Method: 1}: {(*ucontext).destroyCounters, map[uint16]frame.Attribute{0: destroyed}},
	{Object: objectCounters, Method: 2}: {(*ucontext).readCounters, map[uint16]frame.Attribute{0: object, 1: {Kind: frame.Out}, 2: flags}},
	{Object: objectMR, Method: 1}:       {destroyBy((*ucontext).deregMR, 0), map[uint16]frame.Attribute{0: destroyed}},
	{Object: objectMR, Method: 3}:       {(*ucontext).queryMR, map[uint16]frame.Attribute{0: object, 1: out32, 2: out32, 3: out64, 4: optional(out64)}},
	{Object: objectCQ}: {(*ucontext).createCQByMethod, frame.Driver(map[uint16]frame.Attribute{
		0: newObject, 1: in32, 2: in64, 3: optional(object), 4: in32, 5: flags, 6: out32, 7: optional(object)})},
	{Object: objectCQ, Method: 1}: {destroyBy((*ucontext).destroyCQ, 8), map[uint16]frame.Attribute{0: destroyed, 1: {Kind: frame.Out, Min: 8, Max: 8}}},
	{Object: objectQP}: {(*ucontext).createQPByMethod, frame.Driver(map[uint16]frame.Attribute{
		0: newObject, 2: optional(object), 3: optional(object), 4: optional(object), 5: optional(object), 7: in64,
		8: {Kind: frame.In, Min: 20, Max: 20, Grows: true}, 9: constant, 10: flags, 12: optional(object), 13: {Kind: frame.Out, Min: 20}, 14: out32})},
	{Object: objectQP, Method: 1}: {destroyBy((*ucontext).destroyQP, 8), map[uint16]frame.Attribute{0: destroyed, 1: out32}},
	{Object: objectSRQ}: {(*ucontext).createSRQByMethod, frame.Driver(map[uint16]frame.Attribute{
		0: newObject, 1: object, 4: in64, 5: in32, 6: in32, 7: in32, 9: constant, 10: optional(object), 11: out32, 12: out32})},
	{Object: objectSRQ, Method: 1}: {destroyBy((*ucontext).destroySRQ, 8), map[uint16]frame.Attribute{0: destroyed, 1: out32}},
	{Object: objectUAR, Method: driverMethod}: {(*ucontext).allocUAR, map[uint16]frame.Attribute{
		attrUARHandle: newObject, attrUARType: constant, attrUAROffset: out64, attrUARLength: out32, attrUARPage: out32}},
	{Object: objectUAR, Method: driverMethod + 1}: {(*ucontext).destroyUAR, map[uint16]frame.Attribute{attrUARHandle: destroyed}},
}

// destroys says that the method destroys an object.
func (m *method) destroys() bool {
	for _, a := range m.attributes {
		if a.Destroys {
			return true
		}
	}
	return false
}

func optional(a frame.Attribute) frame.Attribute {
	a.Optional = true
	return a
}

// attributesOf returns the methods as the frame wants them. Kernels that have no dynamic UARs do
// not make contexts, QPs and SRQs by methods either: these came one release before or after them.
// Nor do they know DMA buffers, which came later.
func attributesOf(methods map[frame.MethodID]method, static bool) frame.Methods {
	list := frame.Methods{}
	for id, m := range methods {
		late := id == getContextMethod || id == dmaBufMethod || id.Object == objectAsync || id.Object == objectQP || id.Object == objectSRQ || id.Object == objectUAR
		if !static || !late {
			list[id] = m.attributes
		}
	}
	return list
}

// destroyBy is the method that does the same as a command, which has the handle at that place.
func destroyBy(command func(*ucontext, *frame.Request) unix.Errno, at int) func(*ucontext, *frame.Call) unix.Errno {
	const answer = 1
	return func(c *ucontext, r *frame.Call) unix.Errno {
		request := r.Request(append(make([]byte, at), words(r.Handle(0), 0)...))
		if errno := command(c, request); errno != 0 {
			return errno
		}
		return r.Answer(answer, request.Answered())
	}
}

// known is core/rdma_core.c, rdma_lookup_get_uobject, of the handles that were passed. Of which
// kind they are looks who uses them.
func (c *ucontext) known(r *frame.Call, attributes ...uint16) unix.Errno {
	for _, id := range attributes {
		if r.Has(id) && c.objects[r.Handle(id)] == nil {
			return unix.ENOENT // core/rdma_core.c, lookup_get_idr_uobject
		}
	}
	return 0
}

// getContextByMethod is UVERBS_HANDLER(UVERBS_METHOD_GET_CONTEXT). The channel of asynchronous
// events is asked for by itself.
func (c *ucontext) getContextByMethod(r *frame.Call) unix.Errno {
	const optionalAccess = 1 // IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS
	if c.memory != nil {
		return unix.EINVAL // uverbs_cmd.c, ib_alloc_ucontext
	}
	request := r.Request(nil)
	if errno := c.alloc(request); errno != 0 {
		return errno
	}
	return cmp.Or(request.Answer(nil, c.describe()), r.Answer(0, words(vectors)), r.Answer(1, quads(optionalAccess)))
}

// allocAsync is UVERBS_HANDLER(UVERBS_METHOD_ASYNC_EVENT_ALLOC).
func (c *ucontext) allocAsync(r *frame.Call) unix.Errno {
	if c.async != nil {
		return unix.EMFILE // the model has one for each context
	}
	fd, errno := c.newAsync(r.Give)
	if errno != 0 {
		return errno
	}
	return r.AnswerHandle(0, uint32(fd))
}

// queryPortByMethod is UVERBS_HANDLER(UVERBS_METHOD_QUERY_PORT), with struct
// ib_uverbs_query_port_resp_ex.
func (c *ucontext) queryPortByMethod(r *frame.Call) unix.Errno {
	if r.Uint64(0) != 1 {
		return unix.EINVAL // core/device.c, ib_query_port: rdma_is_port_valid
	}
	return r.Answer(1, append(c.device.Query(), make([]byte, 8)...))
}

// queryMR is UVERBS_HANDLER(UVERBS_METHOD_QUERY_MR).
func (c *ucontext) queryMR(r *frame.Call) unix.Errno {
	m, ok := lookup[*fabric.Region](c, r.Handle(0))
	if !ok {
		return unix.ENOENT // core/rdma_core.c, lookup_get_idr_uobject
	}
	for id, b := range [][]byte{words(m.Key), words(m.Key), quads(m.Length), quads(m.Address)} {
		if errno := r.Answer(uint16(id+1), b); errno != 0 {
			return errno
		}
	}
	return 0
}

// createCQByMethod is UVERBS_HANDLER(UVERBS_METHOD_CQ_CREATE).
func (c *ucontext) createCQByMethod(r *frame.Call) unix.Errno {
	const timestamps, ignoreOverrun = 1 << 0, 1 << 1 // IB_UVERBS_CQ_FLAGS_*
	switch of := r.Uint64(5); {
	case of&^(timestamps|ignoreOverrun) != 0:
		return unix.EINVAL // core/uverbs_ioctl.c, uverbs_get_flags32
	case of&ignoreOverrun != 0:
		return unix.EOPNOTSUPP // the model has no such CQs
	}
	channel := ^uint32(0)
	if r.Has(3) {
		channel = r.Handle(3)
	}
	core := append(quads(0, r.Uint64(2)), words(uint32(r.Uint64(1)), uint32(r.Uint64(4)), channel, 0)...)
	request := r.Request(core)
	if errno := c.createCQ(request); errno != 0 {
		return errno
	}
	made := request.Answered()
	if errno := r.AnswerHandle(0, le.Uint32(made)); errno != 0 {
		return errno
	}
	return r.Answer(6, made[4:8])
}

// createQPByMethod is UVERBS_HANDLER(UVERBS_METHOD_QP_CREATE).
func (c *ucontext) createQPByMethod(r *frame.Call) unix.Errno {
	const (
		signalAll = 1 << 12 // IB_UVERBS_QP_CREATE_SQ_SIG_ALL
		others    = 1<<1 | 1<<8 | 1<<9 | 1<<11
	)
	kind, of := r.Uint64(9), r.Uint64(10)
	switch {
	case kind > 0xff:
		return unix.EINVAL // core/uverbs_std_types_qp.c, UVERBS_METHOD_QP_CREATE
	case of&^(signalAll|others) != 0:
		return unix.EINVAL // core/uverbs_ioctl.c, uverbs_get_flags32
	case of&others != 0 && fabric.Service(kind) != fabric.UD:
		return unix.EINVAL // core/uverbs_std_types_qp.c, check_creation_flags
	case of&others != 0:
		return unix.EOPNOTSUPP // the model has no such QPs
	}
	if errno := c.known(r, 2, 3, 4, 5); errno != 0 {
		return errno
	}
	core := append(quads(0, r.Uint64(7)), words(r.Handle(2), r.Handle(4), r.Handle(5), r.Handle(3))...)
	core = append(append(core, r.In(8)[:20]...), 0, byte(kind), 0, 0)
	if of&signalAll != 0 {
		core[52] = 1
	}
	if r.Has(3) {
		core[54] = 1
	}
	request := r.Request(core)
	if errno := c.createQP(request); errno != 0 {
		return errno
	}
	made := request.Answered()
	return cmp.Or(r.AnswerHandle(0, le.Uint32(made)), r.Answer(13, made[8:28]), r.Answer(14, made[4:8]))
}

// createSRQByMethod is UVERBS_HANDLER(UVERBS_METHOD_SRQ_CREATE).
func (c *ucontext) createSRQByMethod(r *frame.Call) unix.Errno {
	const mostTypes = 2 // IB_UVERBS_SRQT_TM
	if errno := c.known(r, 1); errno != 0 {
		return errno
	}
	switch kind := r.Uint64(9); {
	case kind > mostTypes:
		return unix.EINVAL // core/uverbs_std_types_srq.c, UVERBS_METHOD_SRQ_CREATE
	case kind != 0:
		return unix.ENOENT // the same: without the CQ and the domain that other types need
	}
	core := append(quads(0, r.Uint64(4)), words(r.Handle(1), uint32(r.Uint64(5)), uint32(r.Uint64(6)), uint32(r.Uint64(7)))...)
	request := r.Request(core)
	if errno := c.createSRQ(request); errno != 0 {
		return errno
	}
	made := request.Answered()
	return cmp.Or(r.AnswerHandle(0, le.Uint32(made)), r.Answer(11, made[4:8]), r.Answer(12, made[8:12]))
}
