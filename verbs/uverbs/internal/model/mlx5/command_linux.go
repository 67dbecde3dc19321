//go:build amd64 || arm64

package mlx5

import (
	"math/bits"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

const getContext = 0

// commands by number (include/uapi/rdma/ib_user_verbs.h). Structs are those of that header and,
// for the provider's part, of mlx5-abi.h. The checks are cited where they are made: files
// without a directory are those of drivers/infiniband/hw/mlx5, uverbs_cmd.c is the core's. A function alone is of the file
// that the comment of the method names.
var commands = map[uint32]func(*ucontext, *frame.Request) unix.Errno{
	getContext: (*ucontext).getContext,
	1:          (*ucontext).queryDevice,
	2:          (*ucontext).queryPort,
	3:          (*ucontext).allocPD,
	4:          (*ucontext).deallocPD,
	5:          (*ucontext).createAH,
	8:          (*ucontext).destroyAH,
	9:          (*ucontext).regMR,
	11:         (*ucontext).reregMR,
	13:         (*ucontext).deregMR,
	14:         (*ucontext).allocMW,
	16:         (*ucontext).deallocMW,
	17:         (*ucontext).createChannel,
	18:         (*ucontext).createCQ,
	19:         (*ucontext).resizeCQ,
	20:         (*ucontext).destroyCQ,
	24:         (*ucontext).createQP,
	25:         (*ucontext).queryQP,
	26:         (*ucontext).modifyQP,
	27:         (*ucontext).destroyQP,
	30:         (*ucontext).attachMulticast,
	31:         (*ucontext).detachMulticast,
	32:         (*ucontext).createSRQ,
	33:         (*ucontext).modifySRQ,
	34:         (*ucontext).querySRQ,
	35:         (*ucontext).destroySRQ,
}

// extendedCommands are those of the second generation.
var extendedCommands = map[uint32]func(*ucontext, *frame.Request) unix.Errno{
	1:  (*ucontext).queryDeviceEx,
	57: (*ucontext).modifyCQ,
}

// A method is one of the ioctl interface. Attributes are those of core/uverbs_std_types_*.c and
// of main.c.
type method struct {
	run        func(*ucontext, *frame.Call) unix.Errno
	attributes map[uint16]frame.Attribute
}

var (
	constant = frame.Attribute{Kind: frame.In, Min: 8, Max: 8}
	flags    = frame.Attribute{Kind: frame.In, Min: 4, Max: 8, Optional: true}
	out32    = frame.Attribute{Kind: frame.Out, Min: 4, Max: 4}
	out64    = frame.Attribute{Kind: frame.Out, Min: 8, Max: 8}
)

var methods = map[frame.MethodID]method{
	{Object: objectDevice, Method: 5}: {(*ucontext).queryGIDTable, map[uint16]frame.Attribute{
		0: constant, 1: flags, 2: {Kind: frame.Out}, 3: out64}},
	{Object: objectDevice, Method: 6}: {(*ucontext).queryGIDEntry, map[uint16]frame.Attribute{
		0: constant, 1: constant, 2: flags, 3: {Kind: frame.Out, Min: gidEntrySize}}},
	{Object: objectUAR, Method: driverMethod}: {(*ucontext).allocUAR, map[uint16]frame.Attribute{
		attrUARHandle: {Kind: frame.NewObject}, attrUARType: constant, attrUAROffset: out64, attrUARLength: out32, attrUARPage: out32}},
	{Object: objectUAR, Method: driverMethod + 1}: {(*ucontext).destroyUAR, map[uint16]frame.Attribute{
		attrUARHandle: {Kind: frame.Object}}},
}

const objectDevice = 0

// attributesOf returns the methods as the frame wants them.
func attributesOf(methods map[frame.MethodID]method) frame.Methods {
	list := frame.Methods{}
	for id, m := range methods {
		list[id] = m.attributes
	}
	return list
}

// getContext is main.c, mlx5_ib_alloc_ucontext. The driver's part is struct
// mlx5_ib_alloc_ucontext_req, or its second version.
func (c *ucontext) getContext(r *frame.Request) unix.Errno {
	const (
		first       = 8
		second      = 16 // without what was added to it
		capsDynamic = 2  // MLX5_LIB_CAP_DYN_UAR
	)
	m := make([]byte, 32)
	if copy(m, r.Driver); len(r.Driver) != first && len(r.Driver) < second {
		return unix.EINVAL // mlx5_ib_alloc_ucontext
	}
	total, low := (le.Uint32(m)+1)&^1, le.Uint32(m[4:])
	dynamic := le.Uint64(m[24:])&capsDynamic != 0 && !c.device.config.StaticUARs
	switch {
	case le.Uint32(m[8:]) != 0:
		return unix.EOPNOTSUPP // DEVX: mlx5_ib_devx_create, and the device has no log_max_uctx
	case le.Uint32(m[12:]) != 0 || m[17] != 0 || le.Uint16(m[18:]) != 0 || le.Uint32(m[20:]) != 0:
		return unix.EOPNOTSUPP // comp_mask, reserved
	case low > total-1:
		return unix.EINVAL // calc_total_bfregs
	case !dynamic && total == 0:
		return unix.EINVAL // calc_total_bfregs
	case !dynamic && total > mostBfregs:
		return unix.ENOMEM // the same
	}
	async, err := frame.NewChannel()
	if err != nil {
		return unix.EMFILE // core/uverbs_cmd.c, ib_init_ucontext: get_unused_fd_flags
	}
	fd, errno := r.Give(async.FD())
	if errno != 0 {
		async.Close()
		return errno
	}
	c.async, c.memory, c.cqeVersion = async, r.Process(), min(m[16], c.device.cqeVersion())
	if !dynamic {
		c.addStaticUARs(total, low)
		c.bfregs.simple = len(r.Driver) == first
	}
	c.putClockInfo()
	return r.Answer(words(uint32(fd), 1), c.describe())
}

// describe is main.c, set_ucontext_resp.
func (c *ucontext) describe() []byte {
	m := make([]byte, 72)
	put := func(at int, v uint32) { le.PutUint32(m[at:], v) }
	put(0, maxQP)
	put(4, bfregSize)
	if c.static != nil {
		put(8, uint32(len(c.bfregs.count)))
	}
	put(12, 64) // cache line
	le.PutUint16(m[16:], maxWQE)
	le.PutUint16(m[18:], maxWQE)
	put(20, maxWR)
	put(24, maxWR)
	put(28, maxSRQWR+1)
	le.PutUint16(m[32:], 1) // ports
	put(40, 72)             // response length
	m[44] = c.cqeVersion
	m[45] = 2 // CREATE_AH has an answer
	if c.device.config.Link == Ethernet {
		m[46] = 1 // no header has to be inline
	}
	m[47] = 1   // MLX5_IB_CLOCK_INFO_V1
	put(56, 12) // log2 of a UAR's size
	put(60, 1)  // UARs in a page
	return m
}

const deviceAttributes = 176 // bytes of struct ib_uverbs_query_device_resp

func (c *ucontext) attributes() []byte {
	d := c.device
	b := make([]byte, deviceAttributes)
	put := func(at int, v uint32) { le.PutUint32(b[at:], v) }
	le.PutUint64(b, 16<<32|35<<16|1000) // firmware
	be.PutUint64(b[8:], d.guid)
	be.PutUint64(b[16:], d.guid)
	le.PutUint64(b[24:], 1<<40)      // max_mr_size
	le.PutUint64(b[32:], 0xfffff000) // page sizes
	put(40, 0x2c9)                   // vendor
	put(44, 0x1017)                  // ConnectX-5
	put(52, maxQP)
	put(56, maxWR)
	put(60, 1<<17|1<<24) // windows of type 1 and 2B: main.c, mlx5_ib_query_device
	put(64, maxSGE)
	put(68, maxSGE)
	put(72, 1<<16) // CQs
	put(76, maxCQE)
	put(80, 1<<16) // MRs
	put(84, 1<<16) // PDs
	put(88, maxReads)
	put(96, maxReads*maxQP)
	put(100, maxReads)
	if !d.config.NoAtomics {
		put(108, 1) // among the device's QPs: main.c, get_atomic_caps
	}
	put(120, 1<<16) // windows
	put(132, maxGroups)
	put(136, maxGroupsOfQP)
	put(140, maxGroups*maxGroupsOfQP)
	put(144, 1<<20) // AHs
	put(156, 1<<16) // SRQs
	put(160, maxSRQWR)
	put(164, maxSGE)
	le.PutUint16(b[168:], 1) // P_Keys
	b[170], b[171] = 16, 1   // local_ca_ack_delay, ports
	return b
}

func (c *ucontext) queryDevice(r *frame.Request) unix.Errno { return r.Answer(c.attributes(), nil) }

// queryDeviceEx answers with struct ib_uverbs_ex_query_device_resp, whose other fields are 0.
func (c *ucontext) queryDeviceEx(r *frame.Request) unix.Errno {
	const size = 304
	if len(r.Core) < 8 {
		return unix.ENOSPC // core/uverbs_main.c, verify_hdr
	}
	if le.Uint64(r.Core) != 0 {
		return unix.EINVAL // uverbs_cmd.c, ib_uverbs_ex_query_device: comp_mask, reserved
	}
	b := append(c.attributes(), make([]byte, size-deviceAttributes)...)
	le.PutUint32(b[deviceAttributes+4:], size)
	le.PutUint64(b[208:], timestampMask)
	le.PutUint64(b[216:], clockKHz)
	le.PutUint16(b[280:], maxModerationCount) // main.c, mlx5_ib_query_device
	le.PutUint16(b[282:], maxModerationPeriod)
	return r.Answer(b, nil)
}

func (c *ucontext) queryPort(r *frame.Request) unix.Errno {
	d := c.device
	if r.Core[8] != 1 {
		return unix.EINVAL // core/device.c, ib_query_port: rdma_is_port_valid
	}
	b := make([]byte, 40)
	le.PutUint32(b[4:], maxMessage)
	le.PutUint32(b[16:], uint32(d.gidTable()))
	le.PutUint16(b[20:], 1)     // P_Keys
	le.PutUint16(b[22:], d.lid) // 0 for Ethernet
	b[26], b[27], b[28] = d.state(), mtuCode, mtuCode
	b[30] = 4 // virtual lanes
	b[34], b[35], b[36], b[37] = width4X, speedEDR, d.physicalState(), byte(d.config.Link)
	if d.config.Link == Ethernet {
		b[38] = 1 // IB_UVERBS_QPF_GRH_REQUIRED
	}
	return r.Answer(b, nil)
}

func (c *ucontext) allocPD(r *frame.Request) unix.Errno {
	pd := &protectionDomain{}
	pd.handle = c.add(pd)
	return r.Answer(words(pd.handle), words(c.device.next()))
}

func (c *ucontext) deallocPD(r *frame.Request) unix.Errno {
	handle := le.Uint32(r.Core)
	pd, ok := lookup[*protectionDomain](c, handle)
	if !ok {
		return unix.ENOENT // core/rdma_core.c, lookup_get_idr_uobject
	}
	if pd.users > 0 {
		return unix.EBUSY // core/uverbs_std_types.c, uverbs_free_pd
	}
	delete(c.objects, handle)
	return 0
}

// addressHandle exists for its handle: the driver puts the address into each WQE by itself.
type addressHandle struct{ pd *protectionDomain }

func (c *ucontext) createAH(r *frame.Request) unix.Errno {
	pd, ok := lookup[*protectionDomain](c, le.Uint32(r.Core[16:]))
	if !ok {
		return unix.EINVAL // uverbs_cmd.c, ib_uverbs_create_ah
	}
	path := r.Core[24:56] // struct ib_uverbs_ah_attr
	if path[30] != 1 {
		return unix.EINVAL // uverbs_cmd.c, ib_uverbs_create_ah: port
	}
	global, source := path[29] != 0, path[20]
	if errno := c.device.checkPath(global, source); errno != 0 {
		return errno
	}
	var answer []byte
	if c.device.config.Link == Ethernet {
		const size = 10 // through dmac of struct mlx5_ib_create_ah_resp
		if r.DriverRoom(4) < size {
			return unix.EINVAL // ah.c, mlx5_ib_create_ah
		}
		gid := [16]byte(path[:16])
		mac := multicastMAC(gid)
		if !multicast(gid) {
			to := c.device.fabric.findGID(gid, c.device.gids[source].kind)
			if to == nil {
				return unix.EHOSTUNREACH // core/verbs.c, ib_resolve_unicast_gid_dmac
			}
			mac = to.mac
		}
		answer = append(words(20), mac[:]...)
	}
	pd.users++
	return r.Answer(words(c.add(&addressHandle{pd})), answer)
}

func (c *ucontext) destroyAH(r *frame.Request) unix.Errno {
	handle := le.Uint32(r.Core)
	ah, ok := lookup[*addressHandle](c, handle)
	if !ok {
		return unix.ENOENT // core/rdma_core.c, lookup_get_idr_uobject
	}
	ah.pd.users--
	delete(c.objects, handle)
	return 0
}

func (c *ucontext) regMR(r *frame.Request) unix.Errno {
	b := r.Core
	m := &memoryRegion{memory: c.memory, start: le.Uint64(b[8:]), length: le.Uint64(b[16:]), address: le.Uint64(b[24:]),
		access: le.Uint32(b[36:])}
	var ok bool
	switch m.pd, ok = lookup[*protectionDomain](c, le.Uint32(b[32:])); {
	case m.start%pageSize != m.address%pageSize:
		return unix.EINVAL // uverbs_cmd.c, ib_uverbs_reg_mr
	case checkAccess(m.access) != 0:
		return checkAccess(m.access)
	case !ok:
		return unix.EINVAL // uverbs_cmd.c, ib_uverbs_reg_mr
	case m.length == 0 || m.start+m.length < m.start:
		return unix.EINVAL // core/umem.c, ib_umem_get
	case !c.readable(m.start, m.length):
		return unix.EFAULT // core/umem.c, ib_umem_get
	}
	m.pd.users++
	m.handle = c.add(m)
	// The variant in the low byte differs from one key to the next, as mkeys of the driver do.
	m.key = c.device.next()<<8 | m.handle*0x35&0xff
	if m.key == invalidKey {
		m.key++
	}
	c.device.keys[m.key] = m
	return r.Answer(words(m.handle, m.key, m.key), nil)
}

// checkAccess is include/rdma/ib_verbs.h, ib_check_mr_access, for a device without memory on demand and FLUSH.
func checkAccess(access uint32) unix.Errno {
	const (
		onDemand  = 1 << 6
		flush     = 1<<8 | 1<<9
		optional  = 1<<30 - 1<<20
		supported = 1<<10 - 1 | optional
	)
	switch {
	case access&(accessRemoteWrite|accessRemoteAtomic) != 0 && access&accessLocalWrite == 0:
		return unix.EINVAL
	case access&^supported != 0:
		return unix.EINVAL
	case access&(onDemand|flush) != 0:
		return unix.EOPNOTSUPP
	}
	return 0
}

// reregMR changes a region in place (uverbs_cmd.c, ib_uverbs_rereg_mr; mr.c, mlx5_ib_rereg_user_mr).
func (c *ucontext) reregMR(r *frame.Request) unix.Errno {
	const translation, domain, access, supported = 1, 2, 4, 7
	b := r.Core
	flags := le.Uint32(b[12:])
	m, ok := lookup[*memoryRegion](c, le.Uint32(b[8:]))
	changed := memoryRegion{}
	switch {
	case flags == 0:
		return unix.EINVAL // ib_uverbs_rereg_mr
	case flags&^supported != 0:
		return unix.EOPNOTSUPP // the same
	case flags&translation != 0 && le.Uint64(b[16:])%pageSize != le.Uint64(b[32:])%pageSize:
		return unix.EINVAL // the same
	case !ok:
		return unix.ENOENT // core/rdma_core.c, lookup_get_idr_uobject
	}
	changed = *m
	if flags&access != 0 {
		changed.access = le.Uint32(b[44:])
		if errno := checkAccess(changed.access); errno != 0 {
			return errno
		}
	}
	if flags&domain != 0 {
		if changed.pd, ok = lookup[*protectionDomain](c, le.Uint32(b[40:])); !ok {
			return unix.EINVAL // ib_uverbs_rereg_mr
		}
	}
	if flags&translation != 0 {
		changed.start, changed.length, changed.address = le.Uint64(b[16:]), le.Uint64(b[24:]), le.Uint64(b[32:])
		switch {
		case changed.length == 0 || changed.start+changed.length < changed.start:
			return unix.EINVAL // core/umem.c, ib_umem_get
		case !c.readable(changed.start, changed.length):
			return unix.EFAULT // the same
		}
	}
	m.pd.users--
	changed.pd.users++
	*m = changed
	return r.Answer(words(m.key, m.key), nil)
}

func (c *ucontext) deregMR(r *frame.Request) unix.Errno {
	handle := le.Uint32(r.Core)
	m, ok := lookup[*memoryRegion](c, handle)
	if !ok {
		return unix.ENOENT // core/rdma_core.c, lookup_get_idr_uobject
	}
	m.pd.users--
	delete(c.device.keys, m.key)
	delete(c.objects, handle)
	return 0
}

// A completion channel is an object by its descriptor in the program, which has handles of
// its own.
type channelFD int

func (c *ucontext) createChannel(r *frame.Request) unix.Errno {
	channel, err := frame.NewChannel()
	if err != nil {
		return unix.EMFILE // uverbs_cmd.c, ib_uverbs_create_comp_channel: core/rdma_core.c, alloc_begin_fd_uobject
	}
	fd, errno := r.Give(channel.FD())
	if errno != 0 {
		channel.Close()
		return errno
	}
	c.setChannel(channelFD(fd), channel)
	return r.Answer(words(uint32(fd)), nil)
}

const channelHandles = 1 << 31

func (c *ucontext) setChannel(fd channelFD, channel *frame.Channel) {
	handle := channelHandles | uint32(fd)
	if old, ok := lookup[*frame.Channel](c, handle); ok {
		old.Close() // the program has closed its descriptor, or the number would not be free
	}
	c.objects[handle] = channel
}

func (c *ucontext) createCQ(r *frame.Request) unix.Errno {
	const (
		least         = 22     // of struct mlx5_ib_create_cq: without flags
		pageFlag      = 1 << 1 // UAR_PAGE_INDEX
		realTimeFlag  = 1 << 2 // REAL_TIME_TS
		knownFlags    = 1<<0 | pageFlag | realTimeFlag
		paddingFlag   = 1 << 0 // CQE_128B_PAD
		compress      = 1
		sizeOfRequest = 32
	)
	b := r.Core
	entries := le.Uint32(b[16:])
	if len(r.Driver) < least {
		return unix.EINVAL // cq.c, create_cq_user
	}
	m := make([]byte, sizeOfRequest)
	copy(m, r.Driver)
	flags := le.Uint16(m[22:])
	var u *uar
	switch {
	case flags&pageFlag != 0:
		u = c.uarOfPage(uint32(le.Uint16(m[24:])))
	case c.static != nil:
		u = c.static[0]
	}
	switch size := le.Uint32(m[16:]); {
	case entries == 0 || entries > maxCQE:
		return unix.EINVAL // uverbs_cmd.c, create_cq, and cq.c, mlx5_ib_create_cq
	case le.Uint32(b[20:]) >= 1:
		return unix.EINVAL // uverbs_cmd.c, create_cq: completion vectors
	case flags&^knownFlags != 0:
		return unix.EINVAL // cq.c, create_cq_user
	case size != 64 && size != 128 || le.Uint16(m[26:]) != 0 || le.Uint32(m[28:]) != 0:
		return unix.EINVAL // the same, also reserved0 and reserved1
	case m[20] == compress || flags&paddingFlag != 0:
		return unix.EOPNOTSUPP // the same: the device has neither
	case size != 64:
		return unix.EOPNOTSUPP // the model has no CQEs of 128 bytes
	case u == nil:
		return unix.EINVAL // cq.c, create_cq_user; a page that is another's is refused by the firmware
	}
	q := &completionQueue{context: c, user: le.Uint64(b[8:]), size: roundUp(entries + 1),
		buffer: le.Uint64(m), record: le.Uint64(m[8:]), command: noCommand, uar: u,
		realTime: flags&realTimeFlag != 0}
	if fd := int32(le.Uint32(b[24:])); fd >= 0 {
		var ok bool
		if q.channel, ok = lookup[*frame.Channel](c, channelHandles|uint32(fd)); !ok {
			return unix.EBADF // uverbs_cmd.c, ib_uverbs_lookup_comp_file: uobj_get_read of a descriptor
		}
	}
	if !c.readable(q.buffer, uint64(q.size)*cqeSize) || c.memory.Write(q.record+4, words(noCommand)) != nil {
		return unix.EFAULT // core/umem.c, ib_umem_get
	}
	q.cqn = c.device.next()
	q.handle = c.add(q)
	c.cqs = append(c.cqs, q)
	return r.Answer(words(q.handle, q.size-1), words(q.cqn, 0))
}

// resizeCQ is cq.c, mlx5_ib_resize_cq. The device writes a CQE that says so to the old buffer,
// and goes on in the new one behind it; the driver takes over those between.
func (c *ucontext) resizeCQ(r *frame.Request) unix.Errno {
	b, m := r.Core, r.Driver
	q, ok := lookup[*completionQueue](c, le.Uint32(b[8:]))
	entries := le.Uint32(b[12:])
	if !ok || entries < 1 || entries > maxCQE {
		return unix.EINVAL // ib_uverbs_resize_cq; mlx5_ib_resize_cq
	}
	size := roundUp(entries + 1)
	if size == q.size {
		return r.Answer(words(size-1, 0), nil)
	}
	const room = 16 // struct mlx5_ib_resize_cq
	switch {
	case len(m) < room || le.Uint16(m[10:]) != 0 || le.Uint32(m[12:]) != 0:
		return unix.EINVAL // resize_user
	case le.Uint16(m[8:]) != cqeSize:
		return unix.EINVAL // the firmware
	case !c.readable(le.Uint64(m), uint64(size)*cqeSize):
		return unix.EFAULT // core/umem.c, ib_umem_get
	}
	q.release()
	q.look()
	if used := q.produced - q.consumed; q.dead || used+1 >= size || used >= q.size {
		return unix.EINVAL // the firmware: MODIFY_CQ has no room for what is there
	}
	q.write(completion{op: cqeResize})
	q.buffer, q.size = le.Uint64(m), size
	return r.Answer(words(size-1, 0), nil)
}

// modifyCQ is uverbs_cmd.c, ib_uverbs_ex_modify_cq, and cq.c, mlx5_ib_modify_cq.
func (c *ucontext) modifyCQ(r *frame.Request) unix.Errno {
	const moderate = 1 // IB_CQ_MODERATE
	b := r.Core
	if len(b) < 16 {
		return unix.ENOSPC // core/uverbs_main.c, verify_hdr
	}
	mask, count, period := le.Uint32(b[4:]), le.Uint16(b[8:]), le.Uint16(b[10:])
	q, ok := lookup[*completionQueue](c, le.Uint32(b))
	switch {
	case mask == 0 || le.Uint32(b[12:]) != 0:
		return unix.EINVAL // ib_uverbs_ex_modify_cq
	case mask > moderate:
		return unix.EOPNOTSUPP // the same
	case !ok || period > maxModerationPeriod:
		return unix.EINVAL // the same; mlx5_ib_modify_cq
	}
	q.count, q.period = uint32(count), time.Duration(period)*time.Microsecond
	return 0
}

func (c *ucontext) destroyCQ(r *frame.Request) unix.Errno {
	q, ok := lookup[*completionQueue](c, le.Uint32(r.Core[8:]))
	if !ok {
		return unix.ENOENT // core/rdma_core.c, lookup_get_idr_uobject
	}
	if q.users > 0 {
		return unix.EBUSY // core/verbs.c, ib_destroy_cq_user
	}
	if q.channel != nil { // what was not read is not waited for
		q.events -= uint32(q.channel.Remove(func(b []byte) bool { return le.Uint64(b) == q.user }))
	}
	q.asyncEvents -= c.unread(q.user, eventCQError)
	c.past[q.cqn] = true
	delete(c.objects, q.handle)
	c.cqs = without(c.cqs, q)
	return r.Answer(words(q.events, q.asyncEvents), nil)
}

func (c *ucontext) createQP(r *frame.Request) unix.Errno {
	const leastRequest, knownRequest = 48, 52 // of struct mlx5_ib_create_qp: without ece_options, and without reserved
	b, m := r.Core, r.Driver
	if len(m) < leastRequest {
		return unix.EINVAL // qp.c, process_udata_size
	}
	if len(m) > knownRequest && !zero(m[knownRequest:]) {
		return unix.EINVAL // qp.c, check_ucmd_data
	}
	// Scatter to CQE is allowed, and never done.
	const (
		registerFlag = 1 << 3  // BFREG_INDEX
		pageFlag     = 1 << 10 // UAR_PAGE_INDEX
		knownFlags   = 1<<1 | registerFlag | 1<<8 | pageFlag
	)
	flags := le.Uint32(m[28:])
	q := &queuePair{context: c, user: le.Uint64(b[8:]), service: service(b[53]), signalAll: b[52] != 0,
		record: le.Uint64(m[8:]), sendSize: le.Uint32(m[16:]), uidx: le.Uint32(m[32:]), bfreg: noBfreg}
	for i := range q.caps {
		q.caps[i] = le.Uint32(b[32+4*i:])
	}
	own := &receiveQueue{context: c, buffer: le.Uint64(m), record: q.record, size: le.Uint32(m[20:]), shift: le.Uint32(m[24:])}
	q.recv = own
	var found [4]bool
	q.pd, found[0] = lookup[*protectionDomain](c, le.Uint32(b[16:]))
	q.sendCQ, found[1] = lookup[*completionQueue](c, le.Uint32(b[20:]))
	q.recvCQ, found[2] = lookup[*completionQueue](c, le.Uint32(b[24:]))
	found[3] = true
	if b[54] != 0 {
		q.recv, found[3] = lookup[*receiveQueue](c, le.Uint32(b[28:]))
	}
	own.pd = q.pd
	receives := !q.recv.shared && q.caps[1] != 0 // qp.c, qp_has_rq
	switch {
	case q.service != serviceRC && q.service != serviceUC && q.service != serviceUD:
		return unix.EOPNOTSUPP // the model has no others (uverbs_cmd.c, create_qp, knows some more)
	case found != [4]bool{true, true, true, true}:
		return unix.EINVAL // uverbs_cmd.c, create_qp
	case q.service == serviceUC && q.recv.shared:
		return unix.EINVAL // none of the kernel's checks: that the firmware refuses it is a guess
	case flags&^knownFlags != 0:
		return unix.EINVAL // qp.c, process_vendor_flags
	case flags&(registerFlag|pageFlag) == registerFlag|pageFlag:
		return unix.EINVAL // qp.c, _create_user_qp
	case !c.validIndex(q.uidx):
		return unix.EINVAL // mlx5_ib.h, get_qp_user_index
	case q.caps[1] > maxWR:
		return unix.EINVAL // qp.c, set_rq_size
	case receives && own.shift > 32:
		return unix.EINVAL // the same
	case !receives && (own.size != 0 || own.shift != 0):
		return unix.EINVAL // qp.c, create_user_qp
	case q.sendSize != 0 && !powerOfTwo(q.sendSize) || q.sendSize > maxWR:
		return unix.EINVAL // qp.c, set_user_buf_size
	case receives && (!powerOfTwo(own.size) || own.size > maxWR || own.shift < 4 || own.shift > 9):
		return unix.EINVAL // the firmware
	case q.sendCQ.realTime || q.recvCQ.realTime:
		return unix.EOPNOTSUPP // qp.c, get_qp_ts_format
	}
	bytes := uint64(q.sendSize) * basicBlock
	q.send = own.buffer
	if receives {
		bytes += uint64(own.size) << own.shift
		q.send += uint64(own.size) << own.shift
	}
	if bytes != 0 && own.buffer == 0 {
		return unix.EINVAL // the firmware: the kernel pins nothing then (qp.c, _create_user_qp)
	}
	if bytes != 0 && !c.readable(own.buffer, bytes) || !c.readable(q.record, 8) {
		return unix.EFAULT // core/umem.c, ib_umem_get
	}
	switch {
	case flags&pageFlag != 0:
		if q.uar = c.uarOfPage(le.Uint32(m[36:])); q.uar == nil {
			return unix.EINVAL // the firmware: it is another's
		}
	case flags&registerFlag != 0:
		// It is one of a dynamic page in static contexts (MLX5_IB_MMAP_ALLOC_WC), and the model has none.
		return unix.EINVAL // qp.c, bfregn_to_uar_index
	case c.static == nil:
		return unix.EINVAL // qp.c, alloc_bfreg
	}
	register := uint32(noRegister)
	if q.uar == nil {
		q.bfreg = c.bfregs.alloc()
		q.uar, register = c.static[q.bfreg/bfregsOfUser], adjusted(q.bfreg)
	}
	q.qpn = c.device.next()
	q.handle = c.add(q)
	q.pd.users++
	q.sendCQ.users++
	q.recvCQ.users++
	if q.recv.shared {
		q.recv.users++
	}
	c.qps = append(c.qps, q)
	c.device.qps[q.qpn] = q
	core := append(words(q.handle, q.qpn), b[32:52]...)
	return r.Answer(append(core, words(0)...), append(words(register), make([]byte, 36)...))
}

const (
	noBfreg    = -1
	noRegister = 1 << 31 // MLX5_IB_INVALID_BFREG
)

// validIndex says whether a program may name a QP so in CQEs. The default is for CQEs of version 0, which have no such
// indices (mlx5_ib.h, get_qp_user_index and verify_assign_uidx).
func (c *ucontext) validIndex(uidx uint32) bool {
	if c.cqeVersion == 0 {
		return uidx == defaultUidx
	}
	return uidx < defaultUidx
}

func (c *ucontext) modifyQP(r *frame.Request) unix.Errno {
	q, ok := lookup[*queuePair](c, le.Uint32(r.Core[64:]))
	if !ok {
		return unix.EINVAL // uverbs_cmd.c, modify_qp
	}
	return q.modify(r.Core)
}

func (c *ucontext) queryQP(r *frame.Request) unix.Errno {
	q, ok := lookup[*queuePair](c, le.Uint32(r.Core[8:]))
	if !ok {
		return unix.EINVAL // uverbs_cmd.c, ib_uverbs_query_qp
	}
	a := &q.attr
	b := make([]byte, 128)
	copy(b, a.path[:])
	for i, v := range q.caps {
		le.PutUint32(b[64+4*i:], v)
	}
	for i, v := range []uint32{a.qkey, a.rqPSN, a.sqPSN, a.dest, a.access} {
		le.PutUint32(b[84+4*i:], v)
	}
	le.PutUint16(b[104:], a.pkeyIndex)
	b[108], b[109], b[110] = byte(q.state), byte(q.state), a.mtu
	for i, v := range []byte{a.maxRead, a.maxDest, a.minRNR, a.port, a.timeout, a.retry, a.rnrRetry} {
		b[113+i] = v
	}
	if q.signalAll {
		b[122] = 1
	}
	return r.Answer(b, nil)
}

func (c *ucontext) destroyQP(r *frame.Request) unix.Errno {
	q, ok := lookup[*queuePair](c, le.Uint32(r.Core[8:]))
	if !ok {
		return unix.ENOENT // core/rdma_core.c, lookup_get_idr_uobject
	}
	if len(q.groups) > 0 {
		return unix.EBUSY // core/uverbs_std_types_qp.c, uverbs_free_qp
	}
	if q.service == serviceUD {
		q.sendRest()
	}
	q.releaseAll()
	if q.bfreg != noBfreg {
		c.bfregs.count[q.bfreg]-- // qp.c, mlx5_ib_free_bfreg
	}
	c.past[q.qpn] = true
	q.pd.users--
	q.sendCQ.users--
	q.recvCQ.users--
	if q.recv.shared {
		q.recv.users--
	}
	q.events -= c.unread(q.user, eventQPFatal, eventQPRequest, eventQPAccess, eventSQDrained, eventLastWQE)
	delete(c.objects, q.handle)
	delete(c.device.qps, q.qpn)
	c.qps = without(c.qps, q)
	return r.Answer(words(q.events), nil)
}

func (c *ucontext) createSRQ(r *frame.Request) unix.Errno {
	const sizeOfRequest = 32 // of struct mlx5_ib_create_srq
	m := make([]byte, sizeOfRequest)
	b, known := r.Core, copy(m, r.Driver)
	wr, sge := le.Uint32(b[20:]), le.Uint32(b[24:])
	pd, ok := lookup[*protectionDomain](c, le.Uint32(b[16:]))
	switch {
	case !ok:
		return unix.EINVAL // uverbs_cmd.c, __uverbs_create_xsrq
	case wr > maxSRQWR || sge > maxSGE:
		return unix.EINVAL // srq.c, mlx5_ib_create_srq
	case le.Uint32(m[20:]) != 0 || le.Uint32(m[28:]) != 0 || !zero(r.Driver[known:]):
		return unix.EINVAL // srq.c, create_srq_user: reserved0, reserved1. It asks for none of the flags
	}
	s := &receiveQueue{context: c, pd: pd, buffer: le.Uint64(m), record: le.Uint64(m[8:]), size: roundUp(wr + 1),
		shared: true, user: le.Uint64(b[8:]), limit: le.Uint32(b[28:])}
	// srq.c, mlx5_ib_create_srq: the size of a WQE follows from the number of its segments.
	s.shift = uint32(bits.Len32(roundUp(max(32, segmentSize*(1+sge))))) - 1
	s.maxWR, s.maxSGE = s.size-1, (1<<s.shift-segmentSize)/segmentSize
	if !c.readable(s.buffer, uint64(s.size)<<s.shift) || !c.readable(s.record, 4) {
		return unix.EFAULT // core/umem.c, ib_umem_get
	}
	pd.users++
	s.srqn = c.device.next()
	s.handle = c.add(s)
	return r.Answer(words(s.handle, s.maxWR, s.maxSGE, s.srqn), words(s.srqn, 0))
}

func (c *ucontext) modifySRQ(r *frame.Request) unix.Errno {
	const maskMaxWR, maskLimit = 1, 2
	s, ok := lookup[*receiveQueue](c, le.Uint32(r.Core))
	mask, limit := le.Uint32(r.Core[4:]), le.Uint32(r.Core[12:])
	if !ok || mask&maskMaxWR != 0 {
		return unix.EINVAL // srq.c, mlx5_ib_modify_srq: SRQs are not resized
	}
	if mask&maskLimit != 0 {
		if limit >= s.size {
			return unix.EINVAL // the same
		}
		s.limit = limit
	}
	return 0
}

func (c *ucontext) querySRQ(r *frame.Request) unix.Errno {
	s, ok := lookup[*receiveQueue](c, le.Uint32(r.Core[8:]))
	if !ok {
		return unix.EINVAL // uverbs_cmd.c, ib_uverbs_query_srq
	}
	return r.Answer(words(s.maxWR, s.maxSGE, s.limit, 0), nil)
}

func (c *ucontext) destroySRQ(r *frame.Request) unix.Errno {
	s, ok := lookup[*receiveQueue](c, le.Uint32(r.Core[8:]))
	if !ok {
		return unix.ENOENT // core/rdma_core.c, lookup_get_idr_uobject
	}
	if s.users > 0 {
		return unix.EBUSY // core/verbs.c, ib_destroy_srq_user
	}
	s.pd.users--
	s.events -= c.unread(s.user, eventSRQLimit)
	delete(c.objects, s.handle)
	return r.Answer(words(s.events), nil)
}
