//go:build amd64 || arm64

package fabric_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// A device of the test has its queues as Go has them: no ConnectX, and no format at all.
type device struct {
	*fabric.Port
	qp *queues
}

func (d *device) Look(time.Time) bool         { return false }
func (d *device) Event(kind uint32, _ uint64) { d.qp.events = append(d.qp.events, kind) }
func (d *device) Ended()                      {}

// queues are those of its one QP, and its memory.
type queues struct {
	fabric.QP
	memory   []byte
	key      uint32
	sends    []*fabric.Request // by their index
	receives [][]fabric.Scatter
	consumed uint16
	statuses []fabric.Status // of requests
	receipts []fabric.Receipt
	events   []uint32
}

func (q *queues) Next() *fabric.Request         { return q.sends[q.Done] }
func (q *queues) Begin(*fabric.Request)         {}
func (q *queues) Receives() fabric.ReceiveQueue { return (*receives)(q) }
func (q *queues) Reset()                        {}
func (q *queues) Broken() bool                  { return false }
func (q *queues) Event(kind uint32)             { q.events = append(q.events, kind) }

func (q *queues) Complete(_ *fabric.Request, status fabric.Status, _ uint32) {
	q.statuses = append(q.statuses, status)
}

func (q *queues) Received(_ uint16, r fabric.Receipt) { q.receipts = append(q.receipts, r) }

func (q *queues) Flush() (work bool) {
	for ; q.Done != q.Posted; q.Done++ {
		q.Complete(nil, fabric.Flushed, 0)
		work = true
	}
	return work
}

type receives queues

func (r *receives) Next() (list []fabric.Scatter, index uint16, ok bool) {
	if int(r.consumed) == len(r.receives) {
		return nil, 0, false
	}
	return r.receives[r.consumed], r.consumed, true
}

func (r *receives) Consume()       { r.consumed++ }
func (r *receives) PD() *fabric.PD { return r.QP.PD }
func (r *receives) Shared() bool   { return false }

// post posts a request that takes one slot.
func (q *queues) post(r fabric.Request) {
	r.Index, r.Slots = q.Posted, 1
	q.sends = append(q.sends, &r)
	q.Posted++
	q.Schedule()
}

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

// all is the QP's memory as an entry of a list.
func (q *queues) all() []fabric.Scatter {
	return []fabric.Scatter{{Addr: address(q.memory), Size: uint32(len(q.memory)), Key: q.key}}
}

// newQP makes a device with a QP of RC, in INIT.
func newQP(t *testing.T, f *fabric.Fabric) *queues {
	t.Helper()
	self := frame.Self()
	d := &device{qp: &queues{memory: make([]byte, 64)}}
	if err := self.Read(address(d.qp.memory), make([]byte, 1)); errors.Is(err, unix.ENOSYS) {
		t.Skip("left out, as in emulators: ", err)
	}
	f.NewPort(fabric.Config{}, func(p *fabric.Port) fabric.Hardware {
		d.Port = p
		return d
	})
	q := d.qp
	q.QP = fabric.QP{Port: d.Port, PD: &fabric.PD{}, Number: d.Next(), Service: fabric.RC, Queues: q}
	q.key = d.Next()
	d.QPs[q.Number] = &q.QP
	d.Regions[q.key] = &fabric.Region{PD: q.PD, Memory: self, Key: q.key, Start: address(q.memory), Address: address(q.memory), Length: 64,
		Access: fabric.AccessLocalWrite | fabric.AccessRemoteWrite}
	q.change(t, q, fabric.StateInit, fabric.MaskPKey|fabric.MaskPort|fabric.MaskAccess)
	return q
}

// change is a MODIFY_QP towards a peer.
func (q *queues) change(t *testing.T, peer *queues, state byte, mask uint32) {
	t.Helper()
	b := make([]byte, 112)
	le := binary.LittleEndian
	le.PutUint16(b[20:], peer.Port.LID)
	b[31], b[104] = 1, 1
	le.PutUint32(b[68:], fabric.MaskState|mask)
	le.PutUint32(b[84:], peer.Number)
	le.PutUint32(b[88:], fabric.AccessRemoteWrite)
	b[96], b[98], b[101], b[102], b[103], b[105], b[106], b[107] = state, fabric.MTUCode, 1, 1, 1, 1, 2, 7
	require.Zero(t, q.Modify(b, func(*fabric.Attributes) unix.Errno { return 0 }))
}

func connect(t *testing.T, a, b *queues) {
	t.Helper()
	for _, way := range [][2]*queues{{a, b}, {b, a}} {
		way[0].change(t, way[1], fabric.StateRTR, fabric.MaskAV|fabric.MaskMTU|fabric.MaskDest|fabric.MaskRQPSN|fabric.MaskMaxDest|fabric.MaskMinRNR)
		way[0].change(t, way[1], fabric.StateRTS, fabric.MaskTimeout|fabric.MaskRetry|fabric.MaskRNRRetry|fabric.MaskSQPSN|fabric.MaskMaxRead)
	}
}

// run lets the hardware work for some time of its own.
func run(f *fabric.Fabric, d time.Duration) {
	now := time.Now()
	for end := now.Add(d); now.Before(end); now = now.Add(50 * time.Microsecond) {
		f.Step(now)
	}
}

// A device of any kind has requests carried out, and refused, as one of another kind.
func TestADeviceNeedsNoFormatOfAnother(t *testing.T) {
	for _, test := range []struct {
		name      string
		request   func(a, b *queues) fabric.Request
		down      bool // the link of b
		statuses  []fabric.Status
		receipts  []fabric.Receipt
		events    []uint32 // of b
		delivered string
	}{
		{
			name:     "SEND",
			request:  func(a, _ *queues) fabric.Request { return fabric.Request{Op: fabric.Send, List: a.all(), Length: 64} },
			statuses: []fabric.Status{""}, receipts: []fabric.Receipt{{Op: fabric.Send, Bytes: 64}}, delivered: "by fabric",
		},
		{
			name: "WRITE of data of the request",
			request: func(_, b *queues) fabric.Request {
				return fabric.Request{Op: fabric.Write, Addr: address(b.memory), RKey: b.key, Inline: []byte("inline"), Length: 6}
			},
			statuses: []fabric.Status{""}, delivered: "inline",
		},
		{
			name: "READ of what may be written alone",
			request: func(a, b *queues) fabric.Request {
				return fabric.Request{Op: fabric.Read, Addr: address(b.memory), RKey: b.key, List: a.all(), Length: 64}
			},
			statuses: []fabric.Status{fabric.RemoteInvalid}, events: []uint32{fabric.EventQPRequest},
		},
		{
			name: "WRITE by a key that nothing has",
			request: func(a, b *queues) fabric.Request {
				return fabric.Request{Op: fabric.Write, Addr: address(b.memory), RKey: b.key + 1, List: a.all(), Length: 64}
			},
			statuses: []fabric.Status{fabric.RemoteAccess}, events: []uint32{fabric.EventQPAccess},
		},
		{
			name:     "SEND without a link",
			request:  func(a, _ *queues) fabric.Request { return fabric.Request{Op: fabric.Send, List: a.all(), Length: 64} },
			down:     true,
			statuses: []fabric.Status{fabric.RetriesExceeded}, events: []uint32{fabric.EventPortError},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := fabric.New()
			a, b := newQP(t, f), newQP(t, f)
			connect(t, a, b)
			copy(a.memory, "by fabric")
			b.receives = append(b.receives, b.all())
			b.Port.SetLink(!test.down)
			a.post(test.request(a, b))
			run(f, 100*time.Millisecond)
			require.Equal(t, test.statuses, a.statuses)
			require.Equal(t, test.receipts, b.receipts)
			require.Equal(t, test.events, b.events)
			require.Equal(t, test.delivered, string(bytes.TrimRight(b.memory, "\x00")))
			require.Empty(t, f.Violations())
		})
	}
}
