//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// A driver is this process as a program with an open device: its queues are memory of the
// test, and its commands the bytes that a program would write.
type driver struct {
	t       *testing.T
	device  *Device
	context *ucontext
	memory  []byte // what is left for allocations

	driverID uint32 // that ioctls name
}

func newDriver(t *testing.T, f *fabric.Fabric, config Config) *driver {
	t.Helper()
	memory, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(memory) })
	self := frame.Self()
	if err := self.Read(addressOf(memory), make([]byte, 1)); errors.Is(err, unix.ENOSYS) {
		t.Skip("left out, as in emulators: ", err)
	}
	d := &driver{t: t, device: config.newDevice(f), memory: memory, driverID: driverID}
	file, err := d.device.open(make([]byte, nodePages))
	require.NoError(t, err)
	d.context = file.(*ucontext)
	d.context.memory, d.context.cqeVersion = self, d.device.cqeVersion() // as GET_CONTEXT does, which gives a descriptor
	d.context.addStaticUARs(16, 4)
	d.context.async, err = frame.NewChannel()
	require.NoError(t, err)
	t.Cleanup(d.context.Close)
	return d
}

// page allocates a page.
func (d *driver) page() []byte {
	p := d.memory[:pageSize:pageSize]
	d.memory = d.memory[pageSize:]
	return p
}

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

// call writes a command. The request is what follows the pointer to the response, if the
// command has one.
func (d *driver) call(number uint32, request, provider []byte) ([]byte, unix.Errno) {
	d.t.Helper()
	answer := make([]byte, 256)
	var body []byte
	if number != deregister && number != modify && number != deallocate && number != deallocateMW && number != modifySRQ && number != attach && number != detach {
		body = le.AppendUint64(nil, addressOf(answer))
	}
	body = append(append(body, request...), provider...)
	b := words(number, 0)
	le.PutUint16(b[4:], uint16((8+len(body))/4))
	le.PutUint16(b[6:], uint16(len(answer)/4))
	r, errno := frame.ParseWrite(d.context.memory, append(b, body...))
	if errno != 0 {
		return nil, errno
	}
	return answer, d.context.Command(r)
}

const (
	allocate     = 3
	deallocate   = 4
	register     = 9
	deregister   = 13
	allocateMW   = 14
	deallocateMW = 16
	createCQ     = 18
	resizeCQ     = 19
	reregister   = 11
	destroyCQ    = 20
	createQP     = 24
	modify       = 26
	destroyQP    = 27
	attach       = 30
	detach       = 31
	createSRQ    = 32
	modifySRQ    = 33
)

func (d *driver) must(number uint32, request, provider []byte) []byte {
	d.t.Helper()
	answer, errno := d.call(number, request, provider)
	require.Zero(d.t, errno, "command %d", number)
	return answer
}

func (d *driver) pd() uint32 { return le.Uint32(d.must(allocate, nil, nil)) }

// key registers memory.
func (d *driver) key(pd uint32, b []byte, access uint32) uint32 {
	d.t.Helper()
	return le.Uint32(d.must(register, append(quads(addressOf(b), uint64(len(b)), addressOf(b)), words(pd, access)...), nil)[4:])
}

// An endpoint is a QP with its queues, one CQ and a registered page.
type endpoint struct {
	*driver
	domain, handle, qpn, cq uint32
	cqes, record, cqRecord  []byte
	recvs, sends            []byte
	posted, received, seen  int
	data                    []byte
	lkey                    uint32
}

const (
	cqSize    = 8 // entries
	sendSize  = 16
	recvSize  = 4
	allAccess = fabric.AccessLocalWrite | fabric.AccessRemoteRead | fabric.AccessRemoteWrite | fabric.AccessRemoteAtomic
)

func cqRequest(channel int32) []byte {
	return append(quads(77), words(cqSize-1, 0, uint32(channel), 0)...)
}

func cqDriver(buffer, record uint64, size uint32) []byte {
	return append(quads(buffer, record), words(size, 0, 0, 0)...)
}

func newEndpoint(t *testing.T, f *fabric.Fabric, config ...Config) *endpoint {
	t.Helper()
	d := newDriver(t, f, append(config, Config{})[0])
	e := &endpoint{driver: d, domain: d.pd(), cqes: d.page(), record: d.page(), cqRecord: d.page(), data: d.page()}
	e.cq = le.Uint32(d.must(createCQ, cqRequest(-1), cqDriver(addressOf(e.cqes), addressOf(e.cqRecord), cqeSize)))
	queues := d.page()
	e.recvs, e.sends = queues[:recvSize*segmentSize], queues[recvSize*segmentSize:]
	answer := d.must(createQP, e.qpRequest(), e.qpDriver(addressOf(queues)))
	e.handle, e.qpn = le.Uint32(answer), le.Uint32(answer[4:])
	e.lkey = d.key(e.domain, e.data, allAccess)
	return e
}

func (e *endpoint) qpRequest() []byte {
	b := append(quads(78), words(e.domain, e.cq, e.cq, 0, sendSize, recvSize, 1, 1, 0)...)
	return append(b, 0, byte(fabric.RC), 0, 0)
}

func (e *endpoint) qpDriver(queues uint64) []byte {
	b := append(quads(queues, addressOf(e.record)), words(sendSize, recvSize, 4, 0, 5, 0)...)
	return append(b, quads(0, 0)...)
}

// modifyTo is a MODIFY_QP.
func (e *endpoint) modifyTo(state byte, mask uint32, peer *endpoint, access uint32, rnrRetry byte) []byte {
	b := make([]byte, 112)
	if peer != nil {
		le.PutUint16(b[20:], peer.device.LID)
		le.PutUint32(b[84:], peer.qpn)
	}
	b[31], b[104] = 1, 1
	le.PutUint32(b[64:], e.handle)
	le.PutUint32(b[68:], mask|fabric.MaskState)
	le.PutUint32(b[88:], access)
	b[96], b[98], b[101], b[102] = state, fabric.MTUCode, 1, 1
	b[103], b[105], b[106], b[107] = 1, 1, 2, rnrRetry
	return b
}

// required are the attributes that a QP of RC needs for each state.
var required = map[byte]uint32{
	fabric.StateInit: fabric.MaskPKey | fabric.MaskPort | fabric.MaskAccess,
	fabric.StateRTR:  fabric.MaskAV | fabric.MaskMTU | fabric.MaskDest | fabric.MaskRQPSN | fabric.MaskMaxDest | fabric.MaskMinRNR,
	fabric.StateRTS:  fabric.MaskTimeout | fabric.MaskRetry | fabric.MaskRNRRetry | fabric.MaskSQPSN | fabric.MaskMaxRead,
}

func (e *endpoint) connect(peer *endpoint, access uint32, rnrRetry byte) {
	e.t.Helper()
	for state := byte(fabric.StateInit); state <= fabric.StateRTS; state++ {
		e.must(modify, e.modifyTo(state, required[state], peer, access, rnrRetry), nil)
	}
}

// wqe is one of the send queue, signaled, without its last segments.
func (e *endpoint) wqe(op opcode, segments ...[]byte) []byte {
	b := bytes.Join(append([][]byte{make([]byte, segmentSize)}, segments...), nil)
	be.PutUint32(b, uint32(e.posted)<<8|uint32(op))
	be.PutUint32(b[4:], e.qpn<<8|uint32(len(b)/segmentSize))
	b[11] = ctrlSignal
	return b
}

func dataSegment(addr uint64, size, key uint32) []byte {
	return be.AppendUint64(be.AppendUint32(be.AppendUint32(nil, size), key), addr)
}

func remoteSegment(addr uint64, key uint32) []byte {
	return be.AppendUint32(be.AppendUint32(be.AppendUint64(nil, addr), key), 0)
}

// post puts a WQE on the send queue, before its end, and rings.
func (e *endpoint) post(wqe []byte) {
	copy(e.sends[e.posted%sendSize*basicBlock:], wqe)
	e.posted += max(1, int(blocks(len(wqe))))
	be.PutUint32(e.record[4:], uint32(e.posted))
	e.ring()
}

func (e *endpoint) ring() {
	e.context.qps[0].uar.bf[0].doorbell.Store(swap(uint64(e.qpn << 8)))
}

// receive posts a receive WQE.
func (e *endpoint) receive(segment []byte) {
	copy(e.recvs[e.received%recvSize*segmentSize:], segment)
	e.received++
	be.PutUint32(e.record, uint32(e.received))
}

// completions returns the CQEs that are new, consuming them.
func (e *endpoint) completions() (found [][]byte) {
	for {
		c := e.cqes[e.seen%cqSize*cqeSize:][:cqeSize]
		if c[63]>>4 == 0xf || int(c[63]&1) != e.seen/cqSize&1 {
			return found
		}
		found = append(found, bytes.Clone(c))
		e.seen++
		be.PutUint32(e.cqRecord, uint32(e.seen))
	}
}

// run lets the hardware work for some time of its own.
func run(f *fabric.Fabric, now *time.Time, d time.Duration) {
	for end := now.Add(d); now.Before(end); *now = now.Add(50 * time.Microsecond) {
		f.Step(*now)
	}
}

func newPair(t *testing.T, access uint32, rnrRetry byte) (f *fabric.Fabric, a, b *endpoint) {
	t.Helper()
	f = fabric.New()
	a, b = newEndpoint(t, f), newEndpoint(t, f)
	for _, e := range []*endpoint{a, b} {
		for i := range cqSize {
			e.cqes[i*cqeSize+63] = 0xf0
		}
	}
	a.connect(b, access, rnrRetry)
	b.connect(a, access, rnrRetry)
	return f, a, b
}

func read(a, b *endpoint) []byte {
	return a.wqe(opRead, remoteSegment(addressOf(b.data), b.lkey), dataSegment(addressOf(a.data), 8, a.lkey))
}

// causes returns 0 for each CQE without an error.
func causes(cqes [][]byte) (s []syndrome) {
	for _, c := range cqes {
		cause := syndrome(0)
		if op := c[63] >> 4; op == cqeRequestError || op == cqeResponseError {
			cause = syndrome(c[55])
		}
		s = append(s, cause)
	}
	return s
}

// A request that fails has an error CQE, and what is posted behind it, and at a responder
// that is in the error state, is flushed.
func TestRequestsThatFail(t *testing.T) {
	const remoteAll = fabric.AccessRemoteRead | fabric.AccessRemoteWrite | fabric.AccessRemoteAtomic
	for _, test := range []struct {
		name   string
		access uint32 // of the responder's QP
		rnr    byte
		wqe    func(a, b *endpoint) []byte
		recv   func(b *endpoint) []byte // nil: none
		cause  syndrome
		remote []syndrome // CQEs of the responder
	}{
		{name: "SEND of a key that does not exist", cause: localProtection,
			wqe: func(a, b *endpoint) []byte { return a.wqe(opSend, dataSegment(addressOf(a.data), 8, 0xdead00)) }},
		{name: "SEND of more than the key covers", cause: localProtection,
			wqe: func(a, b *endpoint) []byte { return a.wqe(opSend, dataSegment(addressOf(a.data)+1, pageSize, a.lkey)) }},
		{name: "SEND of memory before the key's", cause: localProtection,
			wqe: func(a, b *endpoint) []byte { return a.wqe(opSend, dataSegment(addressOf(a.data)-1, 8, a.lkey)) }},
		{name: "SEND of another PD's key", cause: localProtection,
			wqe: func(a, b *endpoint) []byte {
				return a.wqe(opSend, dataSegment(addressOf(a.data), 8, a.key(a.pd(), a.data, allAccess)))
			}},
		{name: "SEND of the peer's key", cause: localProtection,
			wqe: func(a, b *endpoint) []byte { return a.wqe(opSend, dataSegment(addressOf(b.data), 8, b.lkey)) }},
		{name: "READ to memory that is read only", access: remoteAll, cause: localProtection,
			wqe: func(a, b *endpoint) []byte {
				return a.wqe(opRead, remoteSegment(addressOf(b.data), b.lkey), dataSegment(addressOf(a.data), 8, a.key(a.domain, a.data, 0)))
			}},
		{name: "WRITE with a key that does not exist", access: remoteAll, cause: remoteAccess,
			wqe: func(a, b *endpoint) []byte {
				return a.wqe(opWrite, remoteSegment(addressOf(b.data), 0xdead00), dataSegment(addressOf(a.data), 8, a.lkey))
			}},
		{name: "WRITE over the end", access: remoteAll, cause: remoteAccess,
			wqe: func(a, b *endpoint) []byte {
				return a.wqe(opWrite, remoteSegment(addressOf(b.data)+pageSize-7, b.lkey), dataSegment(addressOf(a.data), 8, a.lkey))
			}},
		{name: "WRITE at the end of all addresses", access: remoteAll, cause: remoteAccess,
			wqe: func(a, b *endpoint) []byte {
				return a.wqe(opWrite, remoteSegment(^uint64(0)-3, b.lkey), dataSegment(addressOf(a.data), 8, a.lkey))
			}},
		{name: "WRITE that the QP does not let in", access: fabric.AccessRemoteRead, cause: remoteInvalid,
			wqe: func(a, b *endpoint) []byte {
				return a.wqe(opWrite, remoteSegment(addressOf(b.data), b.lkey), dataSegment(addressOf(a.data), 8, a.lkey))
			}},
		{name: "WRITE that the memory does not let in", access: remoteAll, cause: remoteAccess,
			wqe: func(a, b *endpoint) []byte {
				return a.wqe(opWrite, remoteSegment(addressOf(b.data), b.key(b.domain, b.data, fabric.AccessLocalWrite|fabric.AccessRemoteRead)),
					dataSegment(addressOf(a.data), 8, a.lkey))
			}},
		{name: "READ with another PD's key", access: remoteAll, cause: remoteAccess,
			wqe: func(a, b *endpoint) []byte {
				return a.wqe(opRead, remoteSegment(addressOf(b.data), b.key(b.pd(), b.data, allAccess)), dataSegment(addressOf(a.data), 8, a.lkey))
			}},
		{name: "atomic at an odd address", access: remoteAll, cause: remoteInvalid,
			wqe: func(a, b *endpoint) []byte {
				return a.wqe(opFetchAdd, remoteSegment(addressOf(b.data)+1, b.lkey), make([]byte, 16), dataSegment(addressOf(a.data), 8, a.lkey))
			}},
		{name: "atomic of 4 bytes", access: remoteAll, cause: localLength,
			wqe: func(a, b *endpoint) []byte {
				return a.wqe(opFetchAdd, remoteSegment(addressOf(b.data), b.lkey), make([]byte, 16), dataSegment(addressOf(a.data), 4, a.lkey))
			}},
		{name: "SEND longer than the receive", cause: remoteInvalid, remote: []syndrome{localLength},
			wqe:  func(a, b *endpoint) []byte { return a.wqe(opSend, dataSegment(addressOf(a.data), 9, a.lkey)) },
			recv: func(b *endpoint) []byte { return dataSegment(addressOf(b.data), 8, b.lkey) }},
		{name: "SEND to a receive without a key", cause: remoteOperation, remote: []syndrome{localProtection},
			wqe:  func(a, b *endpoint) []byte { return a.wqe(opSend, dataSegment(addressOf(a.data), 8, a.lkey)) },
			recv: func(b *endpoint) []byte { return dataSegment(addressOf(b.data), 8, 0xdead00) }},
		{name: "SEND without a receive, and no retries for that", cause: rnrRetriesExceeded,
			wqe: func(a, b *endpoint) []byte { return a.wqe(opSend, dataSegment(addressOf(a.data), 8, a.lkey)) }},
		{name: "SEND without a receive, after retries", rnr: 3, cause: rnrRetriesExceeded,
			wqe: func(a, b *endpoint) []byte { return a.wqe(opSend, dataSegment(addressOf(a.data), 8, a.lkey)) }},
		{name: "SEND to a QP that has failed", cause: retriesExceeded,
			wqe: func(a, b *endpoint) []byte {
				b.must(modify, b.modifyTo(fabric.StateError, 0, nil, 0, 0), nil)
				return a.wqe(opSend, dataSegment(addressOf(a.data), 8, a.lkey))
			}},
		{name: "SEND to a QP that expects packets of other numbers", cause: retriesExceeded,
			wqe: func(a, b *endpoint) []byte {
				b.context.qps[0].Attr.RQPSN++
				return a.wqe(opSend, dataSegment(addressOf(a.data), 8, a.lkey))
			}},
		{name: "SEND to a QP that answers to another port", cause: retriesExceeded,
			wqe: func(a, b *endpoint) []byte {
				le.PutUint16(b.context.qps[0].Attr.Path[20:], b.device.LID)
				return a.wqe(opSend, dataSegment(addressOf(a.data), 8, a.lkey))
			}},
		{name: "SEND in packets of another size", cause: remoteInvalid, remote: []syndrome{flushed},
			wqe: func(a, b *endpoint) []byte {
				b.context.qps[0].Attr.MTU = 1 // 256 bytes
				return a.wqe(opSend, dataSegment(addressOf(a.data), 257, a.lkey))
			},
			recv: func(b *endpoint) []byte { return dataSegment(addressOf(b.data), pageSize, b.lkey) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, a, b := newPair(t, test.access, test.rnr)
			before := bytes.Clone(b.data)
			if test.recv != nil {
				b.receive(test.recv(b))
			}
			a.post(test.wqe(a, b))
			a.post(a.wqe(opSend, dataSegment(addressOf(a.data), 8, a.lkey)))
			now := time.Now()
			run(f, &now, 50*time.Millisecond)
			cqes := a.completions()
			require.Equal(t, []syndrome{test.cause, flushed}, causes(cqes))
			require.EqualValues(t, cqeRequestError, cqes[0][63]>>4)
			require.Equal(t, test.cause.vendor(false), cqes[0][54])
			require.EqualValues(t, 0, be.Uint16(cqes[0][60:]))
			require.EqualValues(t, 1, be.Uint16(cqes[1][60:]))
			require.Equal(t, test.remote, causes(b.completions()))
			require.Equal(t, before, b.data)
			require.Empty(t, f.Violations())

			// What is posted later is flushed too.
			a.post(a.wqe(opSend, dataSegment(addressOf(a.data), 8, a.lkey)))
			a.receive(dataSegment(addressOf(a.data), 8, a.lkey))
			run(f, &now, 5*time.Millisecond)
			require.Equal(t, []syndrome{flushed, flushed}, causes(a.completions()))
		})
	}
}

func TestAReceiveThatComesLateEndsTheRetries(t *testing.T) {
	f, a, b := newPair(t, 0, 7)
	copy(a.data, "late")
	a.post(a.wqe(opSend, dataSegment(addressOf(a.data), 4, a.lkey)))
	now := time.Now()
	run(f, &now, time.Second)
	require.Empty(t, a.completions())
	b.receive(dataSegment(addressOf(b.data), 8, b.lkey))
	run(f, &now, time.Millisecond)
	require.Equal(t, []syndrome{0}, causes(a.completions()))
	require.Equal(t, []syndrome{0}, causes(b.completions()))
	require.Equal(t, "late", string(b.data[:4]))
}

func TestARecordWithoutADoorbellIsNotSeen(t *testing.T) {
	f, a, b := newPair(t, 0, 7)
	b.receive(dataSegment(addressOf(b.data), 8, b.lkey))
	a.post(a.wqe(opSend, dataSegment(addressOf(a.data), 4, a.lkey)))
	a.context.takeDoorbells() // as if it had not been rung
	now := time.Now()
	run(f, &now, 10*time.Millisecond)
	require.Empty(t, a.completions())
	cq := a.context.cqs[0]
	cq.uar.cq[0].Store(swap(uint64(cq.cqn)))
	run(f, &now, 10*time.Millisecond)
	require.Empty(t, a.completions(), "the doorbell of a CQ is another one")
	a.ring()
	run(f, &now, time.Millisecond)
	require.Len(t, a.completions(), 1)
}

func TestAWQEOfAnotherIndexIsAViolation(t *testing.T) {
	f, a, _ := newPair(t, 0, 7)
	wqe := a.wqe(opSend, dataSegment(addressOf(a.data), 4, a.lkey))
	wqe[2]++
	a.post(wqe)
	now := time.Now()
	run(f, &now, time.Millisecond)
	require.Len(t, f.Violations(), 1)
	require.Contains(t, f.Violations()[0], "is for WQE 1")
}

// What is above a counter of 16 bits, or of 24, is something else to a device, or nothing.
func TestCountersWithMoreBitsThanTheyHaveAreViolations(t *testing.T) {
	for says, set := range map[string]func(a, b *endpoint, wqe []byte){
		"has the modifier 0x1":                    func(_, _ *endpoint, wqe []byte) { wqe[0] = 1 },
		"record of the send queue is 0x10001":     func(a, _ *endpoint, _ []byte) { be.PutUint32(a.record[4:], 1<<16+1) },
		"its doorbell record is 0x00010001":       func(_, b *endpoint, _ []byte) { be.PutUint32(b.record, 1<<16+1) },
		"is 0x01000000, and indices have 24 bits": func(a, _ *endpoint, _ []byte) { be.PutUint32(a.cqRecord, 1<<24) },
	} {
		f, a, b := newPair(t, 0, 7)
		for range cqSize + 1 { // the device looks how far a CQ is read when it seems full
			b.receive(dataSegment(addressOf(b.data), 8, b.lkey))
			wqe := a.sends[a.posted%sendSize*basicBlock:]
			copy(wqe, a.wqe(opSend, dataSegment(addressOf(a.data), 4, a.lkey)))
			a.posted++
			be.PutUint32(a.record[4:], uint32(a.posted))
			set(a, b, wqe)
			a.ring()
			now := time.Now()
			run(f, &now, time.Millisecond)
			b.completions()
		}
		require.NotEmpty(t, f.Violations(), says)
		require.Contains(t, f.Violations()[0], says)
	}
}

func TestAnOverfullSendQueueIsAViolation(t *testing.T) {
	f, a, _ := newPair(t, 0, 7)
	for range sendSize + 1 {
		a.post(a.wqe(opSend, dataSegment(addressOf(a.data), 4, a.lkey)))
	}
	now := time.Now()
	run(f, &now, time.Millisecond)
	require.Len(t, f.Violations(), 1)
	require.Contains(t, f.Violations()[0], "17 basic blocks are in use of a send queue of 16")
}

// The device has executed the WQEs, but the driver cannot know: no CQE says so.
func TestASlotThatIsUsedAgainBeforeItsCompletionIsAViolation(t *testing.T) {
	f, a, b := newPair(t, fabric.AccessRemoteWrite, 7)
	write := func(signaled byte) []byte {
		w := a.wqe(opWrite, remoteSegment(addressOf(b.data), b.lkey), dataSegment(addressOf(a.data), 4, a.lkey))
		w[11] = signaled
		return w
	}
	now := time.Now()
	for range sendSize - 1 {
		a.post(write(0))
		run(f, &now, 100*time.Microsecond)
	}
	a.post(write(ctrlSignal))
	run(f, &now, time.Millisecond)
	require.Len(t, a.completions(), 1)
	for range sendSize {
		a.post(write(0))
		run(f, &now, 100*time.Microsecond)
	}
	require.Empty(t, f.Violations())
	a.post(write(0))
	run(f, &now, time.Millisecond)
	require.Len(t, f.Violations(), 1)
	require.Contains(t, f.Violations()[0], "a slot was overwritten before its completion")
}

// The kernel keeps it for itself that all requests of a QP are signaled: the device looks at each WQE.
func TestAQPWhoseRequestsAreAllSignaledSaysSoInEachWQE(t *testing.T) {
	f, a, b := newPair(t, fabric.AccessRemoteWrite, 7)
	a.context.qps[0].signalAll = true
	w := a.wqe(opWrite, remoteSegment(addressOf(b.data), b.lkey), dataSegment(addressOf(a.data), 4, a.lkey))
	w[11] = 0
	a.post(w)
	now := time.Now()
	run(f, &now, time.Millisecond)
	require.Equal(t, 1, f.Stats().Requests)
	require.Empty(t, a.completions())
}

func TestAWQEThatIsChangedAfterItsDoorbellIsAViolation(t *testing.T) {
	f, a, b := newPair(t, 0, 7)
	f.Hostile = rand.New(rand.NewPCG(1, 0))
	now := time.Now()
	for range 2 { // they wait for receives
		a.post(a.wqe(opSend, dataSegment(addressOf(a.data), 4, a.lkey)))
		run(f, &now, time.Millisecond)
	}
	be.PutUint32(a.sends[basicBlock+segmentSize:], 3)
	for range 2 {
		b.receive(dataSegment(addressOf(b.data), 8, b.lkey))
	}
	run(f, &now, 10*time.Millisecond)
	require.Len(t, f.Violations(), 1)
	require.Contains(t, f.Violations()[0], "WQE 1 was changed after its doorbell")
}

// A program that ends takes its send queue away at any moment, also when the device has read the
// control segment of a WQE only.
func TestASendQueueThatIsGoneIsNoViolation(t *testing.T) {
	f, a, _ := newPair(t, 0, 7)
	page, gone := a.page(), a.page()
	wqe := a.wqe(opSend, dataSegment(addressOf(a.data), 4, a.lkey))
	copy(page[pageSize-segmentSize:], wqe)
	q := a.context.qps[0]
	q.send = addressOf(gone) - segmentSize
	takeAway(t, gone)
	a.post(nil)
	now := time.Now()
	run(f, &now, time.Millisecond)
	require.Empty(t, f.Violations())
	require.Equal(t, fabric.StateError, q.State)
}

// twoPages maps pages of which the first may be read, and the second may not.
func twoPages(t *testing.T) []byte {
	t.Helper()
	pages, err := unix.Mmap(-1, 0, 2*pageSize, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(pages)) })
	require.NoError(t, unix.Mprotect(pages[:pageSize], unix.PROT_READ))
	return pages
}

// takeAway replaces a page by one of a file, behind its end: nobody else can get the address, and
// what is there cannot be reached.
func takeAway(t *testing.T, page []byte) {
	t.Helper()
	file, err := unix.MemfdCreate("empty", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(file)
	_, err = unix.MmapPtr(file, 0, unsafe.Pointer(&page[0]), pageSize, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_FIXED)
	require.NoError(t, err)
}

func TestAnOverfullReceiveQueueIsAViolation(t *testing.T) {
	f, a, b := newPair(t, 0, 7)
	for range recvSize + 1 {
		b.receive(dataSegment(addressOf(b.data), 8, b.lkey))
	}
	a.post(a.wqe(opSend, dataSegment(addressOf(a.data), 4, a.lkey)))
	now := time.Now()
	run(f, &now, time.Millisecond)
	require.Len(t, f.Violations(), 1)
	require.Contains(t, f.Violations()[0], "5 WQEs are posted to a queue of 4")
}

func TestADoorbellOfAnotherQueueIsAViolation(t *testing.T) {
	f, a, b := newPair(t, 0, 7)
	u := a.context.qps[0].uar
	for _, test := range []struct {
		register *atomic.Uint64
		value    uint64
		says     string
	}{
		{u.bf[0].doorbell, uint64(b.qpn) << 8, "is rung for QP"},
		{u.cq[0], 0xabcdef, "is rung for CQ"},
		{a.context.static[0].bf[0].doorbell, uint64(a.qpn) << 8, "and it has UAR"},
		{a.context.static[7].cq[0], uint64(a.context.cqs[0].cqn), "and has UAR"},
	} {
		before := len(f.Violations())
		test.register.Store(swap(test.value))
		f.Step(time.Now())
		require.Len(t, f.Violations(), before+1)
		require.Contains(t, f.Violations()[before], test.says)
	}
}

// Without a link requests are repeated, and fail in the end; with it they arrive.
func TestLossOfTheLink(t *testing.T) {
	for _, back := range []bool{true, false} {
		t.Run(fmt.Sprintf("back %v", back), func(t *testing.T) {
			f, a, b := newPair(t, 0, 7)
			b.receive(dataSegment(addressOf(b.data), 8, b.lkey))
			b.device.SetLink(false)
			require.EqualValues(t, 1, b.context.unread(1, fabric.EventPortError))
			require.EqualValues(t, 1, b.device.Query()[26], "IB_PORT_DOWN")
			a.post(a.wqe(opSend, dataSegment(addressOf(a.data), 4, a.lkey)))
			now := time.Now()
			run(f, &now, 10*time.Microsecond)
			require.Empty(t, a.completions())
			want := []syndrome{retriesExceeded}
			if back {
				b.device.SetLink(true)
				require.EqualValues(t, 1, b.context.unread(1, fabric.EventPortActive))
				want = []syndrome{0}
			}
			run(f, &now, time.Second)
			require.Equal(t, want, causes(a.completions()))
		})
	}
}

// Each outage is survived as often as the QP may try: what one has cost is not missing in the next.
func TestEachOutageHasAllRetries(t *testing.T) {
	f, a, b := newPair(t, 0, 7)
	q := a.context.qps[0]
	now := time.Now()
	// tries returns how many times the timer runs out until the request fails, with the link
	// down, or until it is up.
	tries := func(most int) (n int) {
		b.device.SetLink(false)
		a.post(a.wqe(opSend, dataSegment(addressOf(a.data), 4, a.lkey)))
		f.Step(now)
		for ; n < most && q.State == fabric.StateRTS; n++ {
			now = q.Wait
			f.Step(now)
		}
		return n
	}
	for range 3 {
		b.receive(dataSegment(addressOf(b.data), 8, b.lkey))
		require.Equal(t, int(q.Attr.Retry), tries(int(q.Attr.Retry)))
		b.device.SetLink(true)
		now = q.Wait
		f.Step(now)
		require.Equal(t, []syndrome{0}, causes(a.completions()), "it was tried once more")
	}
	require.Equal(t, int(q.Attr.Retry)+1, tries(100))
	f.Step(now)
	require.Equal(t, []syndrome{retriesExceeded}, causes(a.completions()))
}

// An answer that the receiver is not ready is one: the timer for the next begins anew.
func TestAnOutageAfterRNRHasAllRetries(t *testing.T) {
	f, a, b := newPair(t, 0, 7)
	q := a.context.qps[0]
	a.post(a.wqe(opSend, dataSegment(addressOf(a.data), 4, a.lkey)))
	now := time.Now()
	f.Step(now)
	require.False(t, q.Wait.IsZero(), "it waits for a receive")
	b.device.SetLink(false)
	n := 0
	for ; q.State == fabric.StateRTS; n++ {
		now = q.Wait
		f.Step(now)
	}
	require.Equal(t, 1+int(q.Attr.Retry)+1, n, "the wait of RNR, then the first try and the others")
}

func TestADeviceThatIsRemoved(t *testing.T) {
	f, a, b := newPair(t, 0, 7)
	b.receive(dataSegment(addressOf(b.data), 8, b.lkey))
	b.device.Remove()
	require.EqualValues(t, 1, b.context.unread(0, fabric.EventDeviceFatal))
	_, errno := b.call(allocate, nil, nil)
	require.Equal(t, unix.EIO, errno)
	require.Equal(t, unix.EIO, b.context.Map(frame.Mapping{Length: pageSize, Flags: unix.MAP_SHARED}))
	a.post(a.wqe(opSend, dataSegment(addressOf(a.data), 4, a.lkey)))
	b.post(b.wqe(opSend, dataSegment(addressOf(b.data), 4, b.lkey)))
	now := time.Now()
	run(f, &now, time.Second)
	require.Equal(t, []syndrome{retriesExceeded}, causes(a.completions()))
	require.Empty(t, b.completions())
	destroy := func(command, handle uint32) unix.Errno {
		_, errno := b.call(command, words(handle, 0), nil)
		return errno
	}
	require.Zero(t, destroy(destroyCQ, b.cq), "the QP that uses it is gone")
	require.Equal(t, unix.ENOENT, destroy(destroyCQ, b.cq))
	require.Zero(t, destroy(destroyQP, b.handle))
	_, errno = b.call(deallocate, words(b.domain), nil)
	require.Zero(t, errno, "the regions that use it are gone")
}

func TestResizeOfACQ(t *testing.T) {
	f, a, b := newPair(t, fabric.AccessRemoteWrite, 7)
	now := time.Now()
	write := func() {
		a.post(a.wqe(opWrite, remoteSegment(addressOf(b.data), b.lkey), dataSegment(addressOf(a.data), 4, a.lkey)))
		run(f, &now, time.Millisecond)
	}
	write()
	require.Len(t, a.completions(), 1)
	write() // not polled
	const bigger = 32
	buffer := a.page()
	for i := range bigger {
		buffer[i*cqeSize+63] = 0xf0
	}
	resize := func(entries uint32, buffer []byte, size uint32) ([]byte, unix.Errno) {
		return a.call(resizeCQ, words(a.cq, entries), append(quads(addressOf(buffer)), words(size, 0)...))
	}
	_, errno := resize(1, buffer, cqeSize)
	require.Equal(t, unix.EINVAL, errno, "there is no room for what was not polled")
	_, errno = resize(bigger-1, buffer[64:], cqeSize)
	require.Equal(t, unix.EINVAL, errno, "memory that does not begin a page")
	_, errno = resize(bigger-1, buffer, 128)
	require.Equal(t, unix.EINVAL, errno, "another size of CQEs")
	answer, errno := resize(bigger-1, buffer, cqeSize)
	require.Zero(t, errno)
	require.EqualValues(t, bigger-1, le.Uint32(answer))
	found := a.completions() // of the old buffer
	require.Len(t, found, 2)
	require.EqualValues(t, cqeRequest, found[0][63]>>4)
	require.EqualValues(t, cqeResize, found[1][63]>>4)
	write()
	require.Empty(t, a.completions())
	require.EqualValues(t, cqeRequest<<4, buffer[3*cqeSize+63], "the CQE behind that of the resize, in the first round of the new buffer")
	require.Empty(t, f.Violations())
}

func TestReregistrationOfMemory(t *testing.T) {
	f, a, b := newPair(t, fabric.AccessRemoteWrite, 7)
	region := a.device.Regions[a.lkey]
	other := a.page()
	rereg := func(flags uint32, start uint64, pd, access uint32) unix.Errno {
		_, errno := a.call(reregister, append(append(words(region.Handle, flags), quads(start, pageSize, start)...), words(pd, access)...), nil)
		return errno
	}
	require.Equal(t, unix.EINVAL, rereg(0, 0, 0, 0), "nothing to change")
	require.Equal(t, unix.EOPNOTSUPP, rereg(8, 0, 0, 0), "a change that does not exist")
	require.Equal(t, unix.EINVAL, rereg(4, 0, 0, fabric.AccessRemoteWrite), "remote write without local write")
	require.Equal(t, unix.EINVAL, rereg(2, 0, 999, 0), "a PD that does not exist")
	require.Equal(t, unix.EFAULT, rereg(1, pageSize, 0, 0), "memory that does not exist")
	require.Zero(t, rereg(1, addressOf(other), 0, 0))
	copy(other, "moved")
	a.post(a.wqe(opWrite, remoteSegment(addressOf(b.data), b.lkey), dataSegment(addressOf(other), 5, a.lkey)))
	now := time.Now()
	run(f, &now, time.Millisecond)
	require.Equal(t, "moved", string(b.data[:5]))
	pd := a.pd()
	require.Zero(t, rereg(2, 0, pd, 0))
	require.Equal(t, unix.EBUSY, func() unix.Errno { _, errno := a.call(deallocate, words(pd), nil); return errno }())
	a.post(a.wqe(opWrite, remoteSegment(addressOf(b.data), b.lkey), dataSegment(addressOf(other), 5, a.lkey)))
	run(f, &now, time.Millisecond)
	require.Equal(t, []syndrome{0, localProtection}, causes(a.completions()), "the key is of another PD now")
}

// The event is due if there is a CQE that the arm does not cover and no event has told of.
func TestArmedCQ(t *testing.T) {
	const solicited = armOnlySolicited
	type step struct {
		arm   uint32 // or noCommand
		put   int    // CQEs
		se    bool
		event bool
	}
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"not armed", []step{{arm: noCommand, put: 2}}},
		{"the first arm is 0, as is a record that is new", []step{{arm: 0}, {arm: noCommand, put: 1, event: true}}},
		{"one event for one arm", []step{{arm: 0}, {arm: noCommand, put: 3, event: true}, {arm: noCommand, put: 1}}},
		{"armed after a CQE that was not seen", []step{{arm: noCommand, put: 1}, {arm: 0, event: true}}},
		{"armed after a CQE that was seen", []step{{arm: noCommand, put: 1}, {arm: 1}, {arm: noCommand, put: 1, event: true}}},
		{"armed before the CQE of the event is polled", []step{{arm: 0}, {arm: noCommand, put: 1, event: true}, {arm: 1 << 28},
			{arm: noCommand, put: 1, event: true}}},
		{"armed with the number of the arm before", []step{{arm: 0}, {arm: noCommand, put: 1, event: true}, {arm: 1}, {arm: noCommand, put: 1},
			{arm: 1<<28 | 1, event: true}}},
		{"the same arm twice", []step{{arm: 0}, {arm: noCommand, put: 1, event: true}, {arm: 0}, {arm: noCommand, put: 1}}},
		{"solicited only", []step{{arm: solicited}, {arm: noCommand, put: 1}, {arm: noCommand, put: 1, se: true, event: true}}},
		{"solicited before it was armed", []step{{arm: noCommand, put: 1, se: true}, {arm: solicited, event: true}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newEndpoint(t, fabric.New())
			c := e.context.cqs[0]
			require.Equal(t, words(noCommand), e.cqRecord[4:8])
			var err error
			c.channel, err = frame.NewChannel()
			require.NoError(t, err)
			t.Cleanup(c.channel.Close)
			for i, s := range test.steps {
				if s.arm != noCommand {
					be.PutUint32(e.cqRecord[4:], s.arm)
					c.uar.cq[0].Store(swap(uint64(c.cqn)))
					e.device.Fabric().Step(time.Now())
				}
				for range s.put {
					c.put(completion{op: cqeSend, solicited: s.se})
				}
				events := c.channel.Remove(func(b []byte) bool {
					require.Equal(t, quads(77), b)
					return true
				})
				require.Equal(t, s.event, events == 1, "step %d: %d events", i, events)
			}
		})
	}
}

func TestAnOverrunCQBreaksItsQPs(t *testing.T) {
	f, a, _ := newPair(t, 0, 7)
	c := a.context.cqs[0]
	for range cqSize {
		c.put(completion{op: cqeSend})
	}
	require.False(t, c.dead)
	c.put(completion{op: cqeSend})
	require.True(t, c.dead)
	require.Equal(t, fabric.StateError, a.context.qps[0].State)
	require.EqualValues(t, 1, a.context.unread(77, fabric.EventCQError))
	require.EqualValues(t, 1, a.context.unread(78, fabric.EventQPFatal))
	require.Empty(t, f.Violations())
}

// A QP takes no READs if it has no room for them, and no more at once than it has room for. All
// that were posted when the first was sent may be under way at once.
func TestReadsThatAPeerHasNoRoomFor(t *testing.T) {
	const all = fabric.AccessRemoteRead | fabric.AccessRemoteWrite | fabric.AccessRemoteAtomic
	connect := func(e, peer *endpoint, sends, takes byte) {
		for state := byte(fabric.StateInit); state <= fabric.StateRTS; state++ {
			m := e.modifyTo(state, required[state], peer, all, 7)
			m[101], m[102] = sends, takes
			e.must(modify, m, nil)
		}
	}
	for _, test := range []struct {
		name         string
		sends, takes byte
		together     int // posted before the device looks
		fence        byte
		want         []syndrome
	}{
		{"none are taken", 1, 0, 1, 0, []syndrome{remoteInvalid}},
		{"an attribute of 0 is one for who sends", 0, 1, 2, 0, []syndrome{0, 0}},
		{"as many as are taken", 4, 4, 6, 0, []syndrome{0, 0, 0, 0, 0, 0}},
		{"room is a power of two", 16, 3, 4, 0, []syndrome{0, 0, 0, 0}},
		{"one too many", 16, 4, 5, 0, []syndrome{0, 0, 0, 0, remoteInvalid}},
		{"one by one", 16, 1, 1, 0, []syndrome{0}},
		{"each waits for the one before", 16, 1, 3, fenceReads, []syndrome{0, 0, 0}},
		{"each waits for changes of keys alone", 16, 1, 3, 1, []syndrome{0, remoteInvalid, flushed}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := fabric.New()
			a, b := newEndpoint(t, f), newEndpoint(t, f)
			for i := range cqSize {
				a.cqes[i*cqeSize+63], b.cqes[i*cqeSize+63] = 0xf0, 0xf0
			}
			connect(a, b, test.sends, test.sends)
			connect(b, a, test.takes, test.takes)
			now := time.Now()
			for range test.together {
				w := read(a, b)
				w[11] |= test.fence << 5
				a.post(w)
			}
			run(f, &now, time.Millisecond)
			require.Equal(t, test.want, causes(a.completions()))
			if test.want[len(test.want)-1] == 0 {
				for range 3 { // the device has nothing under way
					a.post(read(a, b))
					run(f, &now, time.Millisecond)
				}
				require.Equal(t, []syndrome{0, 0, 0}, causes(a.completions()))
			}
			require.Empty(t, f.Violations())
		})
	}
}

// A QP that has not been told to send yet says once that something has come for it.
func TestTheFirstPacketIsAnEvent(t *testing.T) {
	f := fabric.New()
	a, b := newEndpoint(t, f), newEndpoint(t, f)
	a.connect(b, 0, 7)
	for state := byte(fabric.StateInit); state <= fabric.StateRTR; state++ {
		b.must(modify, b.modifyTo(state, required[state], a, 0, 7), nil)
	}
	now := time.Now()
	for range 2 {
		b.receive(dataSegment(addressOf(b.data), 8, b.lkey))
		a.post(a.wqe(opSend, dataSegment(addressOf(a.data), 8, a.lkey)))
		run(f, &now, time.Millisecond)
	}
	require.EqualValues(t, 1, b.context.unread(78, fabric.EventCommEst))
	require.EqualValues(t, 1, le.Uint32(b.must(destroyQP, words(b.handle, 0), nil)), "the program has got it")
}

func TestAnMTUThatDoesNotExistIsRefused(t *testing.T) {
	e := newEndpoint(t, fabric.New())
	e.must(modify, e.modifyTo(fabric.StateInit, required[fabric.StateInit], nil, 0, 0), nil)
	toRTR := e.modifyTo(fabric.StateRTR, required[fabric.StateRTR], e, 0, 0)
	for _, code := range []byte{0, fabric.MTUCode + 1} {
		toRTR[98] = code
		_, errno := e.call(modify, toRTR, nil)
		require.Equal(t, unix.EINVAL, errno)
	}
	toRTR[98] = fabric.MTUCode
	e.must(modify, toRTR, nil)
}

func TestADeviceWithoutAtomics(t *testing.T) {
	const all = fabric.AccessRemoteRead | fabric.AccessRemoteWrite | fabric.AccessRemoteAtomic
	f := fabric.New()
	a, b := newEndpoint(t, f, Config{NoAtomics: true}), newEndpoint(t, f)
	require.Zero(t, le.Uint32(a.context.attributes()[108:]))
	require.EqualValues(t, 1, le.Uint32(b.context.attributes()[108:]))
	a.must(modify, a.modifyTo(fabric.StateInit, required[fabric.StateInit], b, all, 7), nil) // no room for any yet
	toRTR := a.modifyTo(fabric.StateRTR, required[fabric.StateRTR], b, 0, 7)
	_, errno := a.call(modify, toRTR, nil)
	require.Equal(t, unix.EOPNOTSUPP, errno)
	a.must(modify, a.modifyTo(fabric.StateInit, fabric.MaskAccess, b, fabric.AccessRemoteRead, 7), nil)
	a.must(modify, toRTR, nil)
}

// What a datagram's packet was: on InfiniBand the service level, on Ethernet
// the kind of its header.
func TestThePacketOfADatagramInItsCQE(t *testing.T) {
	f := fabric.New()
	ib, eth := Config{}.newDevice(f), Config{Link: fabric.Ethernet}.newDevice(f)
	require.EqualValues(t, 5, packet(&fabric.Receipt{GID: ib.GIDs[0], SL: 5}))
	require.EqualValues(t, 0x10|5, packet(&fabric.Receipt{GID: ib.GIDs[0], SL: 5, Global: true}))
	for source, want := range []uint32{0x10, 0x11, 0x10, 0x12} { // RoCE v1 and v2 of the link-local address, and of 127.0.0.1
		g := eth.GIDs[source]
		require.Equal(t, want, packet(&fabric.Receipt{GID: g, SL: 5, Global: true}), "%s, %v", g, g.Kind)
	}
}

// A datagram to a group comes to its members on all devices, but not to the QP that
// sends it, a member too.
func TestADatagramToAGroupComesToEachMember(t *testing.T) {
	f := fabric.New()
	const qkey, lid, groupQPN = 7, 0xc001, 0xffffff
	now := time.Now()
	gid := [16]byte{0: 0xff, 1: 0x0e, 15: 1}
	member := func(e *endpoint, lid uint32) []byte { return append(gid[:], words(e.handle, lid)...) }
	var ends []*endpoint
	for range 3 {
		e := newEndpoint(t, f)
		for i := range cqSize {
			e.cqes[i*cqeSize+63] = 0xf0
		}
		q := e.context.qps[0]
		_, errno := e.call(attach, member(e, lid), nil)
		require.Equal(t, unix.EINVAL, errno, "a QP of RC")
		q.Service, q.State, q.Attr.QKey = fabric.UD, fabric.StateRTS, qkey
		_, errno = e.call(attach, member(e, 7), nil)
		require.Equal(t, unix.EINVAL, errno, "a LID of one port")
		e.must(attach, member(e, lid), nil)
		e.must(attach, member(e, lid), nil) // once more
		ends = append(ends, e)
	}
	send := func(qkey uint32) (came []int) {
		for _, e := range ends {
			e.receive(dataSegment(addressOf(e.data), 100, e.lkey))
		}
		av := make([]byte, 48)
		be.PutUint32(av, qkey)
		be.PutUint32(av[8:], groupQPN|extendedAV)
		be.PutUint16(av[14:], lid)
		be.PutUint32(av[28:], 1<<30)
		copy(av[32:], gid[:])
		w := ends[0].wqe(opSend, av, []byte{0x80, 0, 0, 3, 'a', 'l', 'l', 15: 0})
		w[11] = 0
		ends[0].post(w)
		run(f, &now, time.Millisecond)
		for _, e := range ends {
			n := len(e.completions())
			e.received -= 1 - n // that one is overwritten
			came = append(came, n)
		}
		return came
	}
	require.Equal(t, []int{0, 1, 1}, send(qkey))
	require.Equal(t, "all", string(ends[2].data[40:43]))
	require.Equal(t, []int{0, 0, 0}, send(qkey+1))
	_, errno := ends[2].call(destroyQP, words(ends[2].handle, 0), nil)
	require.Equal(t, unix.EBUSY, errno, "it is a member")
	ends[2].must(detach, member(ends[2], lid), nil)
	_, errno = ends[2].call(detach, member(ends[2], lid), nil)
	require.Equal(t, unix.EINVAL, errno)
	require.Equal(t, []int{0, 1, 0}, send(qkey))
	ends[2].must(destroyQP, words(ends[2].handle, 0), nil)
}

func TestRegistersOfQPs(t *testing.T) {
	take := func(b *bfregs, n int) (list []int) {
		for range n {
			list = append(list, b.alloc())
		}
		return list
	}
	b := &bfregs{count: make([]int, 16), low: 4}
	require.Equal(t, []int{12, 13, 14, 15, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1, 2}, take(b, 17), "as libmlx5 asks for them")
	b.count[13]--
	b.count[7]--
	require.Equal(t, []int{13, 7, 3}, take(b, 3), "those that are free again")
	require.Equal(t, []int{1, 2, 3, 0, 0}, take(&bfregs{count: make([]int, 4), low: 3}, 5), "0 if there is no other")
	require.Equal(t, []int{1, 1}, take(&bfregs{count: make([]int, 2)}, 2))
	require.Equal(t, []int{0, 0}, take(&bfregs{count: make([]int, 16), low: 4, simple: true}, 2))

	// The answer counts those of the page that are for fast paths too.
	e := newEndpoint(t, fabric.New())
	require.Equal(t, 12, e.context.qps[0].bfreg)
	require.EqualValues(t, 6, e.context.qps[0].uar.page)
	answer := e.must(createQP, e.qpRequest(), e.qpDriver(addressOf(e.page())))
	require.EqualValues(t, 6*bfregsOfPage+1, le.Uint32(answer[32:]))
	e.must(destroyQP, words(le.Uint32(answer), 0), nil)
	answer = e.must(createQP, e.qpRequest(), e.qpDriver(addressOf(e.page())))
	require.EqualValues(t, 6*bfregsOfPage+1, le.Uint32(answer[32:]))
}

func TestQPsOfADeviceWithoutUserIndices(t *testing.T) {
	f := fabric.New()
	d := newDriver(t, f, Config{CQEVersion0: true})
	e := &endpoint{driver: d, domain: d.pd(), record: d.page()}
	e.cq = le.Uint32(d.must(createCQ, cqRequest(-1), cqDriver(addressOf(d.page()), addressOf(d.page()), cqeSize)))
	queues := d.page()
	provider := e.qpDriver(addressOf(queues))
	_, errno := e.call(createQP, e.qpRequest(), provider)
	require.Equal(t, unix.EINVAL, errno, "an index")
	le.PutUint32(provider[32:], defaultUidx)
	e.must(createQP, e.qpRequest(), provider)
}

func TestTheLimitOfAnSRQ(t *testing.T) {
	e := newEndpoint(t, fabric.New())
	request := append(quads(79), words(e.domain, 7, 1, 0)...)
	provider := func(flags, reserved0, reserved1 uint32) []byte {
		return append(quads(addressOf(e.page()), addressOf(e.page())), words(flags, reserved0, 0, reserved1)...)
	}
	for _, test := range []struct {
		provider []byte
		errno    unix.Errno
	}{{provider(1<<5, 0, 0), 0}, {provider(0, 1, 0), unix.EINVAL}, {provider(0, 0, 1), unix.EINVAL}} {
		_, errno := e.call(createSRQ, request, test.provider)
		require.Equal(t, test.errno, errno)
	}
	srq := le.Uint32(e.must(createSRQ, request, provider(0, 0, 0)))
	const limit = 2
	for most, errno := range map[uint32]unix.Errno{7: 0, 8: unix.EINVAL} {
		_, got := e.call(modifySRQ, words(srq, limit, 0, most), nil)
		require.Equal(t, errno, got, "a limit of %d for a queue of 8", most)
	}
}

// contextDriver is struct mlx5_ib_alloc_ucontext_req_v2.
func contextDriver(registers, low, flags, mask, reserved uint32, libCaps uint64) []byte {
	return append(words(registers, low, flags, mask, 0, reserved), quads(libCaps)...)
}

// GET_CONTEXT is refused as mlx5_ib_alloc_ucontext refuses it.
func TestContextsThatAreRefused(t *testing.T) {
	const dynamic = 2
	for _, test := range []struct {
		name   string
		driver []byte
		errno  unix.Errno
	}{
		{"a request of no version", make([]byte, 12), unix.EINVAL},
		{"a flag that does not exist", contextDriver(16, 4, 2, 0, 0, 0), unix.EOPNOTSUPP},
		{"a mask", contextDriver(16, 4, 0, 1, 0, 0), unix.EOPNOTSUPP},
		{"more than there is", contextDriver(16, 4, 0, 0, 1, 0), unix.EOPNOTSUPP},
		{"more registers for one QP each than there are", contextDriver(16, 17, 0, 0, 0, 0), unix.EINVAL},
		{"no registers", contextDriver(0, 0, 0, 0, 0, 0), unix.EINVAL},
		{"too many registers", contextDriver(mostBfregs+1, 4, 0, 0, 0, 0), unix.ENOMEM},
		{"DEVX", contextDriver(16, 4, 1, 0, 0, 0), unix.EINVAL},
		{"DEVX with dynamic UARs", contextDriver(16, 4, 1, 0, 0, dynamic), unix.EINVAL},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDriver(t, fabric.New(), Config{})
			d.context.memory = nil // as before GET_CONTEXT
			_, errno := d.call(getContext, nil, test.driver)
			require.Equal(t, test.errno, errno)
		})
	}
}

// Commands are refused as the kernel refuses them.
func TestCommandsThatAreRefused(t *testing.T) {
	e := newEndpoint(t, fabric.New())
	page := addressOf(e.page())
	mr := func(start, length, at uint64, pd, access uint32) []byte {
		return append(quads(start, length, at), words(pd, access)...)
	}
	change := func(b []byte, at int, v uint32) []byte {
		b = bytes.Clone(b)
		le.PutUint32(b[at:], v)
		return b
	}
	queues := addressOf(e.page())
	readOnly := addressOf(twoPages(t))
	for _, test := range []struct {
		name              string
		command           uint32
		request, provider []byte
		errno             unix.Errno
	}{
		{"a PD with an MR is freed", deallocate, words(e.domain), nil, unix.EBUSY},
		{"a PD that does not exist is freed", deallocate, words(999), nil, unix.ENOENT},
		{"an MR of nothing", register, mr(page, 0, page, e.domain, 1), nil, unix.EINVAL},
		{"an MR of memory that does not exist", register, mr(pageSize, 8, pageSize, e.domain, 1), nil, unix.EFAULT},
		{"an MR for writing, of memory that is read-only", register, mr(readOnly, 8, readOnly, e.domain, 1), nil, unix.EFAULT},
		{"an MR over the end of memory", register, mr(readOnly, 2*pageSize, readOnly, e.domain, 0), nil, unix.EFAULT},
		{"an MR with another offset in its page", register, mr(page, 8, page+1, e.domain, 1), nil, unix.EINVAL},
		{"an MR of another kind's handle", register, mr(page, 8, page, e.cq, 1), nil, unix.EINVAL},
		{"remote write without local write", register, mr(page, 8, page, e.domain, fabric.AccessRemoteWrite), nil, unix.EINVAL},
		{"access that does not exist", register, mr(page, 8, page, e.domain, 1<<10), nil, unix.EINVAL},
		{"memory on demand with another offset in its page", register, mr(page, 8, page+1, e.domain, 1|1<<6), nil, unix.EINVAL},
		{"FLUSH", register, mr(page, 8, page, e.domain, 1|1<<8), nil, unix.EOPNOTSUPP},
		{"a window of no type", allocateMW, words(e.domain, 0), nil, unix.EINVAL},
		{"a window of type 3", allocateMW, words(e.domain, 3), nil, unix.EINVAL},
		{"a window with another kind's handle as PD", allocateMW, words(e.cq, fabric.TypeTwo), nil, unix.EINVAL},
		{"a window with a mask", allocateMW, words(e.domain, fabric.TypeTwo), words(1, 0), unix.EOPNOTSUPP},
		{"a window with more than there is", allocateMW, words(e.domain, fabric.TypeTwo), words(0, 0, 1), unix.EOPNOTSUPP},
		{"a window that does not exist is freed", deallocateMW, words(999), nil, unix.ENOENT},
		{"a CQ without the driver's part", createCQ, cqRequest(-1), nil, unix.EINVAL},
		{"a CQ with entries of 32 bytes", createCQ, cqRequest(-1), cqDriver(page, page, 32), unix.EINVAL},
		{"a CQ with a flag that does not exist", createCQ, cqRequest(-1), change(cqDriver(page, page, cqeSize), 20, 1<<19), unix.EINVAL},
		{"a CQ with compressed entries", createCQ, cqRequest(-1), change(cqDriver(page, page, cqeSize), 20, 1), unix.EOPNOTSUPP},
		{"a CQ with reserved0", createCQ, cqRequest(-1), change(cqDriver(page, page, cqeSize), 24, 1<<16), unix.EINVAL},
		{"a CQ with reserved1", createCQ, cqRequest(-1), change(cqDriver(page, page, cqeSize), 28, 1), unix.EINVAL},
		{"a CQ that ends before its flags", createCQ, cqRequest(-1), cqDriver(page, page, cqeSize)[:20], unix.EINVAL},
		{"a CQ of no entries", createCQ, change(cqRequest(-1), 8, 0), cqDriver(page, page, cqeSize), unix.EINVAL},
		{"a CQ with too many entries", createCQ, change(cqRequest(-1), 8, maxCQE+1), cqDriver(page, page, cqeSize), unix.EINVAL},
		{"a CQ with a vector that does not exist", createCQ, change(cqRequest(-1), 12, 1), cqDriver(page, page, cqeSize), unix.EINVAL},
		{"a CQ with a channel that does not exist", createCQ, cqRequest(999), cqDriver(page, page, cqeSize), unix.EBADF},
		{"a CQ in memory that is read-only", createCQ, cqRequest(-1), cqDriver(readOnly, page, cqeSize), unix.EFAULT},
		{"a CQ without a buffer", createCQ, cqRequest(-1), cqDriver(0, page, cqeSize), unix.EFAULT},
		{"a CQ of a QP is destroyed", destroyCQ, words(e.cq, 0), nil, unix.EBUSY},
		{"a QP with another kind's handle as PD", createQP, change(e.qpRequest(), 8, e.cq), e.qpDriver(queues), unix.EINVAL},
		{"a QP with too many receives", createQP, change(e.qpRequest(), 28, maxWR+1), e.qpDriver(queues), unix.EINVAL},
		{"a QP with too many blocks to send", createQP, e.qpRequest(), change(e.qpDriver(queues), 16, 2*maxWR), unix.EINVAL},
		{"a QP by a driver from before its least size", createQP, e.qpRequest(), e.qpDriver(queues)[:40], unix.EINVAL},
		{"a QP with more than there is", createQP, e.qpRequest(), change(e.qpDriver(queues), 52, 1), unix.EINVAL},
		{"a QP without receives that has a queue for them", createQP, change(e.qpRequest(), 28, 0), e.qpDriver(queues), unix.EINVAL},
		{"a QP with entries of impossible size", createQP, e.qpRequest(), change(e.qpDriver(queues), 24, 33), unix.EINVAL},
		{"a QP whose send queue is no power of two", createQP, e.qpRequest(), change(e.qpDriver(queues), 16, 3), unix.EINVAL},
		{"a QP whose receive queue is missing", createQP, e.qpRequest(), change(e.qpDriver(queues), 20, 0), unix.EINVAL},
		{"a QP with a flag that does not exist", createQP, e.qpRequest(), change(e.qpDriver(queues), 28, 1<<30), unix.EINVAL},
		{"a QP without a user index", createQP, e.qpRequest(), change(e.qpDriver(queues), 32, defaultUidx), unix.EINVAL},
		{"a CQ that does not begin a page", createCQ, cqRequest(-1), cqDriver(page+64, page, cqeSize), unix.EINVAL},
		{"a CQ with a record at an odd address", createCQ, cqRequest(-1), cqDriver(page, page+4, cqeSize), unix.EINVAL},
		{"a QP whose queues do not begin at 64 bytes", createQP, e.qpRequest(), e.qpDriver(queues + 32), unix.EINVAL},
		{"an SRQ that does not begin at 64 bytes", createSRQ, append(quads(79), words(e.domain, 7, 1, 0)...),
			append(quads(queues+32, page), words(0, 0, 0, 0)...), unix.EINVAL},
		{"a QP without buffers", createQP, e.qpRequest(), e.qpDriver(0), unix.EINVAL},
		{"a QP with buffers that do not exist", createQP, e.qpRequest(), e.qpDriver(pageSize), unix.EFAULT},
		{"RESET to RTS", modify, e.modifyTo(fabric.StateRTS, 0, nil, 0, 0), nil, unix.EINVAL},
		{"RESET to INIT without a port", modify, e.modifyTo(fabric.StateInit, fabric.MaskPKey|fabric.MaskAccess, nil, 0, 0), nil, unix.EINVAL},
		{"RESET to INIT with a Q_Key for RC", modify, e.modifyTo(fabric.StateInit, fabric.MaskPKey|fabric.MaskAccess|fabric.MaskPort|fabric.MaskQKey, nil, 0, 0), nil, unix.EINVAL},
		{"a command that is cut off", createQP, e.qpRequest()[:20], nil, unix.ENOSPC},
		{"a command that does not exist", 99, nil, nil, unix.EOPNOTSUPP},
	} {
		t.Run(test.name, func(t *testing.T) {
			e.t = t
			_, errno := e.call(test.command, test.request, test.provider)
			require.Equal(t, test.errno, errno)
		})
	}
}
