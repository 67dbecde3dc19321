//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"math/bits"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// Limits of the device, as it reports them.
const (
	maxQP               = 1 << 16
	maxWR               = 1 << 15
	maxSGE              = 30
	maxCQE              = 1<<22 - 1
	maxModerationCount  = 1<<16 - 1 // mlx5_ib.h, MLX5_MAX_CQ_COUNT
	maxModerationPeriod = 1<<12 - 1 // MLX5_MAX_CQ_PERIOD
	maxSRQWR            = 1<<15 - 1
	maxReads            = 16
	maxMessage          = 1 << 30
	mtu                 = 4096
	mtuCode             = 5
	portDown            = 1
	portActive          = 4
	defaultUidx         = 0xffffff
	physDisabled        = 3
	physLinkUp          = 5
	speedEDR            = 32
	width4X             = 2
)

// A ucontext is an open device: what mlx5_ib_ucontext is to the kernel. It has its objects
// by handle, in one space for all kinds.
type ucontext struct {
	device     *Device
	memory     *frame.Process // nil before GET_CONTEXT
	pages      []byte
	static     []*uar // those that the context has by itself
	bfregs     bfregs // of these
	uars       []*uar
	async      *frame.Channel
	objects    map[uint32]any
	handle     uint32
	cqeVersion byte
	past       map[uint32]bool // numbers of queues that were destroyed
	qps        []*queuePair
	cqs        []*completionQueue
	flushed    time.Time
	addrs      []uint64 // of records, and what was read there
	words      []uint64
}

func (d *Device) open(pages []byte) (frame.File, error) {
	c := &ucontext{device: d, pages: pages, objects: map[uint32]any{}, past: map[uint32]bool{}}
	d.fabric.mu.Lock()
	defer d.fabric.mu.Unlock()
	d.contexts = append(d.contexts, c)
	return c, nil
}

// Close destroys what the program has left, as the kernel does.
func (c *ucontext) Close() {
	f := c.device.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	c.device.contexts = without(c.device.contexts, c)
	for _, o := range c.objects {
		switch o := o.(type) {
		case *queuePair:
			delete(c.device.qps, o.qpn)
		case *memoryRegion:
			delete(c.device.keys, o.key)
		case *window:
			delete(c.device.windows, o.key>>8)
		case *frame.Channel:
			o.Close()
		}
	}
	if c.async != nil {
		c.async.Close()
	}
}

// Command carries out a command.
func (c *ucontext) Command(r *frame.Request) unix.Errno {
	c.device.fabric.mu.Lock()
	defer c.device.fabric.mu.Unlock()
	table := commands
	if r.Extended {
		table = extendedCommands
	}
	command, ok := table[r.Command]
	switch {
	case c.device.removed:
		return unix.EIO // core/uverbs_main.c, ib_uverbs_write: disassociated
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
	c.device.fabric.mu.Lock()
	defer c.device.fabric.mu.Unlock()
	switch {
	case c.device.removed:
		return unix.EIO // core/uverbs_ioctl.c, ib_uverbs_cmd_verbs: disassociated
	case c.memory == nil:
		return unix.EINVAL // core/uverbs_main.c, ib_uverbs_get_ucontext_file
	}
	return methods[r.MethodID].run(c, r)
}

// readRecords looks at the doorbell records of all queues.
func (c *ucontext) readRecords() {
	c.addrs = c.addrs[:0]
	for _, q := range c.qps {
		c.addrs = append(c.addrs, q.record)
	}
	for _, q := range c.cqs {
		c.addrs = append(c.addrs, q.record)
	}
	if len(c.words) < len(c.addrs) {
		c.words = make([]uint64, 2*len(c.addrs))
	}
	if c.memory == nil || c.memory.ReadWords(c.addrs, c.words) != nil {
		return // the program has ended
	}
	second := func(word uint64) uint32 { return bits.ReverseBytes32(uint32(word >> 32)) } // of the record, which is big-endian
	for i, q := range c.qps {
		if posted := uint16(second(c.words[i])); posted != q.posted && q.state >= stateInit {
			q.post(posted)
		}
	}
	for i, q := range c.cqs {
		q.arm(second(c.words[len(c.qps)+i]))
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
	var b [1]byte
	return size > 0 && c.memory.Read(addr, b[:]) == nil && c.memory.Read(addr+size-1, b[:]) == nil
}

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
