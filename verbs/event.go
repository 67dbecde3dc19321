package verbs

import "fmt"

// EventType is the kind of an asynchronous event (enum ib_event_type of the
// kernel's rdma/ib_verbs.h, which struct ib_uverbs_async_event_desc carries).
type EventType uint32

// The asynchronous events, numbered as the kernel numbers them.
const (
	EventCQErr            EventType = 0
	EventQPFatal          EventType = 1
	EventQPReqErr         EventType = 2
	EventQPAccessErr      EventType = 3
	EventCommEst          EventType = 4
	EventSQDrained        EventType = 5
	EventPathMig          EventType = 6
	EventPathMigErr       EventType = 7
	EventDeviceFatal      EventType = 8
	EventPortActive       EventType = 9
	EventPortErr          EventType = 10
	EventLIDChange        EventType = 11
	EventPKeyChange       EventType = 12
	EventSMChange         EventType = 13
	EventSRQErr           EventType = 14
	EventSRQLimitReached  EventType = 15
	EventLastWQEReached   EventType = 16
	EventClientReregister EventType = 17
	EventGIDChange        EventType = 18
	EventWQFatal          EventType = 19
	EventSpeedChange      EventType = 20
)

var eventNames = [...]string{
	"CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED",
	"PATH_MIG", "PATH_MIG_ERR", "DEVICE_FATAL", "PORT_ACTIVE", "PORT_ERR", "LID_CHANGE",
	"PKEY_CHANGE", "SM_CHANGE", "SRQ_ERR", "SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED",
	"CLIENT_REREGISTER", "GID_CHANGE", "WQ_FATAL", "DEVICE_SPEED_CHANGE",
}

// String names the event as the specification does.
func (t EventType) String() string {
	if int(t) < len(eventNames) {
		return eventNames[t]
	}
	return fmt.Sprintf("EVENT(%d)", uint32(t))
}

// AsyncEvent is something that happened outside any work request.
type AsyncEvent struct {
	Type EventType
	QPN  uint32 // for QP events
	Port uint8  // for port events
	CQ   *CQ    // for CQ events, nil if it is closed by now
	SRQ  *SRQ   // for SRQ events, nil if it is closed by now
}

// DriverEvent is an AsyncEvent as a provider reports it.
type DriverEvent struct {
	Type EventType
	QPN  uint32
	Port uint8
	CQ   CQDriver
	SRQ  SRQDriver
}
