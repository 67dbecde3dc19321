//go:build amd64 || arm64

package mlx5

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

const zeroBased = 1 << 5 // IB_ZERO_BASED

// allocDM asks for memory of the device, and returns where a program would find it when it
// has mapped its pages.
func (d *driver) allocDM(length uint64, alignment uint32) (handle uint64, page uint16, offset uint64, errno unix.Errno) {
	d.t.Helper()
	at, number := make([]byte, 8), make([]byte, 2)
	handle, errno = d.method(objectDM, 0, attr{id: 0}, u64(1, length), u32(2, alignment), attr{id: 0x1000, out: at}, attr{id: 0x1001, out: number})
	return handle, le.Uint16(number), le.Uint64(at), errno
}

func (d *driver) regDM(pd uint32, dm, offset, length uint64, access uint32, change ...attr) (handle uint64, key uint32, errno unix.Errno) {
	d.t.Helper()
	keys := make([]byte, 8)
	handle, errno = d.method(objectMR, 0, append([]attr{{id: 0}, u64(1, offset), u64(2, length), {id: 3, data: uint64(pd)}, u32(4, access), {id: 5, data: dm},
		{id: 6, out: keys[:4]}, {id: 7, out: keys[4:]}}, change...)...)
	require.Equal(d.t, keys[:4], keys[4:])
	return handle, le.Uint32(keys), errno
}

// Requests reach memory of the device, which begins with address 0, at both ends.
func TestDeviceMemory(t *testing.T) {
	f, a, b := newPair(t, fabric.AccessRemoteWrite|fabric.AccessRemoteRead, 0)
	dm, page, offset, errno := b.allocDM(100, 0)
	require.Zero(t, errno)
	require.EqualValues(t, pageSize-128, offset, "100 bytes take two units of 64")
	handle, key, errno := b.regDM(b.domain, dm, 36, 64, allAccess|zeroBased)
	require.Zero(t, errno)
	mapped := b.context.pages[(mmapMemory<<8+int(page))*pageSize+int(offset)+36:][:64]
	require.Zero(t, b.context.Map(frame.Mapping{Offset: (mmapMemory<<8 | uint64(page)) * pageSize, Length: pageSize, Flags: unix.MAP_SHARED}))

	now := time.Now()
	copy(a.data, "to the device")
	a.post(a.wqe(opWrite, remoteSegment(51, key), dataSegment(addressOf(a.data), 13, a.lkey)))
	run(f, &now, time.Millisecond)
	require.Equal(t, []syndrome{0}, causes(a.completions()))
	require.Equal(t, "to the device", string(mapped[51:]))

	copy(mapped, "from it")
	a.receive(dataSegment(addressOf(a.data), 7, a.lkey))
	b.post(b.wqe(opSend, dataSegment(0, 7, key)))
	run(f, &now, time.Millisecond)
	require.Equal(t, []syndrome{0}, causes(b.completions()))
	require.Equal(t, []syndrome{0}, causes(a.completions()))
	require.Equal(t, "from it", string(a.data[:7]))

	// What is behind its end is out of reach.
	a.post(a.wqe(opWrite, remoteSegment(52, key), dataSegment(addressOf(a.data), 13, a.lkey)))
	run(f, &now, time.Millisecond)
	require.Equal(t, []syndrome{remoteAccess}, causes(a.completions()))

	_, errno = b.method(objectDM, 1, attr{id: 0, data: dm})
	require.Equal(t, unix.EBUSY, errno, "a region is of it")
	_, errno = b.call(reregister, append(words(uint32(handle), 4), append(quads(0, 0, 0), words(b.domain, allAccess)...)...), nil)
	require.Equal(t, unix.EINVAL, errno, "its region is not changed")
	b.must(deregister, words(uint32(handle)), nil)
	_, errno = b.method(objectDM, 1, attr{id: 0, data: dm})
	require.Zero(t, errno)
	require.Empty(t, f.Violations())
}

func TestDeviceMemoryIsLimited(t *testing.T) {
	d := newDriver(t, fabric.New(), Config{})
	var handles []uint64
	for i := range 4 {
		dm, page, offset, errno := d.allocDM(memoryPages/4*pageSize, 12)
		require.Zero(t, errno)
		require.EqualValues(t, i*memoryPages/4, page)
		require.Zero(t, offset)
		handles = append(handles, dm)
	}
	_, _, _, errno := d.allocDM(1, 0)
	require.Equal(t, unix.ENOMEM, errno)
	_, errno = d.method(objectDM, 1, attr{id: 0, data: handles[2]})
	require.Zero(t, errno)
	_, _, _, errno = d.allocDM(memoryPages/4*pageSize+1, 0)
	require.Equal(t, unix.ENOMEM, errno, "no gap is so large")
	_, page, offset, errno := d.allocDM(pageSize+64, 7)
	require.Zero(t, errno)
	require.EqualValues(t, memoryPages/2, page)
	require.EqualValues(t, pageSize-128, offset)
	d.context.Close()
	require.NotContains(t, d.device.memory[:], true, "what a program leaves behind is freed")
}

// Methods of memory and counters are refused as the kernel refuses them.
func TestMethodsOfMemoryThatAreRefused(t *testing.T) {
	e := newEndpoint(t, fabric.New())
	domain, none := e.domain, uint64(999)
	dm, page, _, errno := e.allocDM(4096+64, 0)
	require.Zero(t, errno)
	alloc := func(length uint64, alignment uint32, change ...attr) func() unix.Errno {
		return func() unix.Errno {
			_, errno := e.method(objectDM, 0, append([]attr{{id: 0}, u64(1, length), u32(2, alignment), {id: 0x1000, out: make([]byte, 8)}}, change...)...)
			return errno
		}
	}
	reg := func(pd uint32, dm, offset, length uint64, access uint32) func() unix.Errno {
		return func() unix.Errno {
			_, _, errno := e.regDM(pd, dm, offset, length, access)
			return errno
		}
	}
	call := func(object, number uint16, attrs ...attr) func() unix.Errno {
		return func() unix.Errno {
			_, errno := e.method(object, number, attrs...)
			return errno
		}
	}
	mapping := func(page uint16, length uint64, flags int) func() unix.Errno {
		return func() unix.Errno {
			return e.context.Map(frame.Mapping{Offset: (mmapMemory<<8 | uint64(page)) * pageSize, Length: length, Flags: flags})
		}
	}
	counters, errno := e.method(objectCounters, 0, attr{id: 0})
	require.Zero(t, errno)
	for _, test := range []struct {
		name  string
		call  func() unix.Errno
		errno unix.Errno
	}{
		{"memory", alloc(64, 0), 0},
		{"no memory", alloc(0, 0), unix.EINVAL},
		{"memory of all addresses", alloc(^uint64(0), 0), unix.EINVAL},
		{"more than there is", alloc(memoryPages*pageSize+1, 0), unix.ENOMEM},
		{"an alignment that the device does not have", alloc(64, 13), unix.EINVAL},
		{"memory for steering", alloc(64, 0, u64(0x1002, 1)), unix.EOPNOTSUPP},
		{"a region", reg(domain, dm, 64, 4096, allAccess|zeroBased), 0},
		{"a region of a PD that does not exist", reg(999, dm, 0, 64, zeroBased), unix.ENOENT},
		{"a region of memory that does not exist", reg(domain, none, 0, 64, zeroBased), unix.ENOENT},
		{"a region of memory that is a PD", reg(domain, uint64(domain), 0, 64, zeroBased), unix.EINVAL},
		{"a region of a PD that is memory", reg(uint32(dm), dm, 0, 64, zeroBased), unix.EINVAL},
		{"a region that does not begin with 0", reg(domain, dm, 0, 64, allAccess), unix.EINVAL},
		{"a region with a right that does not exist", reg(domain, dm, 0, 64, zeroBased|1<<11), unix.EINVAL},
		{"a region with remote WRITE alone", reg(domain, dm, 0, 64, zeroBased|fabric.AccessRemoteWrite), unix.EINVAL},
		{"a region on demand", reg(domain, dm, 0, 64, zeroBased|1<<6), unix.EINVAL},
		{"a region for windows", reg(domain, dm, 0, 64, zeroBased|1<<4), unix.EINVAL},
		{"a region over the end", reg(domain, dm, 65, 4096, zeroBased), unix.EINVAL},
		{"a region behind the end", reg(domain, dm, 4161, 0, zeroBased), unix.EINVAL},
		{"a region at the end of all addresses", reg(domain, dm, 1, ^uint64(0), zeroBased), unix.EINVAL},
		{"memory that does not exist is freed", call(objectDM, 1, attr{id: 0, data: none}), unix.ENOENT},
		{"a PD is freed as memory", call(objectDM, 1, attr{id: 0, data: uint64(domain)}), unix.EINVAL},
		{"a mapping", mapping(page, 2*pageSize, unix.MAP_SHARED), 0},
		{"a private mapping", mapping(page, 2*pageSize, unix.MAP_PRIVATE), unix.EINVAL},
		{"a mapping of a part", mapping(page, pageSize, unix.MAP_SHARED), unix.EINVAL},
		{"a mapping from the middle", mapping(page+1, pageSize, unix.MAP_SHARED), unix.EINVAL},
		{"counters that count nothing are read", call(objectCounters, 2, attr{id: 0, data: counters}, attr{id: 1, out: make([]byte, 16)}), unix.EINVAL},
		{"counters that do not exist are read", call(objectCounters, 2, attr{id: 0, data: none}, attr{id: 1, out: make([]byte, 16)}), unix.ENOENT},
		{"a PD is destroyed as counters", call(objectCounters, 1, attr{id: 0, data: uint64(domain)}), unix.EINVAL},
		{"counters are destroyed", call(objectCounters, 1, attr{id: 0, data: counters}), 0},
		{"and once more", call(objectCounters, 1, attr{id: 0, data: counters}), unix.ENOENT},
	} {
		t.Run(test.name, func(t *testing.T) { require.Equal(t, test.errno, test.call()) })
	}
}

// Advice is about regions on demand of the PD, and about what they have.
func TestAdviceThatIsRefused(t *testing.T) {
	const onDemand, read, write, noFault = 1 << 6, 0, 1, 2
	e := newEndpoint(t, fabric.New())
	domain, other := uint64(e.domain), uint64(e.pd())
	dm, _, _, errno := e.allocDM(64, 0)
	require.Zero(t, errno)
	_, deviceKey, errno := e.regDM(e.domain, dm, 0, 64, allAccess|zeroBased)
	require.Zero(t, errno)
	at := addressOf(e.data)
	key, readOnly := e.key(e.domain, e.data, allAccess|onDemand), e.key(e.domain, e.data, onDemand)
	piece := func(at uint64, size, key uint32) []byte { return append(quads(at), words(size, key)...) }
	whole := piece(at, pageSize, key)
	for _, test := range []struct {
		name   string
		pd     uint64
		advice uint64
		flags  uint32
		list   []byte
		errno  unix.Errno
	}{
		{"a region", domain, write, 1, whole, 0},
		{"later", domain, read, 0, whole, 0},
		{"several", domain, noFault, 1, append(piece(at+8, pageSize-8, key), piece(at, 8, readOnly)...), 0},
		{"a region that is read", domain, read, 1, piece(at, 8, readOnly), 0},
		{"a PD that does not exist", 999, read, 1, whole, unix.ENOENT},
		{"a PD that is a CQ", uint64(e.cq), read, 1, whole, unix.EINVAL},
		{"a flag that does not exist", domain, read, 2, whole, unix.EINVAL},
		{"nothing", domain, read, 1, nil, unix.EINVAL},
		{"half a piece", domain, read, 1, append(whole[:16:16], 0, 0, 0, 0, 0, 0, 0, 0), unix.EINVAL},
		{"advice that does not exist", domain, 3, 1, whole, unix.EOPNOTSUPP},
		{"a region that does not exist", domain, read, 1, piece(at, 8, 0), unix.ENOENT},
		{"a region that is pinned", domain, read, 1, piece(at, 8, e.lkey), unix.ENOENT},
		{"a region of the device's memory", domain, read, 1, piece(0, 8, deviceKey), unix.ENOENT},
		{"a region of another PD", other, read, 1, whole, unix.EPERM},
		{"a region that is not written", domain, write, 1, piece(at, 8, readOnly), unix.EPERM},
		{"what is before a region", domain, read, 1, piece(at-8, 8, key), unix.EFAULT},
		{"what is behind a region", domain, read, 1, piece(at+8, pageSize, key), unix.EFAULT},
		{"the second of two", domain, read, 1, append(whole[:16:16], piece(at, 8, 0)...), unix.ENOENT},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errno := e.method(objectMR, 2, attr{id: 0, data: test.pd}, u64(1, test.advice), u32(2, test.flags), attr{id: 3, in: test.list})
			require.Equal(t, test.errno, errno)
		})
	}
}

// Memory of a region on demand need not be there when it is registered, but when a
// request comes for it.
func TestMemoryOnDemand(t *testing.T) {
	const onDemand = 1 << 6
	f, a, b := newPair(t, fabric.AccessRemoteWrite|fabric.AccessRemoteRead, 0)
	// The model cannot write to shared memory that is protected; to private memory it could.
	memory, err := unix.Mmap(-1, 0, pageSize, unix.PROT_NONE, unix.MAP_SHARED|unix.MAP_ANON)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(memory)) }()
	at := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(memory))))
	region := func(access uint32) []byte { return append(quads(at, pageSize, at), words(b.domain, access)...) }
	_, errno := b.call(register, region(allAccess), nil)
	require.Equal(t, unix.EFAULT, errno, "memory that is pinned has to be there")
	key := le.Uint32(b.must(register, region(allAccess|onDemand), nil)[4:])

	require.NoError(t, unix.Mprotect(memory, unix.PROT_READ|unix.PROT_WRITE))
	now := time.Now()
	copy(a.data, "it is there now")
	a.post(a.wqe(opWrite, remoteSegment(at, key), dataSegment(addressOf(a.data), 15, a.lkey)))
	run(f, &now, time.Millisecond)
	require.Equal(t, []syndrome{0}, causes(a.completions()))
	require.Equal(t, "it is there now", string(memory[:15]))

	require.NoError(t, unix.Mprotect(memory, unix.PROT_NONE))
	a.post(a.wqe(opWrite, remoteSegment(at, key), dataSegment(addressOf(a.data), 15, a.lkey)))
	run(f, &now, time.Millisecond)
	require.Equal(t, []syndrome{remoteOperation}, causes(a.completions()))
	require.Empty(t, f.Violations())
}

// A region on demand of 2^64-1 bytes from 0 on is of all memory (implicit).
func TestAllMemoryOnDemand(t *testing.T) {
	const onDemand, hugeTLB = 1 << 6, 1 << 7
	f, a, b := newPair(t, fabric.AccessRemoteWrite|fabric.AccessRemoteRead, 0)
	region := func(iova uint64, access uint32) []byte {
		return append(quads(0, math.MaxUint64, iova), words(b.domain, access)...)
	}
	for name, request := range map[string][]byte{
		"addresses of the caller's": region(pageSize, allAccess|onDemand),
		"huge pages":                region(0, allAccess|onDemand|hugeTLB),
	} {
		_, errno := b.call(register, request, nil)
		require.Equal(t, unix.EINVAL, errno, name)
	}
	key := le.Uint32(b.must(register, region(0, allAccess|onDemand), nil)[4:])
	memory := make([]byte, 64)
	copy(a.data, "wherever it lies")
	a.post(a.wqe(opWrite, remoteSegment(addressOf(memory), key), dataSegment(addressOf(a.data), 16, a.lkey)))
	now := time.Now()
	run(f, &now, time.Millisecond)
	require.Equal(t, []syndrome{0}, causes(a.completions()))
	require.Equal(t, "wherever it lies", string(memory[:16]))
	require.Empty(t, f.Violations())
}

// What a region on demand may be of is checked as well when it is made of other memory.
func TestMemoryOnDemandThatIsRefused(t *testing.T) {
	const onDemand, hugeTLB, translation, access = 1 << 6, 1 << 7, 1, 4
	e := newEndpoint(t, fabric.New())
	at := addressOf(e.data)
	made := func() []byte {
		return words(le.Uint32(e.must(register, append(quads(at, pageSize, at), words(e.domain, allAccess|onDemand)...), nil)))
	}
	for _, test := range []struct {
		name                string
		start, length, iova uint64
		access              uint32
		errno               unix.Errno
	}{
		{"all memory", 0, math.MaxUint64, 0, 0, 0},
		{"all memory from another address on", 0, math.MaxUint64, pageSize, 0, unix.EINVAL},
		{"all memory in huge pages", 0, math.MaxUint64, 0, hugeTLB, unix.EINVAL},
		{"memory behind the end", pageSize, math.MaxUint64, pageSize, 0, unix.EOVERFLOW},
		{"memory up to the end", math.MaxUint64 - 9, 9, math.MaxUint64 - 9, 0, unix.EOVERFLOW},
		{"no memory", pageSize, 0, pageSize, 0, unix.EINVAL},
		{"no memory from 0 on", 0, 0, 0, 0, unix.EOVERFLOW},
		{"memory that is not there", pageSize, 9, pageSize, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			to := quads(test.start, test.length, test.iova)
			rights := words(e.domain, allAccess|onDemand|test.access)
			_, errno := e.call(register, append(append([]byte(nil), to...), rights...), nil)
			require.Equal(t, test.errno, errno)
			_, errno = e.call(reregister, append(append(made(), words(translation|access)...), append(to, rights...)...), nil)
			require.Equal(t, test.errno, errno)
		})
	}
}

// Some rights of a region on demand take another one, which is of the memory that the request names.
func TestRightsOfMemoryOnDemand(t *testing.T) {
	const onDemand, windows, access = 1 << 6, 1 << 4, 4
	e := newEndpoint(t, fabric.New())
	at := addressOf(e.data)
	handle := le.Uint32(e.must(register, append(quads(at, pageSize, at), words(e.domain, fabric.AccessLocalWrite|onDemand)...), nil))
	change := func(start, length uint64, rights uint32) unix.Errno {
		_, errno := e.call(reregister, append(words(handle, access), append(quads(start, length, start), words(0, rights)...)...), nil)
		return errno
	}
	region := e.context.objects[handle].(*fabric.Region)
	require.Zero(t, change(0, 0, allAccess|onDemand))
	require.Equal(t, unix.EOVERFLOW, change(0, 0, allAccess|windows|onDemand))
	require.Equal(t, unix.EINVAL, change(0, 0, allAccess), "nothing to pin")
	require.EqualValues(t, pageSize, region.Length)
	require.Zero(t, change(at+8, 64, allAccess|windows|onDemand))
	require.Equal(t, []uint64{at + 8, 64, at + 8}, []uint64{region.Start, region.Length, region.Address})
	require.Zero(t, change(at, pageSize, allAccess))
	require.Zero(t, change(0, 0, allAccess|windows), "of memory that is pinned it stays")
	require.EqualValues(t, pageSize, region.Length)
}

// What is said of a DMA buffer is looked at in the kernel's order.
func TestDMABuffersThatAreRefused(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "no buffer"))
	require.NoError(t, err)
	defer file.Close()
	with, without := newEndpoint(t, fabric.New(), Config{DMABuf: true}), newEndpoint(t, fabric.New())
	type request struct {
		pd                   uint32
		offset, length, iova uint64
		fd                   int32
		access               uint32
		ofDriver             []attr
	}
	call := func(e *endpoint, r request) unix.Errno {
		_, errno := e.method(objectMR, 4, append([]attr{{id: 0}, {id: 1, data: uint64(r.pd)}, u64(2, r.offset), u64(3, r.length), u64(4, r.iova),
			u32(5, uint32(r.fd)), u32(6, r.access), {id: 7, out: make([]byte, 4)}, {id: 8, out: make([]byte, 4)}}, r.ofDriver...)...)
		return errno
	}
	for _, test := range []struct {
		name   string
		change func(*request)
		errno  unix.Errno
		always bool // a kernel without DMA buffers says so too
	}{
		{"a file that is no buffer", func(r *request) {}, unix.EINVAL, false},
		{"no file", func(r *request) { r.fd = -1 }, unix.EBADF, false},
		{"an end behind all addresses", func(r *request) { r.fd, r.offset, r.length = -1, pageSize, ^uint64(0) }, unix.EINVAL, false},
		{"direct access at an odd address", func(r *request) { r.offset, r.iova, r.ofDriver = 1, 1, []attr{u32(0x1000, 1)} }, unix.EOPNOTSUPP, true},
		{"direct access", func(r *request) { r.ofDriver = []attr{u32(0x1000, 1)} }, unix.EINVAL, false},
		{"a flag that does not exist", func(r *request) { r.fd, r.ofDriver = -1, []attr{u32(0x1000, 2)} }, unix.EINVAL, false},
		{"a PD that does not exist", func(r *request) { r.pd = 999 }, unix.ENOENT, true},
		{"a PD that is a CQ", func(r *request) { r.fd, r.pd = -1, with.cq }, unix.EINVAL, true},
		{"another place in its page", func(r *request) { r.fd, r.iova = -1, 1 }, unix.EINVAL, true},
		{"rights that buffers do not have", func(r *request) { r.fd, r.access = -1, 1<<4 }, unix.EINVAL, true},
		{"remote WRITE alone", func(r *request) { r.fd, r.access = -1, fabric.AccessRemoteWrite }, unix.EINVAL, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := request{pd: with.domain, length: pageSize, fd: int32(file.Fd()), access: fabric.AccessLocalWrite}
			test.change(&r)
			require.Equal(t, test.errno, call(with, r))
			want := unix.EOPNOTSUPP
			if test.always {
				want = test.errno
			}
			require.Equal(t, want, call(without, r))
		})
	}
	old := newEndpoint(t, fabric.New(), Config{StaticUARs: true, DMABuf: true})
	require.Equal(t, unix.EPROTONOSUPPORT, call(old, request{pd: old.domain}), "a kernel before 5.12")
}
