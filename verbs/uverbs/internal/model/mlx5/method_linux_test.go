//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// An attr is struct ib_uverbs_attr, with the data that it leads to.
type attr struct {
	id     uint16
	data   uint64 // a handle, or a number of at most 8 bytes
	length uint16 // of that, or of room
	in     []byte
	out    []byte
	may    bool // be unknown
}

// method calls one of the ioctl interface, and returns the handle of what it has made,
// which is attribute 0.
func (d *driver) method(object, number uint16, attrs ...attr) (handle uint64, errno unix.Errno) {
	d.t.Helper()
	b := make([]byte, 24)
	for _, a := range attrs {
		entry := make([]byte, 16)
		le.PutUint16(entry, a.id)
		le.PutUint16(entry[2:], a.length)
		if !a.may {
			entry[4] = 1 // UVERBS_ATTR_F_MANDATORY
		}
		le.PutUint64(entry[8:], a.data)
		for _, memory := range [][]byte{a.in, a.out} {
			if memory != nil {
				le.PutUint16(entry[2:], uint16(len(memory)))
				le.PutUint64(entry[8:], addressOf(memory))
			}
		}
		b = append(b, entry...)
	}
	le.PutUint16(b, uint16(len(b)))
	le.PutUint16(b[2:], object)
	le.PutUint16(b[4:], number)
	le.PutUint16(b[6:], uint16(len(attrs)))
	le.PutUint32(b[16:], d.driverID)
	c, errno := frame.ParseIoctl(frame.Self(), addressOf(b), driverID, attributesOf(methods, d.device.config.StaticUARs))
	if errno == 0 {
		errno = d.context.Call(c)
	}
	return le.Uint64(b[24+8:]), errno
}

func u32(id uint16, v uint32) attr { return attr{id: id, data: uint64(v), length: 4} }
func u64(id uint16, v uint64) attr { return attr{id: id, data: v, length: 8} }

func (d *driver) cqByMethod(flags uint32, change ...attr) (uint64, []byte, unix.Errno) {
	cqe := make([]byte, 4)
	attrs := append([]attr{{id: 0}, u32(1, 63), u64(2, 77), u32(4, 0), u32(5, flags), {id: 6, out: cqe},
		{id: 0x1000, in: cqDriver(addressOf(d.page()), addressOf(d.page()), cqeSize)}, {id: 0x1001, out: make([]byte, 8)}}, change...)
	handle, errno := d.method(objectCQ, 0, attrs...)
	return handle, cqe, errno
}

func (e *endpoint) qpByMethod(kind uint64, flags, pd uint32, change ...attr) (handle uint64, number []byte, errno unix.Errno) {
	caps := words(sendSize, recvSize, 1, 1, 0)
	number = make([]byte, 4)
	attrs := append([]attr{{id: 0}, {id: 2, data: uint64(pd)}, {id: 4, data: uint64(e.cq)}, {id: 5, data: uint64(e.cq)}, u64(7, 78),
		{id: 8, in: caps}, u64(9, kind), u32(10, flags), {id: 13, out: caps}, {id: 14, out: number},
		{id: 0x1000, in: e.qpDriver(addressOf(e.page()))}, {id: 0x1001, out: make([]byte, 40)}}, change...)
	handle, errno = e.method(objectQP, 0, attrs...)
	return handle, number, errno
}

// What is made by a method is destroyed by a command, and the other way round.
func TestObjectsOfMethods(t *testing.T) {
	e := newEndpoint(t, fabric.New())
	cq, cqe, errno := e.cqByMethod(0)
	require.Zero(t, errno)
	require.EqualValues(t, 63, le.Uint32(cqe))
	e.must(destroyCQ, words(uint32(cq), 0), nil)

	qp, number, errno := e.qpByMethod(uint64(fabric.RC), 1<<12, e.domain)
	require.Zero(t, errno)
	made := e.context.qps[1]
	require.Equal(t, le.Uint32(number), made.Number)
	require.True(t, made.signalAll)
	require.EqualValues(t, 78, made.user)
	_, errno = e.method(objectQP, 1, attr{id: 0, data: qp}, attr{id: 1, out: make([]byte, 4)})
	require.Zero(t, errno)
	require.Len(t, e.context.qps, 1)

	got := make([]byte, 24)
	_, errno = e.method(objectMR, 3, attr{id: 0, data: uint64(e.device.Regions[e.lkey].Handle)}, attr{id: 1, out: got[:4]}, attr{id: 2, out: got[4:8]},
		attr{id: 3, out: got[8:16]}, attr{id: 4, out: got[16:]})
	require.Zero(t, errno)
	require.Equal(t, append(words(e.lkey, e.lkey), quads(pageSize, addressOf(e.data))...), got)

	port := bytes.Repeat([]byte{0xff}, 48)
	_, errno = e.method(objectDevice, 2, u64(0, 1), attr{id: 1, out: port})
	require.Zero(t, errno)
	require.Equal(t, append(e.device.Query(), make([]byte, 8)...), port)
}

// Methods are refused as the kernel refuses them.
func TestMethodsThatAreRefused(t *testing.T) {
	e := newEndpoint(t, fabric.New())
	rc := uint64(fabric.RC)
	cq := func(flags uint32, change ...attr) func() unix.Errno {
		return func() unix.Errno {
			_, _, errno := e.cqByMethod(flags, change...)
			return errno
		}
	}
	qp := func(kind uint64, flags, pd uint32, change ...attr) func() unix.Errno {
		return func() unix.Errno {
			_, _, errno := e.qpByMethod(kind, flags, pd, change...)
			return errno
		}
	}
	srq := func(kind uint64, pd uint64) func() unix.Errno {
		return func() unix.Errno {
			_, errno := e.method(objectSRQ, 0, attr{id: 0}, attr{id: 1, data: pd}, u64(4, 79), u32(5, 7), u32(6, 1), u32(7, 0), u64(9, kind),
				attr{id: 11, out: make([]byte, 4)}, attr{id: 12, out: make([]byte, 4)},
				attr{id: 0x1000, in: append(quads(addressOf(e.page()), addressOf(e.page())), words(0, 0, 0, 0)...)}, attr{id: 0x1001, out: make([]byte, 8)})
			return errno
		}
	}
	call := func(object, number uint16, attrs ...attr) func() unix.Errno {
		return func() unix.Errno {
			_, errno := e.method(object, number, attrs...)
			return errno
		}
	}
	for _, test := range []struct {
		name  string
		call  func() unix.Errno
		errno unix.Errno
	}{
		{"a CQ", cq(1), 0},
		{"a CQ with a flag that does not exist", cq(1 << 2), unix.EINVAL},
		{"a CQ that may be overrun", cq(1 << 1), unix.EOPNOTSUPP},
		{"a CQ with a channel that does not exist", cq(0, attr{id: 3, data: 999}), unix.EBADF},
		{"an attribute twice", cq(0, u32(1, 63)), unix.EINVAL},
		{"an attribute that is not known", cq(0, u32(99, 0)), unix.EPROTONOSUPPORT},
		{"one that need not be known", cq(0, attr{id: 99, may: true}), 0},
		{"a CQ of no size", call(objectCQ, 0, attr{id: 0}), unix.EINVAL},
		{"a port whose number is too long", call(objectDevice, 2, attr{id: 0, in: append(quads(1), 0, 0, 0, 0)}, attr{id: 1, out: make([]byte, 48)}), unix.EINVAL},
		{"a region with more in its handle than a handle has", call(objectMR, 1, attr{id: 0, data: 1<<32 | uint64(e.device.Regions[e.lkey].Handle)}), unix.ENOENT},
		{"a QP", qp(rc, 0, e.domain), 0},
		{"a QP of a PD that does not exist", qp(rc, 0, 999), unix.ENOENT},
		{"a QP of a PD that is a CQ", qp(rc, 0, e.cq), unix.EINVAL},
		{"a QP of a type that does not exist", qp(0x100+rc, 0, e.domain), unix.EINVAL},
		{"a QP with a flag that does not exist", qp(rc, 1<<2, e.domain), unix.EINVAL},
		{"a QP of RC with a flag of others", qp(rc, 1<<1, e.domain), unix.EINVAL},
		{"a QP of an XRC domain", qp(rc, 0, e.domain, attr{id: 1, data: 1}), unix.EPROTONOSUPPORT},
		{"an SRQ", srq(0, uint64(e.domain)), 0},
		{"an SRQ of another type, without its attributes", srq(1, uint64(e.domain)), unix.ENOENT},
		{"an SRQ of a type that does not exist", srq(3, uint64(e.domain)), unix.EINVAL},
		{"an SRQ of a PD that does not exist", srq(0, 999), unix.ENOENT},
		{"a second context", call(objectDevice, 3, attr{id: 0, out: make([]byte, 4)}), unix.EINVAL},
		{"a second channel of asynchronous events", call(objectAsync, 0, attr{id: 0}), unix.EMFILE},
		{"a port that does not exist", call(objectDevice, 2, u64(0, 2), attr{id: 1, out: make([]byte, 48)}), unix.EINVAL},
		{"a port, with no room", call(objectDevice, 2, u64(0, 1), attr{id: 1, out: make([]byte, 40)}), unix.EINVAL},
		{"a region that does not exist", call(objectMR, 3, attr{id: 0, data: 999}, attr{id: 1, out: make([]byte, 4)},
			attr{id: 2, out: make([]byte, 4)}, attr{id: 3, out: make([]byte, 8)}), unix.ENOENT},
		{"a PD with users is freed", call(objectPD, 0, attr{id: 0, data: uint64(e.domain)}), unix.EBUSY},
		{"an AH that does not exist is destroyed", call(objectAH, 0, attr{id: 0, data: 999}), unix.ENOENT},
		{"a window that does not exist is freed", call(objectMW, 0, attr{id: 0, data: 999}), unix.ENOENT},
		{"a region that does not exist is freed", call(objectMR, 1, attr{id: 0, data: 999}), unix.ENOENT},
		{"a CQ of a QP is destroyed", call(objectCQ, 1, attr{id: 0, data: uint64(e.cq)}, attr{id: 1, out: make([]byte, 8)}), unix.EBUSY},
	} {
		t.Run(test.name, func(t *testing.T) { require.Equal(t, test.errno, test.call()) })
	}
	e.driverID++
	require.Equal(t, unix.EINVAL, cq(1)(), "an ioctl for another driver")
	old := newEndpoint(t, fabric.New(), Config{StaticUARs: true})
	_, _, errno := old.qpByMethod(rc, 0, old.domain)
	require.Equal(t, unix.EPROTONOSUPPORT, errno, "a kernel without dynamic UARs")
	_, _, errno = old.cqByMethod(0)
	require.Zero(t, errno)
}
