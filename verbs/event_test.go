package verbs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// lateEvents has events about its queues, also when it is closed.
type lateEvents struct {
	ContextDriver
	events chan DriverEvent
}

func (d lateEvents) NextEvent() (DriverEvent, error) { return <-d.events, nil }

func (lateEvents) Close() error { return nil }

// What was raised before a Close can be fetched after it.
func TestAnEventNamesNoQueueThatIsClosedWithItsDevice(t *testing.T) {
	d := lateEvents{events: make(chan DriverEvent, 4)}
	cqDriver, srqDriver := finds{}, &anSRQ{}
	cq, srq := &CQ{}, &SRQ{}
	ctx := &Context{drv: d, mrs: map[*MR]struct{}{}, cqs: map[CQDriver]*CQ{cqDriver: cq}, srqs: map[SRQDriver]*SRQ{srqDriver: srq}}
	raise := func() (AsyncEvent, AsyncEvent) {
		t.Helper()
		d.events <- DriverEvent{Type: EventCQErr, CQ: cqDriver}
		d.events <- DriverEvent{Type: EventSRQErr, SRQ: srqDriver}
		one, err := ctx.NextEvent()
		require.NoError(t, err)
		other, err := ctx.NextEvent()
		require.NoError(t, err)
		return one, other
	}
	one, other := raise()
	require.Equal(t, AsyncEvent{Type: EventCQErr, CQ: cq}, one)
	require.Equal(t, AsyncEvent{Type: EventSRQErr, SRQ: srq}, other)
	require.NoError(t, ctx.Close())
	one, other = raise()
	require.Equal(t, AsyncEvent{Type: EventCQErr}, one)
	require.Equal(t, AsyncEvent{Type: EventSRQErr}, other)
}

type anSRQ struct{ SRQDriver }
