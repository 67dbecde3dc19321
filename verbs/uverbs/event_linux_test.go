package uverbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

// raised returns the events that wait.
func raised(t *testing.T, d *device) (list []verbs.DriverEvent) {
	last := verbs.DriverEvent{QPN: 1 << 31}
	d.events.Raise(last)
	for {
		ev, err := d.events.Next() // it is there
		require.NoError(t, err)
		if ev == last {
			return list
		}
		list = append(list, ev)
	}
}

func TestEventsNameTheirObjects(t *testing.T) {
	d := deviceWithoutFile(t)
	c, s, q := &cq{dev: d}, &srq{dev: d}, &qp{dev: d, num: 17}
	ids := map[object]uint64{}
	for _, o := range []object{c, s, q} {
		id, err := d.add(o)
		require.NoError(t, err)
		ids[o] = id
	}
	for _, test := range []struct {
		event abi.AsyncEventDesc
		want  verbs.DriverEvent
	}{
		{abi.AsyncEventDesc{Element: ids[c], EventType: 0}, verbs.DriverEvent{Type: verbs.EventCQErr, CQ: c}},
		{abi.AsyncEventDesc{Element: ids[s], EventType: 15}, verbs.DriverEvent{Type: verbs.EventSRQLimitReached, SRQ: s}},
		{abi.AsyncEventDesc{Element: ids[q], EventType: 5}, verbs.DriverEvent{Type: verbs.EventSQDrained, QPN: 17}},
		{abi.AsyncEventDesc{Element: 1, EventType: 10}, verbs.DriverEvent{Type: verbs.EventPortErr, Port: 1}},
		{abi.AsyncEventDesc{EventType: 8}, verbs.DriverEvent{Type: verbs.EventDeviceFatal}},
	} {
		d.takeEvent(test.event)
		require.Equal(t, []verbs.DriverEvent{test.want}, raised(t, d))
	}
	require.True(t, d.gone.Load())
	for name, event := range map[string]abi.AsyncEventDesc{
		"an object that is gone":        {Element: 99, EventType: 0},
		"a type that nobody knows":      {Element: 99, EventType: 1000},
		"another end of the device":     {EventType: 8},
		"a number that is an address":   {Element: 1 << 63, EventType: 4},
		"an object and unknown type":    {Element: 0, EventType: 1<<32 - 1},
		"the end of one that is closed": {Element: 12345, EventType: 16},
	} {
		d.takeEvent(event)
		require.Empty(t, raised(t, d), name)
	}
}

func TestADeviceMayBeRemovedWhileItIsOpened(t *testing.T) {
	d := deviceWithoutFile(t)
	d.lost()                 // what an EIO of the first command comes to
	ev, err := d.NextEvent() // it is there
	require.NoError(t, err)
	require.Equal(t, verbs.EventDeviceFatal, ev.Type)
	_, err = d.AllocPD()
	require.Error(t, err)
}

// FuzzDeviceEvent has the kernel's descriptor of events say anything.
func FuzzDeviceEvent(f *testing.F) {
	f.Add(uint64(1), uint32(0))
	f.Add(uint64(2), uint32(15))
	f.Add(uint64(3), uint32(3))
	f.Fuzz(func(t *testing.T, element uint64, eventType uint32) {
		d := deviceWithoutFile(t)
		for _, o := range []object{&cq{dev: d}, &srq{dev: d}, &qp{dev: d}, &region{dev: d}} {
			if _, err := d.add(o); err != nil {
				t.Fatal(err)
			}
		}
		d.takeEvent(abi.AsyncEventDesc{Element: element, EventType: eventType})
		if len(raised(t, d)) > 1 {
			t.Fatal("one event became several")
		}
	})
}
