//go:build amd64 || arm64

package cm

import (
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// The events of the connection manager (enum rdma_cm_event_type).
const (
	eventAddrResolved    = 0
	eventAddrError       = 1
	eventRouteResolved   = 2
	eventConnectRequest  = 4
	eventConnectResponse = 5
	eventUnreachable     = 7
	eventRejected        = 8
	eventEstablished     = 9
	eventDisconnected    = 10
	eventDeviceRemoval   = 11
	eventMulticastJoin   = 12
)

// An event is what a program is told of an id.
type event struct {
	on     *identifier // whose event it is
	made   *identifier // the new id of a CONNECT_REQUEST
	kind   uint32
	status int32
	param  connParam   // of RC
	member *membership // whose it is, of a group
	ud     []byte      // struct rdma_ucm_ud_param of UD, or nil
}

// report queues an event for the id's program. A program that has not given the id a name of
// its own has no use for it (ucma.c, ucma_event_handler).
func (i *identifier) report(e event) {
	e.on = i
	if i.uid == 0 && e.member == nil || e.member != nil && e.member.uid == 0 {
		return
	}
	i.file.events = append(i.file.events, e)
	i.file.count.Add()
}

// encode returns struct rdma_ucm_event_resp.
func (e *event) encode() []byte {
	const size, paramAt = 336, 20
	b := make([]byte, size)
	subject := e.on
	if e.made != nil {
		subject = e.made
	}
	uid, number := e.on.uid, subject.number
	if e.member != nil {
		uid, number = e.member.uid, e.member.number
	}
	le.PutUint64(b, uid)
	le.PutUint32(b[8:], number)
	le.PutUint32(b[12:], e.kind)
	le.PutUint32(b[16:], uint32(e.status))
	if e.ud != nil {
		copy(b[paramAt:], e.ud)
	} else {
		copy(b[paramAt:], e.param.encode())
	}
	return b
}

// getEvent is ucma_get_event.
func (f *file) getEvent(m *frame.Message, b []byte, out int) unix.Errno {
	const oldSize = 324 // before 5.8 there was no ECE
	if out < oldSize {
		return unix.ENOSPC // ucma.c, ucma_get_event
	}
	if len(f.events) == 0 {
		return frame.NotReady
	}
	e := f.events[0]
	f.events = f.events[1:]
	f.count.Take()
	e.on.reported++
	if e.member != nil {
		e.member.reported++
	}
	if e.kind == eventConnectRequest {
		e.on.pending--
		e.made.file = f
		f.identifiers[e.made.number] = e.made
		e.on.hasRoom()
	}
	answer := e.encode()
	return write(m, le.Uint64(b), answer[:min(out, len(answer))])
}
