//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"errors"
	"math/bits"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// Limits of the device, as it reports them.
const (
	maxQP               = 1 << 16
	vectors             = 1 // of completions
	maxWR               = 1 << 15
	maxSGE              = 30
	maxCQE              = 1<<22 - 1
	maxModerationCount  = 1<<16 - 1 // mlx5_ib.h, MLX5_MAX_CQ_COUNT
	maxModerationPeriod = 1<<12 - 1 // MLX5_MAX_CQ_PERIOD
	maxSRQWR            = 1<<15 - 1
	maxReads            = 16
	defaultUidx         = 0xffffff
	memoryPages         = 32 // of the device
)

// A ucontext is an open device: what mlx5_ib_ucontext is to the kernel. It has its objects
// by handle, in one space for all kinds.
type ucontext struct {
	device     *Device
	memory     *frame.Process // nil before GET_CONTEXT
	pages      []byte
	clock      *atomic.Uint64 // the register that shows the clock, nil until it is mapped
	static     []*uar         // those that the context has by itself
	bfregs     bfregs         // of these
	uars       []*uar
	async      *frame.Channel
	objects    map[uint32]any
	handle     uint32
	cqeVersion byte
	past       map[uint32]bool // numbers of queues that were destroyed
	qps        []*queuePair
	cqs        []*completionQueue
	flushed    time.Time
	// What readRecords looks at, and has found there.
	rung  []*queuePair
	armed []*completionQueue
	addrs []uint64
	words []uint64
}

func (d *Device) open(pages []byte) (frame.File, error) {
	c := &ucontext{device: d, pages: pages, objects: map[uint32]any{}, past: map[uint32]bool{}}
	d.Fabric().Lock()
	defer d.Fabric().Unlock()
	d.contexts = append(d.contexts, c)
	return c, nil
}

// Close destroys what the program has left, as the kernel does.
func (c *ucontext) Close() {
	f := c.device.Fabric()
	f.Lock()
	defer f.Unlock()
	c.device.contexts = without(c.device.contexts, c)
	c.leaveDomains()
	for _, o := range c.objects {
		switch o := o.(type) {
		case *queuePair:
			c.checkPresence("QP", o.Number, o.record)
			delete(c.device.QPs, o.Number)
		case *completionQueue:
			c.checkPresence("CQ", o.cqn, o.record)
		case *receiveQueue:
			c.checkPresence("SRQ", o.srqn, o.record)
		case *fabric.Region:
			delete(c.device.Regions, o.Key)
		case *fabric.Window:
			delete(c.device.Windows, o.Key>>8)
		case *deviceMemory:
			o.release()
		case *frame.Channel:
			o.Close()
		}
	}
	if c.async != nil {
		c.async.Close()
	}
}

// checkPresence is for a queue that is there until the program's file is closed: its memory has to be
// there too. A device has pinned it, and goes on with it, while the model would take what the program has at
// that address next for the queue. A program that has ended has no memory.
func (c *ucontext) checkPresence(what string, number uint32, record uint64) {
	if c.device.Removed {
		return // with all that it had
	}
	if err := c.memory.Read(record, make([]byte, 4)); errors.Is(err, unix.EIO) { // fs/proc/base.c, mem_rw
		c.device.Fabric().Violation("the memory of %s %#x was unmapped before it: %v", what, number, err)
	}
}

// getContext is uverbs_cmd.c, ib_uverbs_get_context.
func (c *ucontext) getContext(r *frame.Request) unix.Errno {
	if errno := c.alloc(r); errno != 0 {
		return errno
	}
	fd, errno := c.newAsync(r.Give)
	if errno != 0 {
		c.memory = nil
		return errno
	}
	return r.Answer(words(uint32(fd), vectors), c.describe())
}

// newAsync makes the channel of asynchronous events, and gives it to the program.
func (c *ucontext) newAsync(give func(fd int) (int, unix.Errno)) (int, unix.Errno) {
	async, err := frame.NewChannel()
	if err != nil {
		return 0, unix.EMFILE // core/rdma_core.c, alloc_begin_fd_uobject: get_unused_fd_flags
	}
	fd, errno := give(async.FD())
	if errno != 0 {
		async.Close()
		return 0, errno
	}
	c.async = async
	return fd, 0
}

// alloc is main.c, mlx5_ib_alloc_ucontext. The driver's part is struct
// mlx5_ib_alloc_ucontext_req, or its second version.
func (c *ucontext) alloc(r *frame.Request) unix.Errno {
	const (
		first       = 8
		second      = 16 // without what was added to it
		flagDEVX    = 1  // MLX5_IB_ALLOC_UCTX_DEVX
		capsDynamic = 2  // MLX5_LIB_CAP_DYN_UAR
	)
	m := make([]byte, 32)
	if copy(m, r.Driver); len(r.Driver) != first && len(r.Driver) < second {
		return unix.EINVAL // mlx5_ib_alloc_ucontext
	}
	total, low := (le.Uint32(m)+1)&^1, le.Uint32(m[4:])
	dynamic := le.Uint64(m[24:])&capsDynamic != 0 && !c.device.config.StaticUARs
	switch {
	case le.Uint32(m[8:])&^flagDEVX != 0:
		return unix.EOPNOTSUPP // main.c, mlx5_ib_alloc_ucontext
	case le.Uint32(m[12:]) != 0 || m[17] != 0 || le.Uint16(m[18:]) != 0 || le.Uint32(m[20:]) != 0:
		return unix.EOPNOTSUPP // main.c, mlx5_ib_alloc_ucontext: comp_mask, reserved
	case low > total-1:
		return unix.EINVAL // the same
	case !dynamic && total == 0:
		return unix.EINVAL // main.c, calc_total_bfregs
	case !dynamic && total > mostBfregs:
		return unix.ENOMEM // the same
	case le.Uint32(m[8:])&flagDEVX != 0:
		return unix.EINVAL // devx.c, mlx5_ib_devx_create: the device has no log_max_uctx
	}
	c.memory, c.cqeVersion = r.Process(), min(m[16], c.device.cqeVersion())
	if !dynamic {
		c.addStaticUARs(total, low)
		c.bfregs.simple = len(r.Driver) == first
	}
	c.putClockInfo()
	return 0
}

// describe is main.c, set_ucontext_resp.
func (c *ucontext) describe() []byte {
	m := make([]byte, 72)
	put := func(at int, v uint32) { le.PutUint32(m[at:], v) }
	put(0, maxQP)
	if !c.device.config.NoBlueFlame {
		put(4, bfregSize)
	}
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
	put(36, 1<<0|1<<1)      // MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_CORE_CLOCK_OFFSET, _DUMP_FILL_MKEY
	put(40, 72)             // response length
	m[44] = c.cqeVersion
	m[45] = 2 // CREATE_AH has an answer
	if c.device.Link == fabric.Ethernet {
		m[46] = 1 // no header has to be inline
	}
	m[47] = 1 // MLX5_IB_CLOCK_INFO_V1
	le.PutUint64(m[48:], coreClockOffset)
	put(56, 12) // log2 of a UAR's size
	put(60, 1)  // UARs in a page
	put(68, fabric.DumpFillKey)
	return m
}

// Command carries out a command.
func (c *ucontext) Command(r *frame.Request) unix.Errno {
	c.device.Fabric().Lock()
	defer c.device.Fabric().Unlock()
	table := commands
	if r.Extended {
		table = extendedCommands
	}
	command, ok := table[r.Command]
	switch {
	case c.device.Removed && (r.Extended || !destroyCommands[r.Command]):
		return unix.EIO // core/rdma_core.c, rdma_lookup_get_uobject: disassociated
	case !ok:
		return unix.EOPNOTSUPP // core/rdma_core.h, uapi_get_method
	case !r.Extended && r.Command == getContext:
		if c.memory != nil {
			return unix.EINVAL // uverbs_cmd.c, ib_alloc_ucontext: there is one already
		}
	case c.memory == nil:
		return unix.EINVAL // core/uverbs_main.c, ib_uverbs_get_ucontext_file
	}
	return command(c, r)
}

// Call carries out a method of the ioctl interface.
func (c *ucontext) Call(r *frame.Call) unix.Errno {
	c.device.Fabric().Lock()
	defer c.device.Fabric().Unlock()
	m := methods[r.MethodID]
	switch {
	case c.device.Removed && !m.destroys():
		return unix.EIO // core/rdma_core.c, rdma_lookup_get_uobject: disassociated
	case c.memory == nil && r.MethodID != getContextMethod:
		return unix.EINVAL // core/uverbs_main.c, ib_uverbs_get_ucontext_file
	}
	return m.run(c, r)
}

// inUse says that an object cannot be destroyed, because of others that use it. With the device the
// kernel has destroyed all objects, and has handles of them left (core/rdma_core.c, uverbs_destroy_uobject).
func (c *ucontext) inUse(used bool) bool { return used && !c.device.Removed }

// readRecords looks at the doorbell records of all queues that share a register which was written.
func (c *ucontext) readRecords() {
	c.rung, c.armed, c.addrs = c.rung[:0], c.armed[:0], c.addrs[:0]
	for _, q := range c.qps {
		if q.uar.rung {
			c.rung, c.addrs = append(c.rung, q), append(c.addrs, q.record)
		}
	}
	for _, q := range c.cqs {
		if q.uar.armed {
			c.armed, c.addrs = append(c.armed, q), append(c.addrs, q.record)
		}
	}
	if len(c.words) < len(c.addrs) {
		c.words = make([]uint64, 2*len(c.addrs))
	}
	if c.memory == nil || c.memory.ReadWords(c.addrs, c.words) != nil {
		return // the program has ended
	}
	second := func(word uint64) uint32 { return bits.ReverseBytes32(uint32(word >> 32)) } // of the record, which is big-endian
	for i, q := range c.rung {
		if word := second(c.words[i]); uint16(word) != q.Posted && q.State >= fabric.StateInit {
			q.post(word)
		}
	}
	for i, q := range c.armed {
		q.arm(second(c.words[len(c.rung)+i]))
	}
}

// event queues an asynchronous event: struct ib_uverbs_async_event_desc.
func (c *ucontext) event(kind uint32, element uint64) {
	b := le.AppendUint64(nil, element)
	b = le.AppendUint32(b, kind)
	if c.async != nil {
		c.async.Send(le.AppendUint32(b, 0))
	}
}

// unread takes the events of an object from the asynchronous channel that the program has not
// read. They are of these kinds.
func (c *ucontext) unread(element uint64, kinds ...uint32) uint32 {
	if c.async == nil { // the program has not asked for it
		return 0
	}
	return uint32(c.async.Remove(func(b []byte) bool {
		for _, kind := range kinds {
			if le.Uint64(b) == element && le.Uint32(b[8:]) == kind {
				return true
			}
		}
		return false
	}))
}

func (c *ucontext) add(object any) uint32 {
	c.handle++
	c.objects[c.handle] = object
	return c.handle
}

// lookup returns the object with a handle, if it is of that kind.
func lookup[T any](c *ucontext, handle uint32) (T, bool) {
	object, ok := c.objects[handle].(T)
	return object, ok
}

func without[T comparable](list []T, x T) []T {
	var out []T
	for _, e := range list {
		if e != x {
			out = append(out, e)
		}
	}
	return out
}

// words returns a response of u32 fields.
func words(values ...uint32) []byte {
	var b []byte
	for _, v := range values {
		b = le.AppendUint32(b, v)
	}
	return b
}

// readable says whether the kernel could pin a buffer of the program (ib_umem_get is EFAULT).
func (c *ucontext) readable(addr, size uint64) bool {
	var b [1]byte // which may be behind the end of a file
	return c.memory.Readable(addr, size) && c.memory.Read(addr, b[:]) == nil && c.memory.Read(addr+size-1, b[:]) == nil
}

// writable says the same of a buffer that the device writes to.
func (c *ucontext) writable(addr, size uint64) bool {
	return c.readable(addr, size) && c.memory.Writable(addr, size)
}

// misplaced says that a queue, or its doorbell record, is where the device cannot be told of it: the queue of
// a CQ begins a page, and others at a multiple of offsetUnit (mlx5_ib.h, mlx5_umem_find_best_cq_quantized_pgoff and
// mlx5_umem_find_best_quantized_pgoff). That a record is at a multiple of 8 is a guess.
func misplaced(buffer, unit, record uint64) bool { return buffer%unit != 0 || record%8 != 0 }

const offsetUnit = 64

// quads returns a response of u64 fields.
func quads(values ...uint64) []byte {
	var b []byte
	for _, v := range values {
		b = le.AppendUint64(b, v)
	}
	return b
}

// zero says whether all bytes are (ib_is_udata_cleared).
func zero(b []byte) bool { return len(bytes.TrimLeft(b, "\x00")) == 0 }

func swap(v uint64) uint64 { return bits.ReverseBytes64(v) }

func powerOfTwo(n uint32) bool { return n != 0 && n&(n-1) == 0 }

func roundUp(n uint32) uint32 {
	if n <= 1 {
		return 1
	}
	return 1 << bits.Len32(n-1)
}
