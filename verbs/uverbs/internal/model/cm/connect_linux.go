//go:build amd64 || arm64

package cm

import (
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// Sizes of private data, as they arrive: whole fields of a message (include/rdma/ib_cm.h). Of a
// request rdma_cm has a header of its own before it.
const (
	privateREQ  = 56
	privateREP  = 196
	privateREJ  = 148
	privateSIDR = 180
	privateSREP = 136
)

// Reasons of a rejection (enum ib_cm_rej_reason).
const (
	rejectInvalidService = 8
	rejectConsumer       = 28
	rejectVendorOption   = 35
)

// Status of a SIDR REP (enum ib_cm_sidr_status).
const (
	sidrUnsupported = 1
	sidrReject      = 2
)

// A connParam is struct rdma_ucm_conn_param.
type connParam struct {
	qpn, qkey        uint32
	private          []byte
	srq              byte
	resources, depth byte
	flow             byte
	retry, rnrRetry  byte
	valid            bool
}

func parseParam(b []byte) (p connParam) {
	p = connParam{qpn: le.Uint32(b) & 0xffffff, qkey: le.Uint32(b[4:]), srq: b[265], resources: b[266], depth: b[267], flow: b[268],
		retry: min(b[269], 7), rnrRetry: min(b[270], 7), valid: b[271] != 0}
	p.private = append(p.private, b[8:8+int(b[264])]...)
	return p
}

func (p *connParam) encode() []byte {
	b := make([]byte, 272)
	le.PutUint32(b, p.qpn)
	le.PutUint32(b[4:], p.qkey)
	copy(b[8:264], p.private)
	b[264], b[265], b[266], b[267] = byte(len(p.private)), p.srq, p.resources, p.depth
	b[268], b[269], b[270] = p.flow, p.retry, p.rnrRetry
	if p.valid {
		b[271] = 1
	}
	return b
}

// padded returns private data as it arrives.
func padded(b []byte, size int) []byte {
	return append(b[:len(b):len(b)], make([]byte, size-len(b))...)
}

// turned is what the other side is told: its responder resources are our depth.
func (p connParam) turned(size int) connParam {
	p.resources, p.depth = p.depth, p.resources
	p.private = padded(p.private, size)
	return p
}

// connect is ucma_connect. It sends a REQ, or of UD a SIDR REQ.
func (f *file) connect(_ *frame.Message, b []byte, _ int) unix.Errno {
	p := parseParam(b)
	if !p.valid {
		return unix.EINVAL // ucma.c, ucma_connect
	}
	i, errno := f.get(le.Uint32(b[272:]))
	if errno != 0 {
		return errno
	}
	switch {
	case i.state != routed:
		return unix.EINVAL // cma.c, rdma_connect
	case len(p.private) > i.requestRoom():
		return unix.EINVAL // cm.c, cm_validate_req_param; cm.c, ib_send_cm_sidr_req (of UD)
	}
	i.param, i.state = p, requesting
	host, _ := f.host.network.find(i.remote.Addr())
	if host == nil {
		i.report(event{kind: eventUnreachable, status: -int32(unix.ETIMEDOUT)}) // cma.c, cma_ib_handler: IB_CM_REQ_ERROR
		return 0
	}
	l := host.listener(i.space, i.remote)
	switch {
	case l == nil && i.kind == typeUD:
		i.state = disconnected
		i.report(event{kind: eventUnreachable, status: sidrUnsupported, ud: i.udParam(nil, 0, 0)})
	case l == nil:
		i.isNotListenedTo()
	case l.pending < l.backlog:
		i.request(l)
	case i.kind == typeUD:
		i.state = disconnected
		i.report(event{kind: eventUnreachable, status: sidrReject, ud: i.udParam(nil, 0, 0)})
	default:
		// ucma_event_handler fails for want of room, and then the REQ is not answered (cm.c, cm_destroy_id): it is
		// sent again.
		l.waiting = append(l.waiting, i)
	}
	return 0
}

func (i *identifier) isNotListenedTo() {
	i.state = disconnected
	i.report(event{kind: eventRejected, status: rejectInvalidService})
}

// requestRoom is how many bytes of private data a request has.
func (i *identifier) requestRoom() int {
	if i.kind == typeUD {
		return privateSIDR
	}
	return privateREQ
}

// request makes the id of a request to a listener.
func (i *identifier) request(l *identifier) {
	p, size := i.param, i.requestRoom()
	made := &identifier{file: l.file, number: l.file.host.network.next(), space: i.space, kind: i.kind, state: requested, accepted: true,
		local: i.remote, remote: i.local, onDevice: true, peer: i, parent: l, resources: p.depth, depth: p.resources}
	made.psn = made.number * 0x3cd1 & 0xffffff
	i.peer = made
	l.pending++
	l.report(event{kind: eventConnectRequest, made: made, param: p.turned(size), ud: made.udParam(padded(p.private, size), 0, 0)})
}

// hasRoom is called when a request to a listener was read: another one that was not answered may come again.
func (i *identifier) hasRoom() {
	for len(i.waiting) > 0 && i.pending < i.backlog {
		next := i.waiting[0]
		i.waiting = i.waiting[1:]
		if next.state == requesting {
			next.request(i)
		}
	}
}

// udParam is struct rdma_ucm_ud_param, for ids of UD.
func (i *identifier) udParam(private []byte, qpn, qkey uint32) []byte {
	if i.kind != typeUD {
		return nil
	}
	b := make([]byte, 304)
	le.PutUint32(b, qpn)
	le.PutUint32(b[4:], qkey)
	if qpn != 0 {
		copy(b[8:40], i.path())
	}
	copy(b[40:296], private)
	b[296] = byte(len(private))
	return b
}

// accept is ucma_accept. It sends a REP, or from the side that has asked an RTU.
func (f *file) accept(_ *frame.Message, b []byte, _ int) unix.Errno {
	i, errno := f.get(le.Uint32(b[280:]))
	if errno != 0 {
		return errno
	}
	p := parseParam(b[8:])
	switch {
	case !p.valid && i.state == replied:
		i.state = connected
		if i.peer == nil {
			return unix.EINVAL // cm.c, ib_send_cm_rtu
		}
		i.peer.state = connected
		i.peer.report(event{kind: eventEstablished})
		return 0
	case !p.valid || i.state != requested || i.peer == nil && i.kind != typeUD:
		return unix.EINVAL // cma.c, rdma_accept; cm.c, ib_send_cm_rep
	case i.kind == typeUD:
		if len(p.private) > privateSREP {
			return unix.EINVAL // cm.c, ib_send_cm_sidr_rep
		}
		i.uid, i.param, i.state = le.Uint64(b), p, connected
		if i.peer == nil {
			return 0 // who has asked is gone, which a SIDR REP does not find out
		}
		i.peer.state = connected
		// The program's own Q_Key counts with addresses of InfiniBand only
		// (ucma_copy_conn_param).
		i.peer.report(event{kind: eventEstablished, ud: i.peer.udParam(padded(p.private, privateSREP), p.qpn, defaultQKey)})
		return 0
	case len(p.private) > privateREP:
		return unix.EINVAL // cm.c, ib_send_cm_rep
	}
	i.uid, i.param, i.state = le.Uint64(b), p, replying
	i.resources, i.depth = p.resources, p.depth
	peer := i.peer
	peer.state = replied
	peer.resources, peer.depth = p.depth, p.resources // cm.c, cm_rep_handler
	peer.report(event{kind: eventConnectResponse, param: p.turned(privateREP)})
	return 0
}

// reject is ucma_reject. It sends a REJ.
func (f *file) reject(_ *frame.Message, b []byte, _ int) unix.Errno {
	reason := int32(b[5])
	if reason == 0 {
		reason = rejectConsumer
	}
	if reason != rejectConsumer && reason != rejectVendorOption {
		return unix.EINVAL // ucma.c, ucma_reject
	}
	i, errno := f.get(le.Uint32(b))
	if errno != 0 {
		return errno
	}
	private := b[8 : 8+min(int(b[4]), 256)]
	size := privateREJ
	if i.kind == typeUD {
		size = privateSREP // ib_send_cm_sidr_rep
	}
	if len(private) > size || i.state != requested && i.state != replied {
		return unix.EINVAL // cm.c, ib_send_cm_rej
	}
	i.refuse(reason, private)
	return 0
}

func (i *identifier) refuse(reason int32, private []byte) {
	i.state = disconnected
	if peer := i.peer; peer != nil {
		i.peer, peer.peer, peer.state = nil, nil, disconnected
		if peer.kind == typeUD {
			// Of UD the REP has no reason.
			peer.report(event{kind: eventUnreachable, status: sidrReject, ud: peer.udParam(padded(private, privateSREP), 0, 0)})
			return
		}
		peer.report(event{kind: eventRejected, status: reason, param: connParam{private: padded(private, privateREJ)}})
	}
}

// disconnect is ucma_disconnect. It sends a DREQ, which the peer's kernel answers.
func (f *file) disconnect(_ *frame.Message, b []byte, _ int) unix.Errno {
	i, errno := f.get(le.Uint32(b))
	if errno != 0 {
		return errno
	}
	switch i.state {
	case connected, replying, replied:
		i.hangUp(true)
	case disconnected:
	default:
		return unix.EINVAL // cma.c, rdma_disconnect
	}
	return 0
}

// hangUp ends a connection. report says whether the program here is told too.
func (i *identifier) hangUp(report bool) {
	peer := i.peer
	i.state, i.peer = disconnected, nil
	if peer != nil {
		peer.state, peer.peer = disconnected, nil
		if peer.kind != typeUD {
			peer.report(event{kind: eventDisconnected})
		}
	}
	if report && i.kind != typeUD {
		i.report(event{kind: eventDisconnected})
	}
}

// leave is what the peer learns when an id is destroyed.
func (i *identifier) leave() {
	switch i.state {
	case requesting, requested, replied:
		if i.kind == typeUD && i.state == requesting {
			if i.peer != nil {
				i.peer.peer = nil // nobody tells it
			}
			return
		}
		i.refuse(rejectConsumer, nil)
	case connected, replying:
		i.hangUp(false)
	}
}

// notify is ucma_notify, which tells that data have come before the RTU.
func (f *file) notify(_ *frame.Message, b []byte, _ int) unix.Errno {
	const established = 4 // IB_EVENT_COMM_EST
	i, errno := f.get(le.Uint32(b))
	switch {
	case errno != 0:
		return errno
	case le.Uint32(b[4:]) != established || i.state != replying:
		return unix.EINVAL // cm.c, cm_establish
	}
	i.state = connected
	i.report(event{kind: eventEstablished})
	return 0
}
