package uverbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

func TestEventsNameTheirObjects(t *testing.T) {
	d := deafDevice(t)
	c, s, q := &cq{dev: d}, &srq{dev: d}, &qp{dev: d, num: 17}
	ids := map[object]uint64{}
	for _, o := range []object{c, s, q} {
		id, err := d.add(o)
		require.NoError(t, err)
		ids[o] = id
	}
	for _, test := range []struct {
		event asyncEventDesc
		want  verbs.DriverEvent
	}{
		{asyncEventDesc{element: ids[c], eventType: 0}, verbs.DriverEvent{Type: verbs.EventCQErr, CQ: c}},
		{asyncEventDesc{element: ids[s], eventType: 15}, verbs.DriverEvent{Type: verbs.EventSRQLimitReached, SRQ: s}},
		{asyncEventDesc{element: ids[q], eventType: 5}, verbs.DriverEvent{Type: verbs.EventSQDrained, QPN: 17}},
		{asyncEventDesc{element: 1, eventType: 10}, verbs.DriverEvent{Type: verbs.EventPortErr, Port: 1}},
		{asyncEventDesc{eventType: 8}, verbs.DriverEvent{Type: verbs.EventDeviceFatal}},
	} {
		d.events.take(test.event)
		require.Equal(t, test.want, <-d.events.events) // it is there
	}
	require.True(t, d.gone.Load())
	for name, event := range map[string]asyncEventDesc{
		"an object that is gone":        {element: 99, eventType: 0},
		"a type that nobody knows":      {element: 99, eventType: 1000},
		"another end of the device":     {eventType: 8},
		"a number that is an address":   {element: 1 << 63, eventType: 4},
		"an object and unknown type":    {element: 0, eventType: 1<<32 - 1},
		"the end of one that is closed": {element: 12345, eventType: 16},
	} {
		d.events.take(event)
		require.Empty(t, d.events.events, name)
	}
}

func TestADeviceMayBeRemovedWhileItIsOpened(t *testing.T) {
	d := deafDevice(t)
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
		d := deafDevice(t)
		for _, o := range []object{&cq{dev: d}, &srq{dev: d}, &qp{dev: d}, &region{dev: d}} {
			if _, err := d.add(o); err != nil {
				t.Fatal(err)
			}
		}
		d.events.take(asyncEventDesc{element: element, eventType: eventType})
		if len(d.events.events) > 1 {
			t.Fatal("one event became several")
		}
	})
}
