package kernelcm

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/seed-b9b531af/ramjet/rcm"
)

// eventSize is the size of struct rdma_ucm_event_resp. Kernels before 5.8
// write eventSizeOld bytes of it, the rest stays zero.
const (
	eventSize    = 336
	eventSizeOld = 324
)

// eventKind is a number of enum rdma_cm_event_type (rdma/rdma_cm.h of the
// kernel).
type eventKind uint32

const (
	eventAddrResolved    eventKind = 0
	eventAddrError       eventKind = 1
	eventRouteResolved   eventKind = 2
	eventRouteError      eventKind = 3
	eventConnectRequest  eventKind = 4
	eventConnectResponse eventKind = 5
	eventConnectError    eventKind = 6
	eventUnreachable     eventKind = 7
	eventRejected        eventKind = 8
	eventEstablished     eventKind = 9
	eventDisconnected    eventKind = 10
	eventDeviceRemoval   eventKind = 11
	eventJoined          eventKind = 12
	eventMembershipError eventKind = 13
	eventAddrChange      eventKind = 14
	eventTimewaitExit    eventKind = 15

	// eventLost is our own: the descriptor that the id belonged to is gone,
	// and the id with it.
	eventLost eventKind = 1 << 16
)

var eventKindNames = map[eventKind]string{
	eventAddrResolved: "ADDR_RESOLVED", eventAddrError: "ADDR_ERROR", eventRouteResolved: "ROUTE_RESOLVED",
	eventRouteError: "ROUTE_ERROR", eventConnectRequest: "CONNECT_REQUEST", eventConnectResponse: "CONNECT_RESPONSE",
	eventConnectError: "CONNECT_ERROR", eventUnreachable: "UNREACHABLE", eventRejected: "REJECTED",
	eventEstablished: "ESTABLISHED", eventDisconnected: "DISCONNECTED", eventDeviceRemoval: "DEVICE_REMOVAL",
	eventJoined: "MULTICAST_JOIN", eventMembershipError: "MULTICAST_ERROR", eventAddrChange: "ADDR_CHANGE", eventTimewaitExit: "TIMEWAIT_EXIT", eventLost: "LOST",
}

// String names the event as the kernel does.
func (k eventKind) String() string {
	if s := eventKindNames[k]; s != "" {
		return s
	}
	return fmt.Sprintf("EVENT(%d)", uint32(k))
}

// cmEvent is what the kernel reports about an id. The fields private, resources and
// depth count for the events of a connection, and datagram for those of port space
// UDP; the event does not say which it is, but its id does.
type cmEvent struct {
	uid uint64
	id  uint32 // of the new id in a CONNECT_REQUEST
	// kind and status: 0, a negative errno, or the reason of a REJECTED.
	kind    eventKind
	status  int32
	private []byte
	// Resources is how many READs the peer may have under way here, depth
	// how many of ours there may be: the kernel has turned them round.
	resources, depth uint8
	datagram         rcm.Destination
	conn             *cmID // the new id, for CONNECT_REQUEST
	lost             error // why, for eventLost
}

// parseEvent reads a struct rdma_ucm_event_resp. The result shares nothing
// with b.
func parseEvent(b []byte) (cmEvent, error) {
	if len(b) < eventSizeOld {
		return cmEvent{}, fmt.Errorf("%w: event of %d bytes", rcm.ErrMalformed, len(b))
	}
	order := binary.NativeEndian
	ev := cmEvent{
		uid:    order.Uint64(b),
		id:     order.Uint32(b[8:]),
		kind:   eventKind(order.Uint32(b[12:])),
		status: int32(order.Uint32(b[16:])),
		// param.conn begins at 20.
		resources: b[286],
		depth:     b[287],
	}
	if ev.kind > 0xffff {
		return cmEvent{}, fmt.Errorf("%w: event %d", rcm.ErrMalformed, uint32(ev.kind))
	}
	if n := int(b[284]); n > 0 { // at most 255, the field has 256
		ev.private = bytes.Clone(b[28 : 28+n])
	}
	ev.datagram = parseDatagram(b[20:])
	return ev, nil
}

// parseDatagram reads a struct rdma_ucm_ud_param.
func parseDatagram(b []byte) rcm.Destination {
	order := binary.NativeEndian
	ah := ucmAHAttr{ // from 8
		dgid: [16]byte(b[8:]), flowLabel: order.Uint32(b[24:]), sgidIndex: b[28], hopLimit: b[29], trafficClass: b[30],
		dlid: order.Uint16(b[32:]), sl: b[34], srcPathBits: b[35], staticRate: b[36], isGlobal: b[37], port: b[38],
	}
	const qpNumbers = 1<<24 - 1
	return rcm.Destination{
		AV: ah.vector(), QPN: order.Uint32(b) & qpNumbers, QKey: order.Uint32(b[4:]),
		PrivateData: bytes.Clone(b[40 : 40+int(b[296])]), // at most 255, the field has 256
	}
}
